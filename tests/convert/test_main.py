"""The program ``ninfer-convert`` as its user meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ninfer.artifact import Artifact
from ninfer.convert.main import main
from tests.convert.checkpoints import nano


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return nano("dense-vl").write(tmp_path / "nano")


def test_convert_verify_and_inspect(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.ninfer")
    options = ["--recipe", "q8", "--name", "mine", "--metadata", "from=test", "--verify", "2"]
    assert main([str(checkpoint), out, *options]) == 0
    printed = capsys.readouterr()
    first, *layers = printed.out.splitlines()
    assert first.startswith(f"{out}: recipe q8, ")
    assert [line.split(":")[0] for line in layers] == ["layer 0 linear_attention", "layer 3 full_attention"]
    assert "ninfer-convert: vision: 21 tensors are left out" in printed.err
    assert "writing 1 of 1 MiB" in printed.err
    assert main(["--inspect", out]) == 0
    report = capsys.readouterr().out
    assert "public name   mine" in report
    assert "  from: test" in report


def test_two_names_are_one_too_many(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(checkpoint), str(tmp_path / "out.ninfer"), "--recipe", "q8", "--metadata", "name=a"]
    assert main([*command, "--name", "b"]) == 2
    assert "--metadata: name is what --name sets" in capsys.readouterr().err
    assert main(command) == 0
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        assert artifact.public_name == "a"


def test_an_artifact_on_disk_can_be_verified_alone(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.ninfer")
    assert main([str(checkpoint), out, "--recipe", "bf16"]) == 0
    assert main([str(checkpoint), out, "--verify", "1"]) == 0
    assert "layer 0 linear_attention" in capsys.readouterr().out


def test_a_failed_comparison_is_a_failed_run(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = nano("dense-vl")
    other.tensors["model.language_model.layers.0.mlp.down_proj.weight"] *= -1
    out = str(tmp_path / "out.ninfer")
    assert main([str(other.write(tmp_path / "other")), out, "--recipe", "bf16"]) == 0
    assert main([str(checkpoint), out, "--verify", "1"]) == 1
    assert capsys.readouterr().out.rstrip().endswith("FAILED")


def test_a_chat_template_of_the_users_own(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("mine")
    out = tmp_path / "out.ninfer"
    assert (
        main([str(checkpoint), str(out), "--recipe", "q4", "--chat-template", str(tmp_path / "mine.jinja")])
        == 0
    )
    with Artifact.open(out) as artifact:
        assert artifact.resource("text", "chat_template.jinja") == b"mine"


def test_errors_are_one_line_and_a_status(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.ninfer")
    assert main([str(tmp_path / "none"), out, "--recipe", "q8"]) == 1
    assert main([str(checkpoint), out, "--recipe", "q3"]) == 2
    assert main([str(checkpoint), out]) == 2
    assert main([str(checkpoint), out, "--recipe", "bf16", "--inspect", out]) == 2
    assert main([str(checkpoint), out, "--recipe", "bf16"]) == 0
    assert main([str(checkpoint), out, "--recipe", "bf16"]) == 1
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "left out" not in line and "MiB" not in line
    ]
    assert len(lines) == 5
    assert all(line.startswith("ninfer-convert: ") for line in lines)
    assert "not a directory" in lines[0]
    assert "--recipe" in lines[1]
    assert "--recipe" in lines[2]
    assert "exist" in lines[4]


def test_conversion_never_loads_torch_or_transformers(checkpoint: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from ninfer.convert.main import main\n"
        f"assert main([{str(checkpoint)!r}, {str(tmp_path / 'out.ninfer')!r}, '--recipe', 'q4']) == 0\n"
        "assert not {'torch', 'transformers', 'sanic'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
