"""argv → options: every value type, what does not work yet, help, and one-line errors."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ninfer
from ninfer.cli.parser import ParsedOptions, check_environment, parse, parse_table, run
from ninfer.errors import ArtifactError, OptionError
from ninfer.spec.options import Option, OptionTable, option_table, programs
from tests.cli.tables import all_working, parse_all, refusal

# ---------------------------------------------------------------- reading argv


def test_nothing_given_means_the_defaults() -> None:
    options = parse("ninfer-serve", [])
    assert options.explicit == frozenset()
    assert (options["artifact"], options["host"], options["port"]) == (None, "127.0.0.1", 8080)
    assert (options["engine"], options["greedy"], options["temperature"]) == ("fast", False, None)


def test_values_follow_or_are_joined() -> None:
    argv = ["m.ninfer", "--port=9001", "--host", "0.0.0.0", "--top-k", "0", "--greedy", "--temperature=0.25"]
    options = parse("ninfer-serve", argv)
    assert options.explicit == {"artifact", "port", "host", "top_k", "greedy", "temperature"}
    assert [options[key] for key in ("artifact", "port", "host", "top_k", "greedy", "temperature")] == [
        "m.ninfer", 9001, "0.0.0.0", 0, True, 0.25,
    ]  # fmt: skip


def test_negative_numbers_are_values() -> None:
    options = parse("ninfer-serve", ["--seed", "-3", "--presence-penalty", "-1.5"])
    assert (options["seed"], options["presence_penalty"]) == (-3, -1.5)


def test_repeatable_options_keep_their_order() -> None:
    options = parse("ninfer", ["--prompt", "hi", "--stop", "b", "--stop", "a", "--stop=b"])
    assert options["stop"] == ("b", "a", "b")
    options = parse(
        "ninfer-convert", ["in", "out", "--recipe=q8", "--metadata", "a=1", "--metadata", "b=x=y"]
    )
    assert options["metadata"] == (("a", "1"), ("b", "x=y"))


def test_a_double_dash_ends_the_options() -> None:
    options = parse("ninfer-convert", ["--recipe", "q4", "--", "--in", "-out"])
    assert (options["checkpoint"], options["out"]) == ("--in", "-out")


def test_text_that_looks_like_an_option_is_joined() -> None:
    assert parse("ninfer", ["--prompt=--greedy"])["prompt"] == "--greedy"
    with pytest.raises(OptionError, match="--prompt=--greedy"):
        parse("ninfer", ["--prompt", "--greedy"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-contxt", "4096"], "--max-contxt: unknown option; did you mean --max-context?"),
        (["--zzzzzz"], "--zzzzzz: unknown option; see ninfer-serve --help"),
        (["--max-new", "3"], "--max-new: is an option of ninfer, not of ninfer-serve"),
        (["a", "b"], "'b': unexpected argument; usage: ninfer-serve [ARTIFACT] [OPTION]..."),
        (["--port"], "--port: needs a value (N)"),
        (["--port", "--greedy"], "--port: needs a value (N); one that starts with dashes as --port=--greedy"),
        (["--greedy=yes"], "--greedy: takes no value"),
        (["--port", "1", "--port", "2"], "--port: given twice"),
        (["--port", "eighty"], "--port: 'eighty' is not an integer of 0..65535"),
        (["--port", "65536"], "--port: '65536' is not an integer of 0..65535"),
        (["--port", "1_000"], "--port: '1_000' is not an integer of 0..65535"),
        (["--port", "٣"], "--port: '٣' is not an integer of 0..65535"),
        (["--port", "1" * 5000], f"--port: '{'1' * 60}…' is not an integer of 0..65535"),
        (["--max-context", "63"], "--max-context: '63' is not an integer of 64..the model's native context"),
        (["--temperature", "inf"], "--temperature: 'inf' is not a finite number of 0..2"),
        (["--temperature", "1e999"], "--temperature: '1e999' is not a finite number of 0..2"),
        (["--temperature", "2.1"], "--temperature: '2.1' is not a number of 0..2"),
        (["--log-level", "verbose"],
         "--log-level: 'verbose' is not one of trace, debug, info, warning, error, critical, off"),
        (["--host="], "--host: must not be empty"),
        (["--chat-template", ""], "--chat-template: must name a path"),
        (["--model-id", "a\udc80"], "--model-id: is not valid UTF-8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(argv: list[str], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse("ninfer-serve", argv)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("program", "argv", "message"),
    [
        ("ninfer", "", "--prompt: exactly one of --prompt and --messages is needed"),
        ("ninfer", "--prompt a --messages f", "--prompt: cannot be combined with --messages"),
        ("ninfer", "--prompt a --no-thinking --reasoning-effort low",
         "--no-thinking: cannot be combined with --reasoning-effort"),
        ("ninfer-convert", "in", "OUT: is needed; usage: ninfer-convert CHECKPOINT OUT [OPTION]..."),
        ("ninfer-convert", "in out", "--recipe: is needed; usage: ninfer-convert CHECKPOINT OUT [OPTION]..."),
        ("ninfer-convert", "--inspect f in", "CHECKPOINT: cannot be combined with --inspect"),
        ("ninfer-convert", "in out --recipe fp8",
         "--recipe: fp8 is not available yet: it comes with more weight formats and sources"),
        ("ninfer-convert", "--inspect f --name n", "--name: requires --recipe"),
        ("ninfer-convert", "in out --verify 2 --chat-template f", "--chat-template: requires --recipe"),
        ("ninfer-convert", "in out --recipe q8 --metadata a", "--metadata: 'a' is not of the form KEY=VALUE"),
        ("ninfer-convert", "in out --recipe q8 --metadata a=1 --metadata a=2", "--metadata: names a twice"),
        (
            "ninfer-bench",
            "--spec dflash",
            "--spec: dflash is not available yet: it comes with DFlash, draft trees and the draft archive",
        ),
    ],
)  # fmt: skip
def test_what_a_program_needs(program: str, argv: str, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(program, argv.split())
    assert str(refused.value) == message


def test_a_program_that_is_not_there_yet_says_what_brings_it() -> None:
    table = dataclasses.replace(option_table("ninfer-bench"), works=False, owner="later")
    with pytest.raises(OptionError, match="this program: not available yet: it comes with a later"):
        parse_table(table, [])


def test_effort_none_goes_with_no_thinking() -> None:
    options = parse("ninfer", ["--prompt", "a", "--no-thinking", "--reasoning-effort", "none"])
    assert options["reasoning_effort"] == "none"


def test_convert_modes() -> None:
    assert parse("ninfer-convert", ["--inspect", "f"])["inspect"] == "f"
    assert parse("ninfer-convert", ["in", "out", "--verify", "4"])["verify"] == 4


# ---------------------------------------------------------------- what does not work yet


def default_argv(option: Option) -> list[str]:
    """The option with its own default, or any value where it has none."""
    if option.type == "flag":
        return [option.name]
    samples = {"key_value": "a=b", "pair_list": "1,1", "tree_nodes": "auto", "string": "x", "file": "x"}
    default = option.choices[0].value if option.choices else samples.get(option.type, "7")
    if isinstance(option.default, bool):
        default = "on" if option.default else "off"
    elif option.default not in (None, ()):
        default = str(option.default[0] if isinstance(option.default, tuple) else option.default)
    return [default] if option.positional else [option.name, default]


@pytest.mark.parametrize("program", programs())
def test_an_option_that_does_not_work_is_refused_by_name_even_at_its_default(program: str) -> None:
    table = option_table(program)
    missing = [option for option in table.options if not option.works]
    assert missing
    for option in missing:
        with pytest.raises(OptionError) as refused:
            parse(program, default_argv(option))
        owner = table.owners[option.owner]
        assert str(refused.value) == f"{option.name}: not available yet: it comes with {owner}"


def test_a_choice_that_does_not_work_is_refused_by_name() -> None:
    with pytest.raises(OptionError) as refused:
        parse("ninfer-serve", ["--kv-dtype", "vq2"])
    owner = option_table("ninfer-serve").owners["later"]
    assert str(refused.value) == f"--kv-dtype: vq2 is not available yet: it comes with {owner}"
    assert parse("ninfer-serve", ["--kv-dtype", "int8"])["kv_dtype"] == "int8"


def test_a_secret_is_not_repeated() -> None:
    assert "hunter2" not in str(refusal(["--api-key", "hunter2", "--api-key", "hunter2"]))
    assert "hunter2" not in repr(parse_all(["--api-key", "hunter2"]))


# ---------------------------------------------------------------- any words


_WORDS = st.one_of(
    st.sampled_from(
        [name for p in programs() for row in option_table(p).options for name in (row.name, *row.aliases)]
    ),
    st.text(max_size=6),
    st.sampled_from(["-", "--", "0", "-1", "1.5", "auto", "on", "a=b", "--port=1", "--=", "nan"]),
)


@given(st.sampled_from(programs()), st.lists(_WORDS, max_size=6), st.booleans())
def test_any_words_are_options_or_a_one_line_error(program: str, words: list[str], whole: bool) -> None:
    table = all_working(program) if whole else option_table(program)
    outcome = outcome_of(table, words)
    if isinstance(outcome, OptionError):
        assert str(outcome).startswith(outcome.option)
    elif isinstance(outcome, SystemExit):
        assert outcome.code == 0
    else:
        assert set(outcome) == {row.key for row in table.options}
        assert outcome.explicit <= set(outcome)


def outcome_of(table: OptionTable, words: list[str]) -> ParsedOptions | OptionError | SystemExit:
    try:
        return parse_table(table, words)
    except (OptionError, SystemExit) as outcome:
        return outcome


# ---------------------------------------------------------------- version, exit status, environment


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        parse("ninfer", ["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == f"ninfer {ninfer.__version__}\n"


def test_help_comes_before_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    for program in programs():
        with pytest.raises(SystemExit):
            parse(program, ["-h"])
        assert capsys.readouterr().out.startswith(f"Usage: {program} ")


def test_run_returns_what_main_returns() -> None:
    assert run("ninfer-serve", ["--port", "9"], lambda options: options["port"]) == 9


def test_run_reports_a_wrong_option_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main(options: ParsedOptions) -> int:
        raise AssertionError("a wrong option must not start the program")

    assert run("ninfer-serve", ["--host", "a", "--port", "no\nnumber"], main) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "ninfer-serve: --port: 'no\\nnumber' is not an integer of 0..65535\n"


def test_run_reports_other_errors_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(options: ParsedOptions) -> int:
        raise ArtifactError("byte 0", "wrong magic\nof two lines")

    assert run("ninfer-serve", [], refuse) == 1
    assert capsys.readouterr().err == "ninfer-serve: byte 0: wrong magic of two lines\n"

    def mismatch(options: ParsedOptions) -> int:
        raise OptionError("--chat-template", "no such file")

    assert run("ninfer-serve", [], mismatch) == 2


def test_environment_values_are_checked() -> None:
    for value in ("spin", "blocking", "yield", "auto"):
        check_environment("ninfer-serve", {"NINFER_CUDA_SYNC": value})
    check_environment("ninfer-convert", {"NINFER_CUDA_SYNC": "anything"})
    for value in ("", "Spin", "poll"):
        with pytest.raises(
            OptionError, match=r"NINFER_CUDA_SYNC: .* is not one of spin, blocking, yield, auto"
        ):
            check_environment("ninfer", {"NINFER_CUDA_SYNC": value})


def test_options_are_a_read_only_mapping() -> None:
    options = parse("ninfer-serve", [])
    assert len(options) == len(option_table("ninfer-serve").options)
    assert options.program == "ninfer-serve"
    with pytest.raises(KeyError):
        options["no_such_key"]
    with pytest.raises(TypeError):
        options["port"] = 1  # type: ignore[index]
