"""The Jinja sandbox that chat templates run in: transformers' features, provenance, loop replay, limits.

Owns what template code can call and how its text keeps its origin. Covered: no attribute or method that
starts with an underscore, no mutation of messages, no files or imports, bounded ``range`` and repetition.
Not covered: a template that loops for long over bounded ranges; templates come from whoever runs the server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import runtime
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from ninfer import spec
from ninfer.prompt import provenance
from ninfer.prompt.marking import Marker, instrument_loop
from ninfer.prompt.message_view import MessageView
from ninfer.prompt.namespace import TemplateNamespace
from ninfer.prompt.rendering import LoopEntry, Rendering
from ninfer.prompt.replay import ABSENT, COMPARISONS

_DICT_ATTRIBUTES = frozenset(dir(dict))


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs one chat template; ``rendering`` is what the current thread renders."""

    intercepted_binops = frozenset({"*", "**", "%"})
    concat = staticmethod(provenance.join)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        self._current = threading.local()
        self._limit: int = spec.document("prompt")["template"]["maximum_output_characters"]
        self.replayable = False
        self.filters.update(tojson=_to_json, join=_join, replace=_replace, safe=str)
        self.filters.pop("random")
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=self._strftime_now,
            namespace=self._namespace,
            dict=TemplateDict(),
        )

    def load(self, source: str) -> jinja2.Template:
        """Compile ``source``. Errors: ``jinja2.TemplateSyntaxError``."""
        tree = self.parse(source)
        marker = Marker()
        tree = marker.visit(tree)
        for name, text in marker.literals.items():
            setattr(self, name, text)
        self.replayable = instrument_loop(tree)
        template = self.from_string(tree.set_environment(self))
        template.root_render_func.__globals__["LoopContext"] = LoopContext
        return template

    @property
    def rendering(self) -> Rendering:
        """The rendering under way in this thread."""
        rendering: Rendering = self._current.rendering
        return rendering

    @rendering.setter
    def rendering(self, rendering: Rendering) -> None:
        self._current.rendering = rendering

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As the sandbox does it, without raising and catching for every member of a message."""
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """As the sandbox does it; input text keeps the origin of what is written into it."""
        writes = isinstance(__obj, BuiltinMethodType) and __obj.__name__ in ("replace", "join")
        if writes and type(__obj.__self__) is str:
            __obj = getattr(provenance.Traced(__obj.__self__), __obj.__name__)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Bounds what repetition, powers and format widths can make."""
        if operator == "*":
            self._bound_product(left, right)
        elif operator == "**" and abs(right) > 64:
            raise SecurityError("an exponent may be at most 64")
        elif operator == "%" and isinstance(left, str) and _wide(left):
            raise SecurityError("a format width may have at most four digits")
        return super().call_binop(context, operator, left, right)

    def enter_loop(self, messages: Any, captured: dict[str, Any]) -> Iterable[Any]:
        """The iterable of the instrumented message loop."""
        return self.rendering.enter_loop(messages, captured)

    def compare(self, namespace: Any, name: str, operator: str, other: Any, mirrored: bool) -> bool:
        """``namespace.name <operator> other`` (or the other way round), noted by its outcome."""
        if not isinstance(namespace, TemplateNamespace):
            value = self.getattr(namespace, name)
        else:
            value = namespace._peek(name)
            recorder = self.rendering.recorder
            if recorder is not None:
                recorder.compare((namespace._number, name), value, operator, other, mirrored)
            if value is ABSENT:
                value = self.undefined(obj=namespace, name=name)
        left, right = (other, value) if mirrored else (value, other)
        return bool(COMPARISONS[operator](left, right))

    def _namespace(self, *args: Any, **kwargs: Any) -> TemplateNamespace:
        return TemplateNamespace(self.rendering, dict(*args, **kwargs))

    def _strftime_now(self, form: str) -> str:
        self.rendering.spoil()
        return datetime.now().strftime(form)

    def _bound_product(self, left: Any, right: Any) -> None:
        for sequence, count in ((left, right), (right, left)):
            if not (isinstance(sequence, (str, list, tuple)) and isinstance(count, int)):
                continue
            if len(sequence) * count > self._limit:
                raise SecurityError("a repetition is too long")


class LoopContext(runtime.LoopContext):
    """``loop``: of the instrumented loop it starts where the replay ended and tells what it looked at."""

    def __init__(self, iterable: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(iterable, *args, **kwargs)
        self._entry = iterable if isinstance(iterable, LoopEntry) else None
        if self._entry is not None and self._entry.start > 0:
            self.index0 = self._entry.start - 1
            self._current = self._entry.peek(self.index0)

    @property
    def length(self) -> int:
        if self._entry is None:
            return super().length
        return self._entry.length()

    def _peek_next(self) -> Any:
        # The entry's own iterator stays put: its steps are the boundaries between iterations.
        if self._entry is None:
            return super()._peek_next()
        return self._entry.look_at(self.index0 + 1, missing)

    def changed(self, *value: Any) -> bool:
        if self._entry is not None:
            self._entry.spoil()
        return super().changed(*value)


class TemplateDict:
    """``dict`` without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks trainable text for transformers; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """The body's nodes, in place."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _wide(form: str) -> bool:
    digits = 0
    for character in form:
        digits = digits + 1 if character.isdigit() else 0
        if digits > 4 or character == "*":
            return True
    return False


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, MessageView):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _replace(value: Any, old: str, new: str, count: int = -1) -> str:
    return provenance.Traced(str(value)).replace(str(old), str(new), count)


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Any, d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        pick: Callable[[Any], Any] = jinja2.filters.make_attrgetter(environment, attribute)
        value = map(pick, value)
    return provenance.interleave(str(d), [str(item) for item in value])


def iterate(template: jinja2.Template, variables: dict[str, Any]) -> Iterator[str]:
    """The template's output piece by piece."""
    context = template.new_context(variables)
    return template.root_render_func(context)
