"""Create SymInts for the sympy expressions that represent symbolic numbers in templates."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._graphs.decompose.template import NumberSpec, Template, TemplateNode, TensorSpec
from fxpress._graphs.decompose.values import Facts, Size, bytes_of
from fxpress._torch import decompose as compat
from fxpress._torch import symbols
from fxpress._torch.fakes import make_meta


class Symbols:
    """Creates the SymInts of one program, with its ShapeEnv."""

    def __init__(self, shape_env: Any) -> None:
        self.shape_env = shape_env
        self._made: dict[tuple[Any, type], Any] = {}
        self._ids: dict[Any, int] = {}
        self._bound: dict[Template, Template] = {}
        self._facts: dict[Facts, Facts] = {}
        self._patterns: dict[Facts, torch.Tensor] = {}

    def id_of(self, expression: Any) -> int:
        """Return the id by which native code refers to an expression."""
        return self._ids.setdefault(expression, len(self._ids))

    def number(self, expression: Any, kind: type = int) -> Any:
        """Return the SymInt, SymFloat or SymBool of an expression."""
        made = self._made.get((expression, kind))
        if made is None:
            made = symbols.number_of(expression, kind, self.shape_env)
            self._made[expression, kind] = made
        return made

    def size(self, size: Size) -> Any:
        """Return the SymInt for a size that is an expression; return an int unchanged."""
        return size if type(size) is int else self.number(size)

    def sizes(self, sizes: tuple[Size, ...]) -> tuple[Any, ...]:
        """Return `self.size(size)` for each of the sizes."""
        return tuple([self.size(size) for size in sizes])

    def facts(self, facts: Facts) -> Facts:
        """Return a copy of `facts` in which SymInts replace expressions."""
        if not facts.is_symbolic:
            return facts
        bound = self._facts.get(facts)
        if bound is None:
            shape, strides = self.sizes(facts.shape), self.sizes(facts.strides)
            bound = facts._replace(shape=shape, strides=strides, offset=self.size(facts.offset))
            self._facts[facts] = bound
        return bound

    def pattern(self, facts: Facts) -> torch.Tensor | None:
        """Return a tensor without data that has the sizes of `facts`; None: no size is symbolic."""
        if not facts.is_symbolic:
            return None
        pattern = self._patterns.get(facts)
        if pattern is None:
            bound = self.facts(facts)
            numbers = (self.size(bytes_of(facts)), bound.shape, bound.strides, bound.offset)
            pattern = self._patterns[facts] = make_meta(numbers, bound.dtype, None)
        return pattern

    def bound(self, template: Template) -> Template:
        """Copy a template, with SymInts in place of expressions, and ids (`id_of`) as `number`."""
        if not template.is_symbolic:
            return template
        bound = self._bound.get(template)
        if bound is None:
            nodes = tuple([self._node(node) for node in template.nodes])
            bound = template._replace(nodes=nodes)
            self._bound[template] = bound
        return bound

    def _node(self, node: TemplateNode) -> TemplateNode:
        pattern = self.pattern(node.value.facts) if type(node.value) is TensorSpec else None
        meta = node.meta
        if pattern is not None:
            described = {"shape": pattern.shape, "stride": pattern.stride()}
            meta = tuple(
                [
                    (key, how, item._replace(**described) if key == "tensor_meta" else item)
                    for key, how, item in meta
                ]
            )
        number = None if node.number is None else self.id_of(node.number)
        return node._replace(value=self._value(node.value), meta=meta, number=number)

    def _value(self, value: Any) -> Any:
        if type(value) is TensorSpec:
            facts = value.facts
            return value._replace(facts=self.facts(facts), pattern=self.pattern(facts))
        if type(value) is NumberSpec:
            return self.number(value.expression, value.kind)
        if type(value) in (tuple, list):
            return type(value)([self._value(item) for item in value])
        return value


def without_numbers(described: compat.TensorMetadata, facts: Facts) -> compat.TensorMetadata:
    """Return a copy of a `tensor_meta` in which expressions replace SymInts, for a template."""
    if not facts.is_symbolic:
        return described
    return described._replace(shape=facts.shape, stride=facts.strides)
