"""Prepared prompts: channel, positions, continuation, refusals, and the segment cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.prompt import Conversation, MediaPart, Message, TextPart
from ninfer.prompt.segments import SegmentCache
from tests.prompt.building import assistant, conversation, message, preparer, tokenizer, user
from tests.prompt.template_vectors import call, result

OFF = {"enable_thinking": False}


class TestInitialChannel:
    """Reasoning iff generation starts inside the template's open think block."""

    @pytest.mark.parametrize(
        ("messages", "options", "channel"),
        [
            ([user("x")], {}, "reasoning"),
            ([user("x")], OFF, "content"),
            ([user("x")], {"reasoning_effort": "none"}, "content"),
            ([user("<think>")], OFF, "content"),
            ([user("x"), assistant("so")], OFF, "content"),
            ([user("x"), assistant("<think>\nso")], OFF, "content"),
        ],
    )
    def test_maintained(self, messages: list[dict[str, Any]], options: dict[str, Any], channel: str) -> None:
        prompt = preparer().prepare(conversation(messages, **options))
        assert prompt.initial_channel == channel
        assert prompt.thinking == (channel == "reasoning")

    @pytest.mark.parametrize(
        ("source", "channel"),
        [
            ("<|im_start|>assistant\n<think>\n", "reasoning"),
            ("<|im_start|>assistant\n<think>", "reasoning"),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "content"),
            ("<|im_start|>assistant\n<think>\n<|im_end|>", "content"),
            ("<|im_start|>assistant\n", "content"),
            ("<|im_start|>assistant\ntext <think>", "content"),
            ("<|im_start|>user\n<think>\n", "content"),
            ("<think>\n", "content"),
            ("", "content"),
            ("<|im_start|>assistant\n{{ messages[0].content }}", "content"),
            ("<|im_start|>assistant\n<think>\n{{ 'word ' * 300 }}", "reasoning"),
        ],
    )
    def test_any_template(self, source: str, channel: str) -> None:
        # A statement keeps Jinja from dropping the last line break.
        prompt = preparer(source + "{{ '' }}").prepare(conversation([user("<think>\n")]))
        assert prompt.initial_channel == channel


def test_positions_of_text_are_equal_on_all_axes() -> None:
    own = preparer()
    for text in ("short", "word " * 3000):
        prompt = own.prepare(conversation([user(text)]))
        assert prompt.positions.shape == (3, prompt.token_count)
        assert prompt.positions.dtype == prompt.tokens.dtype == np.int32
        assert (prompt.positions == np.arange(prompt.token_count)).all()
        with pytest.raises(ValueError, match="read-only"):
            prompt.tokens[0] = 0


class TestContinuation:
    """A final assistant message goes on where it ends."""

    @pytest.mark.clause_early("TMPL-003", "TMPL-006")
    @pytest.mark.parametrize(
        "options", [OFF, {"reasoning_effort": "none"}, {"kwargs": 1}], ids=["field", "effort", "kwargs"]
    )
    def test_in_place(self, options: dict[str, Any]) -> None:
        from ninfer.prompt import TemplateOptions

        messages = (message(user("6*7?")), message(assistant("The answer is")))
        if "kwargs" in options:
            asked = Conversation(messages, options=TemplateOptions(kwargs=OFF))
        else:
            asked = Conversation(messages, options=TemplateOptions(**options))
        prompt = preparer().prepare(asked)
        assert prompt.text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nThe answer is")
        assert prompt.text.count("<|im_start|>assistant") == 1
        assert tokenizer().decode(prompt.tokens.tolist()) == prompt.text

    @pytest.mark.parametrize("ending", ["```python\n", "x = ", "\n\n"])
    def test_white_space_at_the_end_is_kept(self, ending: str) -> None:
        prompt = preparer().prepare(conversation([user("q"), assistant("a" + ending)], **OFF))
        assert prompt.text.endswith("</think>\n\na" + ending)

    def test_a_template_that_knows_of_no_continuation(self) -> None:
        turn = "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
        source = "{% for m in messages %}" + turn + "{% endfor %}bye"
        prompt = preparer(source).prepare(conversation([user("q"), assistant("so far ")], **OFF))
        assert prompt.text == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nso far "
        assert tokenizer().decode(prompt.tokens.tolist()) == prompt.text

    def test_a_template_that_shows_the_message_twice(self) -> None:
        source = "{{ messages[-1].content }}!{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
        own = preparer(source)
        for _ in range(2):
            prompt = own.prepare(conversation([user("q"), assistant("so")], **OFF))
            assert prompt.text == "so!<|im_start|>q<|im_start|>so"
            assert tokenizer().decode(prompt.tokens.tolist()) == prompt.text

    @pytest.mark.clause_early("TMPL-004", "TMPL-005")
    @pytest.mark.parametrize(
        ("last", "options", "says"),
        [
            (message(assistant("x")), {}, "thinking disabled"),
            (message(assistant("x")), {"enable_thinking": True}, "thinking disabled"),
            (Message("assistant", (TextPart("x"), MediaPart("image", "data:"))), OFF, "media"),
            (message(assistant("", tool_calls=[call("f", {})])), OFF, "tool calls"),
        ],
    )
    def test_refusals(self, last: Message, options: dict[str, Any], says: str) -> None:
        from ninfer.prompt import TemplateOptions

        asked = Conversation((message(user("q")), last), options=TemplateOptions(**options))
        for own in (preparer(), preparer(enable_thinking=False)):
            with pytest.raises(RequestError, match=says) as caught:
                own.prepare(asked)
            assert (caught.value.code, caught.value.param) == ("invalid_prompt", "messages")

    def test_a_template_that_drops_the_message(self) -> None:
        with pytest.raises(RequestError, match="not rendered"):
            preparer("x").prepare(conversation([user("q"), assistant("a")], **OFF))


def test_a_final_assistant_message_may_be_followed_by_a_new_turn() -> None:
    """Not continued: whatever thinking is, the prompt ends where it would if the turn had more messages."""
    asked = conversation([user("x"), assistant("so")])
    prompt = preparer().prepare(dataclasses.replace(asked, continues_final=False))
    assert prompt.text.endswith("so<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert prompt.initial_channel == "reasoning"


def test_media_need_vision() -> None:
    picture = Message("user", (TextPart("look"), MediaPart("image", "data:image/png;base64,AA==")))
    with pytest.raises(RequestError) as caught:
        preparer().prepare(Conversation((message(user("a")), picture)))
    assert (caught.value.code, caught.value.param) == ("vision_disabled", "messages[1].content")


BAD = "a\ud800"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (conversation([user("ok"), assistant("x"), user(BAD)]), "messages[2].content"),
        (conversation([user("ok"), assistant("x", BAD), user("y")]), "messages[1].reasoning_content"),
        (
            conversation([user("q"), assistant("", tool_calls=[call("f", {BAD: 1})]), result("r")]),
            "messages[1].tool_calls[0]",
        ),
        (
            conversation([user("q")], [{"type": "function", "function": {"name": "f", "description": BAD}}]),
            "tools[0]",
        ),
    ],
)
def test_a_lone_surrogate_names_its_field(asked: Conversation, param: str) -> None:
    own = preparer()
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            own.prepare(asked)
        assert (caught.value.code, caught.value.param) == ("invalid_value", param)
    assert own.prepare(conversation([user("fine")])).token_count > 0


def test_a_surrogate_in_kwargs_names_them() -> None:
    with pytest.raises(RequestError) as caught:
        preparer("{{ note }}").prepare(conversation([user("q")], note=BAD))
    assert caught.value.param == "chat_template_kwargs"


class TestSegmentCache:
    """It changes the cost of encoding and nothing else."""

    TEXTS = st.lists(st.text("ab \n", max_size=6), max_size=8)

    @given(st.lists(TEXTS, max_size=8), st.integers(0, 1500))
    def test_results_equal_encoding_and_the_bound_holds(self, rounds: list[list[str]], capacity: int) -> None:
        cache = SegmentCache(tokenizer().encode_ordinary, capacity)
        for texts in rounds:
            assert [ids.tolist() for ids in cache.encode(texts)] == [tokenizer().encode(t) for t in texts]
            assert cache.held_bytes <= capacity

    def test_known_text_is_not_encoded_again(self) -> None:
        encoded: list[str] = []

        def encode(texts: Any) -> Any:
            encoded.extend(texts)
            return tokenizer().encode_ordinary(texts)

        cache = SegmentCache(encode, 1_000_000)
        cache.encode(["a", "b", "a"])
        cache.encode(["b", "c"])
        assert encoded == ["a", "b", "c"]

    def test_the_least_recently_used_goes_first(self) -> None:
        encoded: list[str] = []

        def encode(texts: Any) -> Any:
            encoded.extend(texts)
            return tokenizer().encode_ordinary(texts)

        cache = SegmentCache(encode, 450)  # two short entries
        for text in ("a", "b", "a", "c", "a", "b"):
            cache.encode([text])
        assert encoded == ["a", "b", "c", "b"]

    def test_a_surrogate_leaves_the_cache_usable(self) -> None:
        cache = SegmentCache(tokenizer().encode_ordinary, 1000)
        with pytest.raises(ValueError, match="surrogate"):
            cache.encode(["a", BAD])
        assert cache.encode(["a"])[0].tolist() == tokenizer().encode("a")
