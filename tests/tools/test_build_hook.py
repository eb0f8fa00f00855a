"""A wheel carries ``spec/`` as one JSON, the templates and the bundled model, and reads them from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ninfer.spec import document, document_names
from ninfer.spec.documents import DEVELOPMENT_FOLDERS
from tools.build_hook import TARGET, CustomBuildHook, compile_documents

ROOT = Path(__file__).parents[2]
CARRIED = [name for name in document_names() if not name.startswith(DEVELOPMENT_FOLDERS)]


def build(source: Path, target: str, folder: Path) -> Path:
    """Run the build backend in ``source``, offline; the one file it makes."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def test_compiled_documents_are_the_checkouts() -> None:
    compiled = json.loads(compile_documents(ROOT))
    assert sorted(compiled) == sorted(CARRIED)
    assert all(compiled[name] == document(name) for name in CARRIED)


def test_wheel_carries_the_documents_and_the_package_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert sorted(json.loads(archive.read(TARGET))) == sorted(CARRIED)
    assert not any(name.startswith(("spec/", "tests/", "tools/", "conformance/")) for name in names)
    assert {"ninfer/py.typed", "ninfer/prompt/templates/qwen3_8.jinja"} <= names
    assert [name for name in names if name.startswith("ninfer/bundled/") and name.endswith(".ninfer")]
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ninfer").rglob("*.py")}
    assert package <= names


def test_nothing_is_left_in_the_source_tree(wheel: Path) -> None:
    assert wheel.is_file()
    assert not (ROOT / TARGET).exists()


def test_documents_are_read_through_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "import json, sys, ninfer\n"
        "from ninfer.spec import document, document_names\n"
        "from ninfer.cli.parser import parse\n"
        "port = parse('ninfer-serve', ['--port', '9'])['port']\n"
        "found = [ninfer.__file__, document_names(), document('options'), port, 'yaml' in sys.modules]\n"
        "print(json.dumps(found))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    place, names, options, port, yaml_loaded = json.loads(done.stdout)
    assert Path(place) == tmp_path / "ninfer/__init__.py"
    assert (names, options, port, yaml_loaded) == (sorted(CARRIED), document("options"), 9, False)


def test_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    again = build(source, "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert second.namelist() == first.namelist()
        assert second.read(TARGET) == first.read(TARGET)


def test_editable_install_needs_no_compiled_file(tmp_path: Path) -> None:
    hook = CustomBuildHook(str(ROOT), {}, None, None, str(tmp_path), "wheel")
    build_data: dict[str, dict[str, str]] = {"force_include": {}}
    hook.initialize("editable", build_data)
    assert build_data == {"force_include": {}}
    hook.initialize("standard", build_data)
    ((made, target),) = build_data["force_include"].items()
    assert target == TARGET
    assert Path(made).is_file()
    hook.finalize("standard", build_data, "")
    assert not Path(made).parent.exists()


def test_a_malformed_document_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "spec").mkdir()
    with pytest.raises(Exception, match="would not start"):
        compile_documents(tmp_path)
    (tmp_path / "spec/options.yaml").write_text("{}")
    (tmp_path / "spec/a.yaml").write_text("a: 1\na: 2")
    with pytest.raises(Exception, match=r"a\.yaml: the key 'a' stands twice"):
        compile_documents(tmp_path)
    (tmp_path / "spec/a.yaml").write_text("a: .nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        compile_documents(tmp_path)
    (tmp_path / "spec/a.yaml").write_text("a: 2026-01-01")
    with pytest.raises(TypeError, match="not JSON serializable"):
        compile_documents(tmp_path)
