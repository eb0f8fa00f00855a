"""Rewrites a parsed chat template so that its own text is told from input, and its message loop is found.

Owns the syntax-tree pass; what the rewritten names do at run time stands in ``environment.py``.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from ninfer.prompt.provenance import template_text

# String methods that put their arguments into the result; all others only compare with them.
_WRITING_METHODS = frozenset({"replace", "join", "format", "center", "ljust", "rjust", "get"})
_READING_FILTERS = frozenset(
    {"map", "select", "reject", "selectattr", "rejectattr", "sort", "groupby", "attr"}
)
_ORDERINGS = frozenset({"gt", "gteq", "lt", "lteq", "eq", "ne"})
# Names whose values change between calls: a loop that may use them is not replayed.
_STATEFUL = frozenset({"cycler", "joiner", "lipsum"})


class Marker(NodeTransformer):
    """Turns template data and written constants into ``environment.literal_N``; ``literals`` holds them."""

    def __init__(self) -> None:
        self.literals: dict[str, str] = {}

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return self._literal(node.data, node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        return self._literal(node.value, node) if isinstance(node.value, str) else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        node.node = self.visit(node.node)
        if not isinstance(node.arg, nodes.Const):
            node.arg = self.visit(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        node.expr = self._unless_constant(node.expr)
        for operand in node.ops:
            operand.expr = self._unless_constant(operand.expr)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        if node.name not in _READING_FILTERS:
            return self.generic_visit(node)
        if node.node is not None:
            node.node = self.visit(node.node)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        node.node = self.visit(node.node)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        if isinstance(node.node, nodes.Getattr) and node.node.attr not in _WRITING_METHODS:
            node.node = self.visit(node.node)
            node.args = [self._unless_constant(argument) for argument in node.args]
            return node
        return self.generic_visit(node)

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        node.key = self._unless_constant(node.key)
        node.value = self.visit(node.value)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        parts: list[nodes.Expr] = [
            nodes.Filter(self._visited(part), "string", [], [], None, None, lineno=node.lineno)
            for part in node.nodes
        ]
        total: nodes.Expr = parts[0]
        for part in parts[1:]:
            total = nodes.Add(total, part, lineno=node.lineno)
        return total

    def _unless_constant(self, node: nodes.Expr) -> nodes.Expr:
        if isinstance(node, (nodes.Const, nodes.List, nodes.Tuple)):
            return node
        return self._visited(node)

    def _visited(self, node: nodes.Expr) -> nodes.Expr:
        visited: nodes.Expr = self.visit(node)
        return visited

    def _literal(self, text: str, node: nodes.Node) -> nodes.Node:
        name = f"literal_{len(self.literals)}"
        self.literals[name] = template_text(text)
        return nodes.EnvironmentAttribute(name, lineno=node.lineno)


def instrument_loop(tree: nodes.Template) -> bool:
    """Make the last top-level ``for … in messages`` that writes something a loop that can be replayed.

    Its iterable becomes ``environment.enter_loop(messages, {names set at top level})``, and comparisons of a
    namespace's member with another value become ``environment.compare``. Returns whether there is one.
    """
    loop = _message_loop(tree)
    if loop is None or any(True for _ in tree.find_all((nodes.Block, nodes.Extends, nodes.Include))):
        return False
    names = list(tree.find_all(nodes.Name))
    if any(name.name in _STATEFUL for name in names):
        return False
    stored = sorted({name.name for name in names if name.ctx == "store"} - {"loop"})
    for statement in loop.body:
        _Comparisons(_namespace_names(tree)).visit(statement)
    captured = nodes.Dict(
        [nodes.Pair(nodes.Const(name), nodes.Name(name, "load"), lineno=loop.lineno) for name in stored],
        lineno=loop.lineno,
    )
    loop.iter = _call("enter_loop", [loop.iter, captured], loop.lineno)
    return True


def _message_loop(tree: nodes.Template) -> nodes.For | None:
    for node in reversed(tree.body):
        if (
            isinstance(node, nodes.For)
            and isinstance(node.iter, nodes.Name)
            and node.iter.name == "messages"
            and isinstance(node.target, nodes.Name)
            and not (node.else_ or node.test or node.recursive)
            and any(True for _ in node.find_all(nodes.Output))
        ):
            return node
    return None


def _namespace_names(tree: nodes.Template) -> frozenset[str]:
    return frozenset(
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name)
        and isinstance(assign.node, nodes.Call)
        and isinstance(assign.node.node, nodes.Name)
        and assign.node.node.name == "namespace"
    )


class _Comparisons(NodeTransformer):
    def __init__(self, namespaces: frozenset[str]) -> None:
        self._namespaces = namespaces

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if len(node.ops) != 1 or node.ops[0].op not in _ORDERINGS:
            return node
        left, operator, right = node.expr, node.ops[0].op, node.ops[0].expr
        if self._is_member(left) == self._is_member(right):
            return node
        member, other = (left, right) if self._is_member(left) else (right, left)
        assert isinstance(member, nodes.Getattr)
        arguments = [member.node, nodes.Const(member.attr), nodes.Const(operator), other]
        return _call("compare", [*arguments, nodes.Const(member is right)], node.lineno)

    def _is_member(self, node: nodes.Expr) -> bool:
        return (
            isinstance(node, nodes.Getattr)
            and isinstance(node.node, nodes.Name)
            and node.node.name in self._namespaces
        )


def _call(name: str, arguments: list[Any], line: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name, lineno=line), arguments, [], None, None, lineno=line)
