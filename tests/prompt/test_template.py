"""The maintained template against transformers, and what a template may and may not do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import ArtifactError, RequestError
from ninfer.spec import document
from tests.prompt import template_vectors
from tests.prompt.building import (
    assistant,
    conversation,
    message,
    preparer,
    template,
    tokenizer,
    user,
)

VECTORS = document("vectors/template")


def prepared(case: dict[str, Any], **more: Any) -> Any:
    arguments = {name: value for name, value in case.items() if name != "continued"}
    return preparer().prepare(conversation(**arguments, **more))


@pytest.mark.clause_early("TMPL-001", "TMPL-002", "TMPL-003", "TMPL-007", "TMPL-013", "CHAT-009")
@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_prompts_equal_transformers(case: dict[str, Any]) -> None:
    prompt = prepared(case["input"])
    assert prompt.text == case["expected"]
    assert tokenizer().decode(prompt.tokens.tolist()) == case["expected"]


def test_vectors_are_what_transformers_renders_today() -> None:
    assert {case["name"]: case["expected"] for case in VECTORS} == {
        name: template_vectors.rendered(case) for name, case in template_vectors.CASES
    }


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_tokens_equal_transformers(case: dict[str, Any]) -> None:
    if case["name"] in ("quoted-markup", "wrapped-result-is-no-query"):
        # There the user's text spells control tokens, which transformers takes for real ones.
        assert prepared(case["input"]).tokens.tolist() != template_vectors.tokenised(case["expected"])
    else:
        assert prepared(case["input"]).tokens.tolist() == template_vectors.tokenised(case["expected"])


@pytest.mark.clause_early("TMPL-001")
def test_order_of_messages_is_kept() -> None:
    turns = [user("first"), assistant("second"), user("third")]
    text = preparer().prepare(conversation(turns)).text
    swapped = preparer().prepare(conversation(turns[::-1])).text
    assert text.index("first") < text.index("second") < text.index("third")
    assert swapped.index("third") < swapped.index("second") < swapped.index("first")


@pytest.mark.clause_early("CHAT-006", "CHAT-008")
def test_adjacent_parts_join_without_a_separator() -> None:
    from ninfer.prompt import Conversation, Message, TextPart

    whole = preparer().prepare(Conversation((Message("user", (TextPart("abcd"),)),)))
    parts = preparer().prepare(Conversation((Message("user", (TextPart("ab"), TextPart("cd"))),)))
    assert parts.text == whole.text
    assert parts.tokens.tolist() == whole.tokens.tolist()


@pytest.mark.clause_early("CHAT-009")
def test_empty_content_keeps_its_turn() -> None:
    without = preparer().prepare(conversation([user("a")]))
    with_empty = preparer().prepare(conversation([user(""), user("a")]))
    assert "<|im_start|>user\n<|im_end|>\n<|im_start|>user\na" in with_empty.text
    assert with_empty.token_count > without.token_count


@pytest.mark.clause_early("TMPL-012")
def test_another_template_replaces_the_first() -> None:
    own = preparer("{{ '<|im_start|>' }}marker{{ messages[0].content }}{{ '<|im_end|>' }}")
    prompt = own.prepare(conversation([user("hello")]))
    control = tokenizer().control_tokens
    assert prompt.text == "<|im_start|>markerhello<|im_end|>"
    assert prompt.tokens[[0, -1]].tolist() == [control["<|im_start|>"], control["<|im_end|>"]]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "no messages"),
        ([{"role": "system", "content": "x"}], "no user message"),
        ([user("<tool_response>\nx\n</tool_response>")], "no user message"),
    ],
)
def test_what_the_template_raises_is_an_invalid_prompt(messages: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        preparer().prepare(conversation(messages))
    assert (caught.value.code, caught.value.param) == ("invalid_prompt", "messages")


class TestFeatures:
    """What templates written for transformers use."""

    def render(self, source: str, **options: Any) -> str:
        return preparer(source).prepare(conversation([user("a"), user("b")], **options)).text

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("{% for m in messages %}\n{% if loop.first %}{% continue %}{% endif %}-\n{% endfor %}", "-\n"),
            ("{% for m in messages %}{% break %}{% endfor %}x", "x"),
            ("    {% if true %}\nx\n    {% endif %}\n", "x\n"),
            ('{{ {"b": "é<>&", "a": [1, none]} | tojson }}', '{"b": "é<>&", "a": [1, null]}'),
            ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
            ("{% set a = namespace(b=1) %}{% for _ in [1, 2] %}{% set a.b = 9 %}{% endfor %}{{ a.b }}", "9"),
            ("{{ dict(a=1).a }}{{ strftime_now('%%') }}", "1%"),
            ("{% generation %}{{ messages | length }}{% endgeneration %}", "2"),
            ("{{ messages[-1].content }}{{ messages[::-1][0].content }}{{ (messages|last).content }}", "bbb"),
            ("{{ messages | map(attribute='content') | join(',') }}", "a,b"),
            ("{{ 'x' ~ 1 ~ none }}{{ eos_token }}", "x1None<|im_end|>"),
            ("{{ foo is none }}{{ bar is defined }}", "TrueFalse"),
            ("{{ messages is iterable and messages is not mapping and messages is not string }}", "True"),
            ("{{ (messages | tojson)[:30] }}", '[{"role": "user", "content": "'),
            ("{{ {'a': [1]} | tojson | safe }}{{ [2] | string }}{{ ' x ' | trim }}", '{"a": [1]}[2]x'),
            ("{{ 'a-b'.split('-')[-1] }}{{ 'xay'.replace('a', '') }}{{ ['p', 'q'] | first }}", "bxyp"),
            ("{% macro m(a, b=2) %}{{ a + b }}{% endmacro %}{{ m(1) }}{{ m(1, b=3) }}", "34"),
            ("{{ tools is defined and not tools }}{{ bos_token is defined }}", "TrueFalse"),
            ("{{ messages[0]['role'] }}{{ messages[5] is defined }}", "userFalse"),
            ("{{ (messages | rejectattr('content', 'equalto', 'a') | list)[0].content }}", "b"),
            ("{% for a in messages + messages %}{{ a.content }}{% endfor %}", "abab"),
        ],
    )  # fmt: skip
    def test_feature(self, source: str, expected: str) -> None:
        assert self.render(source, foo=None) == expected

    @pytest.mark.clause_early("TMPL-020")
    def test_other_nulls_stay_none(self) -> None:
        assert self.render("{{ foo is none }}", foo=None) == "True"


class TestRefusals:
    """What a template cannot do, at load or as an invalid prompt."""

    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages.__class__ }}{{ ''.__class__.__mro__[1] | length }}",
            "{{ messages[0].update({'role': 'system'}) }}",
            "{{ range(1000000) | list | length }}",
            "{{ 'a' * 1000000000000 }}",
            "{{ 9 ** 99999999 }}",
            "{{ '%1000000000d' % 1 }}",
            "{{ '%*d' % (100000000, 1) }}",
            "{% set ns = namespace(_a=1) %}",
            "{% set ns = namespace() %}{% set ns._a = 1 %}",
            "{% include 'other' %}",
            "{{ undefined_name.member }}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'x' * 100000 }}{% endfor %}{% endfor %}",
        ],
    )
    def test_sandbox(self, source: str) -> None:
        with pytest.raises(RequestError) as caught:
            preparer(source).prepare(conversation([user("a")]))
        assert caught.value.code == "invalid_prompt"

    @pytest.mark.parametrize(
        ("source", "where"),
        [
            ("a\n{% if %}", "chat_template.jinja line 2"),
            ("{{ x | nofilter }}", "chat_template.jinja line 1"),
            (b"\xff\xfe", "chat_template.jinja"),
            ("x" * (16 * 1024 * 1024 + 1), "chat_template.jinja"),
            ("{{ 'a\ud800' }}", "chat_template.jinja"),
        ],
    )
    def test_load(self, source: str | bytes, where: str) -> None:
        with pytest.raises(ArtifactError) as caught:
            template(source)
        assert caught.value.where == where

    def test_untraceable_control_tokens(self) -> None:
        with pytest.raises(ArtifactError, match=r"im_start.*told from input"):
            preparer("{{ '<|im_%s|>%s' % ('start', messages[0].content) }}")


@given(st.data())
def test_a_damaged_template_raises_nothing_but_our_errors(data: st.DataObject) -> None:
    source = template_vectors.template_source()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(source)))
        stop = data.draw(st.integers(start, min(start + 20, len(source))))
        insert = data.draw(
            st.sampled_from(["", "{% ", " %}", "{{", "}}", "'", "(", "messages", "loop", " | ", "-", "#}"])
        )
        source = source[:start] + insert + source[stop:]
    try:
        own = preparer(source)
    except ArtifactError:
        return
    turns = [user("q"), assistant("a", "r", tool_calls=[template_vectors.call("f", {"k": 1})]), user("z")]
    for messages in (turns, [*turns, assistant("b"), user("y")]):
        try:
            prompt = own.prepare(conversation(messages, [template_vectors.TIDE]))
        except RequestError:
            continue
        assert tokenizer().decode(prompt.tokens.tolist()) == prompt.text


def test_arguments_of_history_are_rendered_from_their_mapping() -> None:
    """Public report QwenLM/Qwen3#1894: a mapping is what the template iterates."""
    turns = [
        user("q"),
        assistant("", tool_calls=[template_vectors.call("look", {"city": "Lima"})]),
        template_vectors.result("ok"),
    ]
    text = preparer().prepare(conversation(turns)).text
    assert "<function=look>\n<parameter=city>\nLima\n</parameter>\n</function>" in text
    assert json.dumps({"city": "Lima"}) not in text


def test_a_message_holds_only_what_it_has() -> None:
    from ninfer.prompt.message_view import message_dict

    assert message_dict(message(user("a"))) == {"role": "user", "content": "a"}
    assert message_dict(message(template_vectors.CALLED)) == template_vectors.CALLED
