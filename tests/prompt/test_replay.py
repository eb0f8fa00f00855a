"""Follow-up turns skip shared iterations and still give exactly the prompt of a fresh rendering."""

from __future__ import annotations

import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.prompt import Conversation, PreparedPrompt, PromptPreparer
from ninfer.prompt import prepare as prepare_module
from ninfer.prompt.history import History, message_keys, shared_beginning
from ninfer.prompt.rendering import Rendering
from tests.prompt.building import assistant, conversation, message, preparer, user
from tests.prompt.template_vectors import call, result
from tests.support.tokenizer import template_source

TURN = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"

# The structure of the templates that checkpoints of this family bring along.
FAMILY = """
{%- set seen = namespace(value=0) %}
{%- macro render(content, count) %}
    {%- if content is string %}{{- content }}{%- endif %}
    {%- if count %}{%- set seen.value = seen.value + 1 %}{%- endif %}
{%- endmacro %}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + render(messages[0].content, false) + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == 'user' %}
        {%- set content = render(message.content, false)|trim %}
        {%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
            {%- set ns.multi_step_tool = false %}
            {%- set ns.last_query_index = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = render(message.content, true)|trim %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning) %}
                {{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}
            {%- else %}
                {{- '<|im_start|>assistant\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{{- seen.value }}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}
"""

TEMPLATES = {
    "maintained": template_source(),
    "family": FAMILY,
    "looks at the length": "{% for m in messages %}" + TURN + "{{ loop.length }}{% endfor %}" + END,
    "counts from the end": "{% for m in messages %}" + TURN + "{{ loop.revindex }}{% endfor %}" + END,
    "asks for all": "{% for m in messages %}" + TURN + "{{ messages | length }}{% endfor %}" + END,
    "looks at the last": "{% for m in messages %}" + TURN + "{{ messages[-1].content }}{% endfor %}" + END,
    "looks two ahead": "{% for m in messages %}"
    + TURN
    + "{{ (messages[loop.index0 + 2] or {}).content }}{% endfor %}"
    + END,
    "sees its neighbours": "{% for m in messages %}"
    + TURN
    + "{{ (loop.previtem or m).content }}|{{ (loop.nextitem or m).content }}|{{ loop.last }}{% endfor %}"
    + END,
    "knows the end beforehand": "{% set last = messages[-1].content %}{% for m in messages %}"
    + TURN
    + "{{ last }}{% endfor %}"
    + END,
    "carries text along": "{% set ns = namespace(t='') %}{% for m in messages %}"
    + TURN
    + "{% set ns.t = ns.t + m.content[:1] %}{{ ns.t }}{% endfor %}{{ ns.t }}"
    + END,
    "carries a list along": "{% set ns = namespace(t=[]) %}{% for m in messages %}"
    + TURN
    + "{% set ns.t = ns.t + [m.content[:1]] %}{{ ns.t }}{% endfor %}"
    + END,
    "compares the other way": "{% set ns = namespace(n=messages|length) %}{% for m in messages %}"
    + TURN
    + "{{ ns.n - 3 < loop.index }}{{ ns.n <= loop.index0 }}{{ 3 > ns.n }}{{ ns.n == 4 }}{% endfor %}"
    + END,
    "compares outcomes": "{% set ns = namespace(n=messages|length) %}{% for m in messages %}"
    + TURN
    + "{{ ns.n > loop.index }}{{ loop.index + 2 >= ns.n }}{{ 5 <= ns.n }}{{ ns.n < 3 }}{% endfor %}"
    + END,
    "reads a member in a macro": "{% set ns = namespace(n=messages|length) %}"
    "{% macro f() %}{{ ns.n }}{% endmacro %}{% for m in messages %}" + TURN + "{{ f() }}{% endfor %}" + END,
    "asks for a member that is not there": "{% set ns = namespace() %}"
    "{% if messages|length > 3 %}{% set ns.a = 1 %}{% endif %}"
    "{% for m in messages %}" + TURN + "{{ ns.a }}{% endfor %}" + END,
    "makes namespaces": "{% for m in messages %}{% set ns = namespace(a=loop.index) %}"
    + TURN
    + "{{ ns.a }}{% endfor %}"
    + END,
    "notices changes": "{% for m in messages %}{% if loop.changed(m.role) %}!{% endif %}"
    + TURN
    + "{% endfor %}"
    + END,
    "cycles": "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}"
    + TURN
    + "{% endfor %}"
    + END,
    "stops early": "{% for m in messages %}"
    + TURN
    + "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}"
    + END,
    "leaves some out": "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
    + TURN
    + "{% endfor %}"
    + END,
    "cuts the messages": "{% set messages = messages[1:] %}{% for m in messages %}"
    + TURN
    + "{% endfor %}"
    + END,
    "loops twice": "{% for m in messages %}{{ m.role }}{% endfor %}{% for m in messages %}"
    + TURN
    + "{% endfor %}"
    + END,
    "writes no control tokens": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "ends with text": "{% for m in messages %}" + TURN + "tail{{ m.content * 3000 }}{% endfor %}" + END,
    "nested loop named loop": "{% for m in messages %}"
    + TURN
    + "{% for c in m.content %}{{ loop.index }}{{ loop.last }}{% endfor %}{% endfor %}"
    + END,
    "no loop variable": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}" + END,
}  # fmt: skip

# How many of 41 messages a follow-up skips; what looked at the end of the conversation runs again.
SKIPPED = dict.fromkeys(TEMPLATES, 0) | {
    "maintained": 41,
    "family": 41,
    "looks two ahead": 39,
    "sees its neighbours": 40,
    "carries text along": 41,
    "compares outcomes": 38,
    "asks for a member that is not there": 41,
    "stops early": 2,
    "leaves some out": 41,
    "writes no control tokens": 41,
    "nested loop named loop": 41,
    "no loop variable": 41,
}


@functools.cache
def pair(name: str) -> tuple[PromptPreparer, PromptPreparer]:
    """A preparer that remembers and one that does not."""
    remembering, forgetful = preparer(TEMPLATES[name]), preparer(TEMPLATES[name])
    forgetful._history = History(0, 0)
    return remembering, forgetful


def outcome(prepare: PromptPreparer, asked: Conversation) -> Any:
    try:
        prompt = prepare.prepare(asked)
    except RequestError as error:
        return error.code, error.message
    return prompt.text, prompt.tokens.tolist(), prompt.initial_channel, prompt.positions.tolist()


TEXTS = st.sampled_from(["a", "b", "", "<think>", " c\n", "<tool_response>\nr\n</tool_response>"])
ENTRIES = st.one_of(
    TEXTS.map(user),
    st.builds(assistant, TEXTS, st.none() | TEXTS),
    TEXTS.map(result),
    st.builds(lambda t: {"role": "system", "content": t}, TEXTS),
    st.sampled_from([{"a": 1}, {"a": True}, {"a": 1.0}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": {}}]).map(
        lambda arguments: assistant("", tool_calls=[call("f", arguments)])
    ),
)
OPTIONS = st.sampled_from(
    [
        *({}, {}, {}),
        {"preserve_thinking": False},
        {"enable_thinking": False},
        {"reasoning_effort": "low"},
        {"k": 1},
        {"k": True},
    ]
)
TOOLS = st.sampled_from([None, None, [{"type": "function", "function": {"name": "f"}}]])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[dict[str, Any]], Any, dict[str, Any]]]:
    """A conversation as clients send it again and again: longer, edited, cut, with other options."""
    messages = draw(st.lists(ENTRIES, min_size=1, max_size=6))
    requests = []
    options, tools = draw(OPTIONS), draw(TOOLS)
    for _ in range(draw(st.integers(2, 6))):
        requests.append((list(messages), tools, options))
        step = draw(st.sampled_from(["more", "more", "more", "edit", "cut", "options"]))
        if step == "more":
            messages = [*messages, *draw(st.lists(ENTRIES, min_size=1, max_size=3))]
        elif step == "edit":
            at = draw(st.integers(0, len(messages) - 1))
            messages = [*messages[:at], draw(ENTRIES), *messages[at + 1 :]]
        elif step == "cut":
            messages = messages[: draw(st.integers(1, len(messages)))]
        else:
            options, tools = draw(OPTIONS), draw(TOOLS)
    return requests


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_remembered_prompt_equals_a_fresh_one(name: str) -> None:
    remembering, forgetful = pair(name)

    examples = settings.default.max_examples  # type: ignore[union-attr]

    @settings(max_examples=examples if name in ("maintained", "family") else examples // 2)
    @given(histories())
    def check(requests: list[tuple[list[dict[str, Any]], Any, dict[str, Any]]]) -> None:
        for messages, tools, options in requests:
            asked = conversation(messages, tools, **options)
            assert outcome(remembering, asked) == outcome(forgetful, asked)

    check()


class Spy(Rendering):
    """Remembers the last rendering."""

    last: Rendering

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Spy.last = self


def long_chat(turns: int) -> list[dict[str, Any]]:
    messages = []
    for turn in range(turns):
        messages += [user(f"question {turn}"), assistant(f"answer {turn}", f"thought {turn}")]
    return [*messages, user("last")]


@pytest.mark.parametrize("name", TEMPLATES)
def test_which_templates_skip_what_a_follow_up_shares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_module, "Rendering", Spy)
    remembering = preparer(TEMPLATES[name])
    messages = long_chat(20)
    remembering.prepare(conversation(messages))
    remembering.prepare(conversation([*messages, assistant("new", "why"), user("and now")]))
    assert len(messages) == 41
    assert Spy.last.skipped == SKIPPED[name]


def test_dropped_reasoning_is_replayed_up_to_the_turn_that_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public report ninfer#14: with reasoning dropped, reuse goes up to the assistant's header."""
    monkeypatch.setattr(prepare_module, "Rendering", Spy)
    remembering = preparer()
    first = [*long_chat(5), assistant("", "r1", tool_calls=[call("f", {})]), result("x")]
    remembering.prepare(conversation(first, preserve_thinking=False))
    second = [*first, assistant("done", "r2"), user("next")]
    prompt = remembering.prepare(conversation(second, preserve_thinking=False))
    assert Spy.last.skipped == 11
    assert prompt.text == preparer().prepare(conversation(second, preserve_thinking=False)).text


@pytest.mark.clause_early("TMPL-003")
def test_kept_reasoning_makes_every_prompt_a_beginning_of_the_next() -> None:
    """Public report QwenLM/Qwen3.8#131: prompt and reply are the beginning of the next prompt."""
    own = preparer()
    messages = [user("One?")]
    for turn in range(4):
        before = own.prepare(conversation(messages))
        messages += [assistant(f"answer {turn}", f"thought {turn}"), user(f"question {turn}")]
        after = own.prepare(conversation(messages))
        reply = f"thought {turn}\n</think>\n\nanswer {turn}<|im_end|>"
        assert after.text.startswith(before.text + reply)
        assert after.tokens[: before.token_count].tolist() == before.tokens.tolist()


def test_arguments_in_another_order_are_another_message() -> None:
    one = message(assistant("", tool_calls=[call("f", {"a": 1, "b": 2})]))
    other = message(assistant("", tool_calls=[call("f", {"b": 2, "a": 1})]))
    assert shared_beginning(message_keys([one]), message_keys([one])) == 1
    assert shared_beginning(message_keys([one]), message_keys([other])) == 0


def test_threads_share_one_preparer() -> None:
    shared, alone = preparer(), preparer()

    def chat(number: int) -> list[PreparedPrompt]:
        return [
            shared.prepare(conversation([user(f"chat {number}"), *long_chat(turns)], k=number % 3))
            for turns in range(6)
        ]

    with ThreadPoolExecutor(8) as pool:
        chats = list(pool.map(chat, range(16)))
    for number, prompts in enumerate(chats):
        for turns, prompt in enumerate(prompts):
            fresh = alone.prepare(conversation([user(f"chat {number}"), *long_chat(turns)], k=number % 3))
            assert (prompt.text, prompt.tokens.tolist()) == (fresh.text, fresh.tokens.tolist())


def test_a_follow_up_costs_little_for_its_history() -> None:
    """Counted in executed lines: of the history only a comparison is left."""
    few, many = lines_of_a_follow_up(8), lines_of_a_follow_up(128)
    assert many - few <= 240 * 25  # to compare a message with its predecessor
    assert many < 0.2 * lines_of_a_follow_up(128, remembered=False)


def lines_of_a_follow_up(turns: int, *, remembered: bool = True) -> int:
    own = preparer()
    messages = long_chat(turns)
    if remembered:
        own.prepare(conversation(messages))
    asked = conversation([*messages, assistant("new", "why"), user("and now")])
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        own.prepare(asked)
    finally:
        sys.settrace(previous)
    return count
