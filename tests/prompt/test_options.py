"""Template options: precedence, contradictions, the nearest reasoning effort, probing."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.prompt import TemplateOptions
from ninfer.prompt.options import nearest_effort, resolve_options
from ninfer.spec import document
from tests.prompt.building import conversation, preparer, user

QWEN = ("low", "medium", "xhigh")
CONFLICT = "conflicting_template_option"
EFFORTS = document("prompt")["options"]["reasoning_efforts"]


def resolved(
    request: dict[str, Any], kwargs: dict[str, Any] | None = None, **defaults: Any
) -> tuple[dict[str, Any], bool]:
    result = resolve_options(
        TemplateOptions(**request, kwargs=kwargs or {}), TemplateOptions(**defaults), QWEN
    )
    return dict(result.variables), result.thinking_refused


@pytest.mark.clause_early("THINK-016", "THINK-026", "THINK-027", "TMPL-019")
@pytest.mark.parametrize(
    ("request_", "kwargs", "defaults", "expected", "refused"),
    [
        ({}, {}, {}, {}, False),
        ({"enable_thinking": False}, {}, {}, {"enable_thinking": False}, True),
        ({}, {"enable_thinking": False}, {}, {"enable_thinking": False}, True),
        ({"enable_thinking": False}, {"enable_thinking": False}, {}, {"enable_thinking": False}, True),
        ({}, {"enable_thinking": None, "preserve_thinking": None}, {}, {}, False),
        ({}, {"foo": None, "bar": [1]}, {}, {"foo": None, "bar": [1]}, False),
        ({"reasoning_effort": "none"}, {}, {}, {"enable_thinking": False}, True),
        ({"reasoning_effort": "none"}, {}, {"enable_thinking": True}, {"enable_thinking": False}, True),
        ({"reasoning_effort": "low"}, {}, {}, {"reasoning_effort": "low"}, False),
        ({}, {"reasoning_effort": "high"}, {}, {"reasoning_effort": "xhigh"}, False),
        ({}, {}, {"enable_thinking": False}, {"enable_thinking": False}, False),
        ({"enable_thinking": True}, {}, {"enable_thinking": False}, {"enable_thinking": True}, False),
        ({"preserve_thinking": False}, {}, {"preserve_thinking": True}, {"preserve_thinking": False}, False),
        ({}, {}, {"preserve_thinking": True}, {"preserve_thinking": True}, False),
        ({}, {}, {"reasoning_effort": "max"}, {"reasoning_effort": "xhigh"}, False),
        ({}, {}, {"reasoning_effort": "none"}, {"enable_thinking": False}, False),
        ({"enable_thinking": True}, {}, {"reasoning_effort": "none"}, {"enable_thinking": True}, False),
        ({"enable_thinking": False}, {}, {"reasoning_effort": "high"}, {"enable_thinking": False}, True),
        ({"reasoning_effort": "low"}, {}, {"reasoning_effort": "high"}, {"reasoning_effort": "low"}, False),
        (
            {"reasoning_effort": "low"},
            {},
            {"enable_thinking": False},
            {"enable_thinking": True, "reasoning_effort": "low"},
            False,
        ),
        ({"add_vision_id": True}, {}, {}, {"add_vision_id": True}, False),
    ],
)
def test_what_the_template_gets(
    request_: dict[str, Any],
    kwargs: dict[str, Any],
    defaults: dict[str, Any],
    expected: dict[str, Any],
    refused: bool,
) -> None:
    assert resolved(request_, kwargs, **defaults) == (expected, refused)


@pytest.mark.clause_early("THINK-018", "TMPL-018", "TMPL-021")
@pytest.mark.parametrize(
    ("request_", "kwargs", "code", "param"),
    [
        ({"enable_thinking": True, "reasoning_effort": "none"}, {}, CONFLICT, "reasoning_effort"),
        ({"enable_thinking": False, "reasoning_effort": "high"}, {}, CONFLICT, "reasoning_effort"),
        ({"enable_thinking": True}, {"enable_thinking": False}, CONFLICT, "enable_thinking"),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}, CONFLICT, "reasoning_effort"),
        ({"enable_thinking": True}, {"reasoning_effort": "none"}, CONFLICT, "reasoning_effort"),
        ({}, {"enable_thinking": "no"}, "invalid_type", "chat_template_kwargs.enable_thinking"),
        ({}, {"preserve_thinking": 1}, "invalid_type", "chat_template_kwargs.preserve_thinking"),
        ({}, {"reasoning_effort": "ultra"}, "invalid_value", "chat_template_kwargs.reasoning_effort"),
        ({}, {"reasoning_effort": ["low"]}, "invalid_value", "chat_template_kwargs.reasoning_effort"),
        *(
            ({}, {name: None}, "invalid_value", f"chat_template_kwargs.{name}")
            for name in ("messages", "tools", "add_generation_prompt", "continue_final_message", "eos_token")
        ),
    ],
)  # fmt: skip
def test_what_is_refused(request_: dict[str, Any], kwargs: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        resolved(request_, kwargs)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.clause_early("THINK-019")
@pytest.mark.parametrize(
    ("wanted", "accepted", "given_"),
    [
        ("high", QWEN, "xhigh"),
        ("max", QWEN, "xhigh"),
        ("minimal", QWEN, "low"),
        ("medium", QWEN, "medium"),
        ("minimal", ("max",), "max"),
        ("max", ("minimal", "low"), "low"),
        ("medium", ("low", "high"), "high"),
        ("high", (), "high"),
    ],
)
def test_the_nearest_effort_ties_upward(wanted: str, accepted: tuple[str, ...], given_: str) -> None:
    assert nearest_effort(wanted, accepted) == given_


class TestProbing:
    """Which efforts a template takes is tried once, when the preparer is made."""

    def test_the_maintained_template(self) -> None:
        assert preparer().accepted_efforts == QWEN

    @pytest.mark.clause_early("THINK-019", "THINK-022")
    def test_refused_efforts_render_as_their_neighbours(self) -> None:
        own = preparer()
        text = {
            effort: own.prepare(conversation([user("x")], reasoning_effort=effort)).text for effort in EFFORTS
        }
        assert text["high"] == text["max"] == text["xhigh"]
        assert text["minimal"] == text["low"]
        assert len({text["low"], text["medium"], text["xhigh"]}) == 3
        assert preparer(reasoning_effort="high").prepare(conversation([user("x")])).text == text["xhigh"]

    @pytest.mark.clause_early("THINK-023")
    def test_a_template_that_cannot_be_tried_keeps_the_effort_and_its_error(self) -> None:
        picky = (
            "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"
            "{{ reasoning_effort }}"
        )
        own = preparer(picky)
        assert own.accepted_efforts == ()
        system = {"role": "system", "content": "s"}
        asked = conversation([system, user("x")], reasoning_effort="high")
        assert own.prepare(asked).text == "high"
        with pytest.raises(RequestError, match="system first"):
            own.prepare(conversation([user("x")], reasoning_effort="high"))

    @pytest.mark.clause_early("THINK-023")
    def test_a_template_that_refuses_all_keeps_its_error(self) -> None:
        own = preparer(
            "{% if reasoning_effort is defined %}{{ raise_exception('no ' ~ reasoning_effort) }}{% endif %}x"
        )
        assert own.accepted_efforts == ()
        with pytest.raises(RequestError, match="no high"):
            own.prepare(conversation([user("x")], reasoning_effort="high"))
        assert own.prepare(conversation([user("x")])).text == "x"

    @pytest.mark.clause_early("THINK-020")
    def test_requests_render_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ninfer.prompt import ChatTemplate

        renders = []
        original = ChatTemplate.render

        def counting(self: ChatTemplate, *args: Any) -> None:
            renders.append(1)
            original(self, *args)

        monkeypatch.setattr(ChatTemplate, "render", counting)
        own = preparer()
        assert len(renders) == len(EFFORTS)
        own.prepare(conversation([user("x")], reasoning_effort="high"))
        assert len(renders) == len(EFFORTS) + 1
