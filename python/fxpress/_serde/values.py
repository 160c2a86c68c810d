"""The values of a graph that is read: numbers, symbols and tensors in a shape environment."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

import sympy
import torch

from fxpress._serde import expressions, gate
from fxpress._serde.facts import value_range
from fxpress._serde.limits import Budget
from fxpress._serde.treespecs import load_treespec
from fxpress._torch import serde as compat

log = logging.getLogger(__name__)
_Range = tuple[int | None, int | None]
Location: TypeAlias = torch.device | str | dict[str, str] | None


def located(location: Location, kind: str, index: int | None) -> torch.device:
    """The device that a stored one is mapped to.

    Args:
        location: of `Values`.
        kind, index: of the stored device.

    Raises:
        RuntimeError: there is no such kind of device.
    """
    name = kind if index is None else f"{kind}:{index}"
    if isinstance(location, dict):
        return torch.device(location.get(name, name))
    return torch.device(name if location is None else location)


class Values:
    """The symbols of one program that is read. Only one thread at a time may use an instance.

    Args:
        ranges: symbol or expression -> (lowest, highest) value; None: no limit.
        location: the device that everything goes to, or a dict from the names of stored devices to
            others; None: the stored ones.
        budget: the limits on the whole cost; None: the default limits for a small file.

    Attributes:
        fake_mode: the mode of all fake tensors of the program.
        symbols: text of an expression -> the expression, for all that were met.
        ranges: as given, as torch's value ranges.
        unbacked_symbols: that no node of the open graph has defined yet.
    """

    def __init__(
        self,
        ranges: dict[str, _Range],
        location: Location = None,
        budget: Budget | None = None,
    ) -> None:
        self.budget = Budget(None, 0) if budget is None else budget
        self.location = location
        self.fake_mode = compat.make_fake_mode()
        self.shape_env = self.fake_mode.shape_env
        self.symbols: dict[str, Any] = {}
        self.ranges = {name: value_range(*limits) for name, limits in ranges.items()}
        self._treespecs: dict[str, Any] = {}
        self._input_treespecs: set[str] = set()  # that have passed the gate
        self.unbacked_symbols: set[Any] = set()
        self._of_offsets: set[Any] = set()  # unbacked symbols that only storage offsets have
        self._outer: list[set[Any]] = []  # unbacked symbols of the graphs around the open one
        compat.reserve_unbacked_names(self.shape_env, ranges)

    def device(self, kind: str, index: int | None) -> torch.device:
        """The device that stands for a stored one."""
        return located(self.location, kind, index)

    def begin_graph(self) -> None:
        """Opens a graph within the one that is open, or the first."""
        self._outer.append(self.unbacked_symbols)
        self.unbacked_symbols = set()

    def leave_graph(self) -> None:
        """Goes back to the graph around the one that is open."""
        self.unbacked_symbols = self._outer.pop()

    def end_graph(self, graph: torch.fx.Graph) -> None:
        """Tells the nodes of the open graph, which are all there, which symbols they define."""
        with self.budget.symbolic:
            self._bind_symbols(graph)

    def _bind_symbols(self, graph: torch.fx.Graph) -> None:
        pending = self.unbacked_symbols
        for node in graph.nodes if pending else ():
            value = node.meta.get("val")
            if value is not None:
                self.budget.check_time("the symbols that nodes define")
                bindings = compat.unbacked_bindings(value, self.shape_env, pending)
                if bindings:
                    node.meta["unbacked_bindings"] = bindings
        # An offset may tell of what was traced on the way to a value and is in no graph.
        if undefined := pending - self._of_offsets:
            names = sorted(map(str, undefined))
            raise compat.SerializeError(f"no node of the graph defines the symbols {names}")
        self._outer[-1].update(pending)
        pending.clear()

    def _note(self, expression: Any, hint: Any, is_offset: bool = False) -> Any:
        """Tells the shape environment of an expression and its parts; returns the one to use."""
        if expression.is_Integer or expression.is_Float or expression.is_Boolean:
            return expression
        self.budget.check_time("the symbols of an expression")
        for part in expression.args:
            self._note(part, None, is_offset)
        text = str(expression)
        if text in self.symbols:
            expression = self.symbols[text]
            if not is_offset:
                self._of_offsets.discard(expression)
        else:
            self.symbols[text] = expression
            if compat.is_unbacked(expression):
                self.unbacked_symbols.add(expression)
                if is_offset:
                    self._of_offsets.add(expression)
        if hint is not None:
            compat.add_hint(self.shape_env, expression, hint)
        if limits := self.ranges.get(text):
            self.shape_env.constrain_symbol_range(
                expression, compiler_min=limits.lower, compiler_max=limits.upper
            )
        if isinstance(expression, sympy.Symbol):
            self.shape_env.var_to_stack[expression] = compat.stack_here()
        return expression

    def expression(self, text: str | sympy.Basic, hint: Any = None, is_offset: bool = False) -> Any:
        """The expression, or that with this text, known to the shape environment."""
        with self.budget.symbolic:
            if isinstance(text, str):
                text = expressions.parse(text, self.symbols, self.budget)
            return self._note(text, hint, is_offset)

    def number(self, kind: str, text: str, hint: Any, is_offset: bool = False) -> Any:
        """A symbolic number.

        Args:
            kind: "SymInt", "SymFloat" or "SymBool".
            is_offset: whether it is the storage offset of a tensor. No node need define the
                symbols of those.
        """
        with self.budget.symbolic:
            self.budget.check_time_before("the symbolic numbers")
            return self._number(kind, text, hint, is_offset)

    def _number(self, kind: str, text: str, hint: Any, is_offset: bool) -> Any:
        if kind == "SymBool":
            return self.shape_env.create_symboolnode(self.expression(text))
        expression = self.expression(text, hint, is_offset)
        if is_offset:
            compat.limit_symbols(self.shape_env, expression)
        if kind == "SymFloat":
            return self.shape_env.create_symfloatnode(expression, hint=hint)
        if hint is not None and type(hint) is not int:
            raise compat.SerializeError(f"the hint of an integer is {hint!r}")
        return self.shape_env.create_symintnode(expression, hint=hint)

    def fake_state(self, device: torch.device) -> dict[str, Any]:
        """The attributes of every fake tensor on a device."""
        made = compat.FakeTensor(self.fake_mode, torch.empty(0, device="meta"), device)
        return dict(vars(made))

    def tensor(
        self,
        sizes: tuple[Any, ...],
        strides: tuple[Any, ...],
        storage_offset: Any,
        dtype: torch.dtype,
        layout: torch.layout,
        device: torch.device,
        requires_grad: bool,
    ) -> Any:
        """A fake tensor whose sizes are symbolic, or that is not at the start of its storage."""
        made: torch.Tensor
        with self.budget.symbolic, self.fake_mode:
            self.budget.check_time_before("the sizes of a tensor")
            if layout is torch.sparse_coo:
                made = torch.sparse_coo_tensor(
                    size=sizes, dtype=dtype, device=device, check_invariants=False
                )
            elif type(storage_offset) is int and storage_offset == 0:
                made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
            else:
                made = self._placed(sizes, strides, storage_offset, dtype, device)
            return made.requires_grad_(requires_grad) if requires_grad else made

    def _placed(
        self,
        sizes: tuple[Any, ...],
        strides: tuple[Any, ...],
        storage_offset: Any,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:
        """A fake tensor that is somewhere in its storage.

        Where that cannot be decided without running the program, it is at the start, as in torch.
        """
        last = storage_offset
        for size, stride in zip(sizes, strides, strict=True):
            last = last + (size - 1) * stride
        if isinstance(last, torch.SymInt):
            compat.limit_symbols(self.shape_env, last.node.expr)
        try:
            with self.shape_env.suppress_guards():  # nothing in the program asks for the place
                # Unlike torch.empty this asks nothing of a symbolic size.
                whole = torch.empty_strided((last + 1,), (1,), dtype=dtype, device=device)
                return whole.as_strided(sizes, strides, storage_offset).detach()
        except Exception:
            if not isinstance(storage_offset, torch.SymInt):
                raise
            log.debug("the storage offset %s is left out", storage_offset, exc_info=True)
            return torch.empty_strided(sizes, strides, dtype=dtype, device=device)

    def constrain(self, node: torch.fx.Node) -> None:
        """Apply a node's assertions on symbols, and the ranges that it gives them."""
        with self.budget.symbolic:
            self.budget.check_time_before("what the graph asserts of its symbols")
            self._constrain(node)

    def _constrain(self, node: torch.fx.Node) -> None:
        argument = node.args[0]
        value = argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
        if node.target is compat.assert_scalar:
            if isinstance(value, torch.SymBool):
                self.shape_env.guard_or_defer_runtime_assert(value.node.expr, "", node)
        elif isinstance(value, torch.SymInt):
            compat.constrain_size(self.shape_env, value.node.expr)

    def treespec(self, text: str) -> Any:
        """The tree spec with this text."""
        if text not in self._treespecs:
            self._treespecs[text] = load_treespec(text, self.budget)
        return self._treespecs[text]

    def input_treespec(self, text: str) -> Any:
        """The same for inputs, whose keys may become source code."""
        spec = self.treespec(text)
        if text not in self._input_treespecs:
            gate.check_input_keys(spec)
            self._input_treespecs.add(text)
        return spec
