"""Create the numbers, symbols and fake tensors of a graph that is read from a file."""

from __future__ import annotations

import itertools
import logging
from typing import Any, TypeAlias

import sympy
import torch

from fxpress._base.errors import is_about_input
from fxpress._files.serde import expressions, gate, targets
from fxpress._files.serde.facts import value_range
from fxpress._files.serde.limits import Budget
from fxpress._files.serde.operators import Described
from fxpress._files.serde.treespecs import load_treespec
from fxpress._torch import fakes, symbols
from fxpress._torch import serde as compat

log = logging.getLogger(__name__)
_Range = tuple[int | None, int | None]
Location: TypeAlias = torch.device | str | dict[str, str] | None


def map_device(location: Location, kind: str, index: int | None) -> torch.device:
    """Return the device to which a stored device is mapped."""
    name = kind if index is None else f"{kind}:{index}"
    if isinstance(location, dict):
        return torch.device(location.get(name, name))
    return torch.device(name if location is None else location)


def _is_simple(sizes: tuple[Any, ...], strides: tuple[Any, ...], offset: Any) -> bool:
    """Return whether fxpress can create a tensor itself, because torch would accept its ints."""
    return (
        len(sizes) == len(strides)
        and all(type(size) is not int or size > 0 for size in sizes)
        and type(offset) is int
        and offset >= 0
    )


class Values:
    """The symbols and values of one program. Only one thread at a time may use an instance.

    `ranges` maps texts of symbols or expressions to (lowest, highest); None means infinite.
    `location` is a `map_location` of `fxpress.load`. The file may call the operators in `allowed`,
    in addition to the operators that `torch_facts.refusal` allows.
    """

    def __init__(
        self,
        ranges: dict[str, _Range],
        location: Location = None,
        budget: Budget | None = None,
        allowed: frozenset[str] = frozenset(),
    ) -> None:
        self._allowed = allowed
        self.budget = Budget(None, 0) if budget is None else budget
        self.location = location
        self.fake_mode = compat.make_fake_mode()
        self.shape_env = self.fake_mode.shape_env
        self.symbols: dict[str, Any] = {}
        self.ranges = {name: value_range(*limits) for name, limits in ranges.items()}
        self._states: dict[Any, dict[str, Any]] = {}  # (fake mode, device) -> see `fake_state`
        self._checked: set[Any] = set()  # the expressions of sizes that torch has checked
        self._extents: dict[Any, Any] = {}  # (size, stride) -> see `_extent`
        self._treespecs: dict[str, Any] = {}
        self._input_treespecs: set[str] = set()  # specs that passed `gate.check_input_keys`
        self.unbacked_symbols: set[Any] = set()
        self._of_offsets: set[Any] = set()  # unbacked symbols that occur only in storage offsets
        self._outer: list[set[Any]] = []  # for each enclosing graph, its unbacked symbols
        compat.reserve_unbacked_names(self.shape_env, ranges)

    def device(self, kind: str, index: int | None) -> torch.device:
        """Return the device to which a stored device is mapped; see `map_device`."""
        return map_device(self.location, kind, index)

    def find_target(self, text: str) -> Any:
        """Return the operator or function that the file names; RefusedOperatorError if refused."""
        return targets.find_allowed(text, self._allowed)

    def resolve_target(self, text: str) -> tuple[Any, Described]:
        """Return the operator or function that the file names, and its description."""
        return targets.describe_target(self.find_target(text))

    def begin_graph(self) -> None:
        """Open the root graph, or a graph nested in the open graph."""
        self._outer.append(self.unbacked_symbols)
        self.unbacked_symbols = set()

    def leave_graph(self) -> None:
        """Close the open graph; the enclosing graph is open again."""
        self.unbacked_symbols = self._outer.pop()

    def end_graph(self, graph: torch.fx.Graph) -> None:
        """Set "unbacked_bindings" in the meta of nodes; SerializeError for undefined symbols."""
        with self.budget.symbolic:
            self._bind_symbols(graph)
            if self.symbols:
                self._separate_inputs(graph)

    def _separate_inputs(self, graph: torch.fx.Graph) -> None:
        """Give each input of a graph its own `SymInt` objects, as torch does.

        If two inputs shared a `SymInt` object, a later trace would create one size node for both.
        The trace would therefore have fewer nodes than torch's, and other names of nodes.
        """
        for node in itertools.takewhile(lambda node: node.op == "placeholder", graph.nodes):
            value = symbols.another_number(node.meta.get("val"))
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                sizes, strides = (
                    tuple(map(symbols.another_number, numbers))
                    for numbers in (value.shape, value.stride())
                )
                if any(isinstance(number, torch.SymInt) for number in (*sizes, *strides)):
                    facts = value.dtype, value.layout, value.device, value.requires_grad
                    value = self.tensor(sizes, strides, value.storage_offset(), *facts)
            if value is not None:
                node.meta["val"] = value

    def _bind_symbols(self, graph: torch.fx.Graph) -> None:
        pending = self.unbacked_symbols
        for node in graph.nodes if pending else ():
            value = node.meta.get("val")
            if value is not None:
                self.budget.check_time("the symbols that nodes define")
                bindings = compat.unbacked_bindings(value, self.shape_env, pending)
                if bindings:
                    node.meta["unbacked_bindings"] = bindings
        # A storage offset may contain symbols of values that were traced and then removed.
        if undefined := pending - self._of_offsets:
            names = sorted(map(str, undefined))
            raise compat.SerializeError(f"the nodes of the graph do not define the symbols {names}")
        self._outer[-1].update(pending)
        pending.clear()

    def _note(self, expression: Any, hint: Any, is_offset: bool = False) -> Any:
        """Add an expression and its parts to the shape environment; return its first instance."""
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
            self.shape_env.var_to_stack[expression] = compat.CapturedTraceback.extract()
        return expression

    def expression(self, text: str | sympy.Basic, hint: Any = None, is_offset: bool = False) -> Any:
        """Add an expression (or its text) to the shape environment; return the expression."""
        with self.budget.symbolic:
            if isinstance(text, str):
                text = expressions.parse(text, self.symbols, self.budget)
            return self._note(text, hint, is_offset)

    def number(self, kind: str, text: str, hint: Any, is_offset: bool = False) -> Any:
        """Return a symbolic number; with `is_offset`, no node needs to define its symbols."""
        with self.budget.symbolic:
            self.budget.check_time_before("the symbolic numbers")
            if kind == "SymBool":
                return self.shape_env.create_symboolnode(self.expression(text))
            expression = self.expression(text, hint, is_offset)
            if is_offset:
                compat.limit_symbols(self.shape_env, expression)
            if kind == "SymFloat":
                return self.shape_env.create_symfloatnode(expression, hint=hint)
            if hint is not None and type(hint) is not int:
                raise compat.SerializeError(
                    f"the symbolic int {text!s} has the hint {hint!r}; expected an int"
                )
            return self.shape_env.create_symintnode(expression, hint=hint)

    def fake_state(self, device: torch.device) -> dict[str, Any]:
        """Return the attributes that all fake tensors on a device have; native code copies them."""
        key = (self.fake_mode, device)  # callers of GraphModuleDeserializer may set the mode
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = fakes.attributes_of(*key)
        return state

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
        """Return a fake tensor with symbolic sizes, a storage offset or a sparse layout."""
        made: torch.Tensor
        with self.budget.symbolic:
            self.budget.check_time_before("the sizes of a tensor")
            if layout is torch.strided and _is_simple(sizes, strides, storage_offset):
                numbers = (sizes, strides, storage_offset)
                with compat.without_modes():
                    made = fakes.make_meta((self._bytes(*numbers, dtype), *numbers), dtype, None)
                    return fakes.fake_of(made, requires_grad, device, self.fake_state(device))
            with self.fake_mode:
                if layout is torch.sparse_coo:
                    made = torch.sparse_coo_tensor(
                        size=sizes, dtype=dtype, device=device, check_invariants=False
                    )
                elif type(storage_offset) is int and storage_offset == 0:
                    made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
                else:
                    made = self._placed(sizes, strides, storage_offset, dtype=dtype, device=device)
            return made.requires_grad_(requires_grad) if requires_grad else made

    def _bytes(
        self, sizes: tuple[Any, ...], strides: tuple[Any, ...], offset: int, dtype: torch.dtype
    ) -> Any:
        """Return the size in bytes of the storage that torch creates for a tensor."""
        extents = [self._extent(*of_dimension) for of_dimension in zip(sizes, strides, strict=True)]
        extents.sort(key=lambda extent: type(extent) is not int)  # ints first: their sums are cheap
        elements: Any = sum(extents, offset + 1)
        constant = elements.node.maybe_as_int() if isinstance(elements, torch.SymInt) else None
        return (elements if constant is None else constant) * dtype.itemsize

    def _extent(self, size: Any, stride: Any) -> Any:
        """Return the distance from the first element of a dimension to its last element."""
        key = tuple([n.node.expr if isinstance(n, torch.SymInt) else n for n in (size, stride)])
        extent = self._extents.get(key)
        if extent is None:
            if isinstance(size, torch.SymInt) and key[0] not in self._checked:
                torch.empty_strided((size,), (1,), device="meta")  # torch checks the size
                self._checked.add(key[0])
            extent = self._extents[key] = stride * (size - 1)
        return extent

    def _placed(
        self, sizes: tuple[Any, ...], strides: tuple[Any, ...], storage_offset: Any, **options: Any
    ) -> torch.Tensor:
        """Return a fake tensor with an offset into its storage."""
        last = storage_offset
        for size, stride in zip(sizes, strides, strict=True):
            last = last + (size - 1) * stride
        if isinstance(last, torch.SymInt):
            compat.limit_symbols(self.shape_env, last.node.expr)
        try:
            with self.shape_env.suppress_guards():  # the saved program has no guards on the offset
                # torch.empty would add guards on a symbolic size.
                whole = torch.empty_strided((last + 1,), (1,), **options)
                return whole.as_strided(sizes, strides, storage_offset).detach()
        except Exception as e:
            if not isinstance(storage_offset, torch.SymInt) or not is_about_input(e):
                raise
            # As in torch, a data-dependent offset is replaced by 0.
            log.debug("The storage offset %s is replaced by 0", storage_offset, exc_info=True)
            return torch.empty_strided(sizes, strides, **options)

    def constrain(self, node: torch.fx.Node) -> None:
        """Add a node's assertions about symbols to the shape environment."""
        argument = node.args[0]
        value = argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
        with self.budget.symbolic:
            self.budget.check_time_before("the graph's assertions about its symbols")
            if node.target is compat.assert_scalar:
                if isinstance(value, torch.SymBool):
                    self.shape_env.guard_or_defer_runtime_assert(value.node.expr, "", node)
            elif isinstance(value, torch.SymInt):
                compat.constrain_size(self.shape_env, value.node.expr)

    def treespec(self, text: str) -> Any:
        """Return the tree spec of a text; raises the errors of `load_treespec`."""
        if text not in self._treespecs:
            self._treespecs[text] = load_treespec(text, self.budget)
        return self._treespecs[text]

    def input_treespec(self, text: str) -> Any:
        """Return a tree spec of inputs. Check its keys first, because code contains them."""
        spec = self.treespec(text)
        if text not in self._input_treespecs:
            gate.check_input_keys(spec)
            self._input_treespecs.add(text)
        return spec
