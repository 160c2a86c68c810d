"""Numbers with symbols of one program: what stands in templates as expressions."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._decompose.template import NumberSpec, Template, TemplateNode, TensorSpec
from fxpress._decompose.values import Facts, Size
from fxpress._torch import decompose as compat
from fxpress._torch import symbols


class Symbols:
    """Makes the SymInts of one program's environment.

    Args:
        shape_env: the environment, or None.
    """

    def __init__(self, shape_env: Any) -> None:
        self.shape_env = shape_env
        self._made: dict[tuple[Any, type], Any] = {}
        self._ids: dict[Any, int] = {}
        self._bound: dict[int, Template] = {}
        self._facts: dict[int, Facts] = {}

    def id_of(self, expression: Any) -> int:
        """Return the number that stands for an expression in native code."""
        return self._ids.setdefault(expression, len(self._ids))

    def number(self, expression: Any, kind: type = int) -> Any:
        """Return the SymInt, SymFloat or SymBool of an expression."""
        made = self._made.get((expression, kind))
        if made is None:
            made = symbols.number_of(expression, kind, self.shape_env)
            self._made[expression, kind] = made
        return made

    def size(self, size: Size) -> Any:
        """Return an int, or the SymInt of an expression."""
        return size if type(size) is int else self.number(size)

    def sizes(self, sizes: tuple[Size, ...]) -> tuple[Any, ...]:
        """Return ints and SymInts."""
        return tuple([self.size(size) for size in sizes])

    def facts(self, facts: Facts) -> Facts:
        """Return facts with SymInts in place of expressions."""
        if not facts.is_symbolic:
            return facts
        bound = self._facts.get(id(facts))
        if bound is None:
            shape, strides = self.sizes(facts.shape), self.sizes(facts.strides)
            bound = facts._replace(shape=shape, strides=strides, offset=self.size(facts.offset))
            self._facts[id(facts)] = bound
        return bound

    def bound(self, template: Template) -> Template:
        """Return a template with SymInts and numbers for expressions in place of expressions."""
        if not template.is_symbolic:
            return template
        bound = self._bound.get(id(template))
        if bound is None:
            nodes = tuple([self._node(node) for node in template.nodes])
            bound = template._replace(nodes=nodes)
            self._bound[id(template)] = bound
        return bound

    def _node(self, node: TemplateNode) -> TemplateNode:
        meta = tuple([(key, how, self._item(key, item)) for key, how, item in node.meta])
        number = None if node.number is None else self.id_of(node.number)
        return node._replace(value=self._value(node.value), meta=meta, number=number)

    def _item(self, key: str, item: Any) -> Any:
        if key != "tensor_meta" or type(item.shape) is torch.Size:
            return item
        sizes = (self.sizes(item.shape), self.sizes(item.stride))
        like = torch.empty_strided(*sizes, device="meta")
        return item._replace(shape=like.shape, stride=like.stride())

    def _value(self, value: Any) -> Any:
        if type(value) is TensorSpec:
            return value._replace(facts=self.facts(value.facts))
        if type(value) is NumberSpec:
            return self.number(value.expression, value.kind)
        if type(value) in (tuple, list):
            return type(value)([self._value(item) for item in value])
        return value


def without_numbers(described: compat.TensorMetadata, facts: Facts) -> compat.TensorMetadata:
    """Return a `tensor_meta` as templates have it: expressions in place of SymInts."""
    if not facts.is_symbolic:
        return described
    return described._replace(shape=facts.shape, stride=facts.strides)
