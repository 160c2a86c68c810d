"""Create the module of a stage, and convert the values that the module receives and sends.

`route` finds the values that pass between stages. `packed` converts a value to the tensor that is
sent, and `unpacked` converts it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import sympy
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.export import ExportedProgram

from fxpress._distributed.errors import PipelineError
from fxpress._distributed.pipeline.names import kept, number_calls, plain, restore_order
from fxpress._distributed.stages.guards import function_of, inputs_in
from fxpress._distributed.stages.manifest import Manifest, Value
from fxpress._files.archive.weight_files import check_shared
from fxpress._graphs.unflatten.modules import unflatten
from fxpress._torch.decompose import pytree
from fxpress._torch.export import reorder_kwargs

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)
_DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}


class StageModule(nn.Module):  # type: ignore[misc]
    """A stage of a program, whose parameters, buffers and modules have the program's names.

    The first stage gets the program's inputs; later stages get the previous stage's tensors.
    """

    def __init__(
        self,
        program: ExportedProgram,
        manifest: Manifest,
        number: int,
        in_spec: Any,
        check_guards: bool = True,
    ) -> None:
        super().__init__()
        number_calls(program.graph)
        names = list(program.state_dict)
        module = unflatten(program, share_state=True)  # safe: nothing else refers to the program
        restore_order(module, names)
        # `self` shares the contents of `module`, so `module` must not be a child of `self`.
        object.__setattr__(self, "program", module)
        self._parameters, self._buffers = module._parameters, module._buffers
        self._modules = module._modules
        self._non_persistent_buffers_set = module._non_persistent_buffers_set
        self.register_state_dict_post_hook(_with_plain_names)
        self.register_load_state_dict_pre_hook(_with_names_of_calls)
        self.training = module.training
        taken = route(manifest)
        self.facts = manifest.stages[number]
        self._in_spec, self._fakes = in_spec, fakes_of(program)
        self._inputs = manifest.inputs
        self.takes = tuple(taken[number])
        self.gives = tuple(taken[number + 1]) if number + 1 < len(taken) else _results(manifest)
        self._guards = _guards_at(manifest, number) if check_guards else _NONE
        self._has_values = True  # False for the call after `fill` has made up the inputs
        self._is_filled = False  # whether a call has checked that no state is on meta
        self._is_first, self._is_last = number == 0, number + 1 == len(taken)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters by their original names, as `torch.nn.Module` does."""
        found = super().named_parameters(prefix, recurse, remove_duplicate=False)
        return _by_plain_name(found, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers by their original names, as `torch.nn.Module` does."""
        found = super().named_buffers(prefix, recurse, remove_duplicate=False)
        return _by_plain_name(found, remove_duplicate)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict; SerializeError, before any copy, if a tied weight has two values."""
        with kept(self):
            return super().load_state_dict(state_dict, strict, assign)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply a function to all tensors, for methods such as `to_empty`; keep weights tied."""
        with kept(self):
            return super()._apply(fn, recurse)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs as a tuple; the last stage returns a single output without a tuple."""
        if not self._is_filled:
            self._check_state()
        values = self._first(args, kwargs) if self._is_first else self._received(args)
        guards, names = self._guards
        if guards and self._has_values and not torch.compiler.is_dynamo_compiling():
            function_of(guards, names)(*[values[name] for name in names])
        self._has_values = True
        sources = [each.source[1] for each in self.facts.inputs if each.source is not None]
        made = self.program(*(values[name] for name in sources))
        values.update(zip((each.name for each in self.facts.outputs), made, strict=True))
        if not self._is_last:
            return tuple(packed(values[each.name], each) for each in self.gives)
        results = tuple(as_result(values[each.name], each) for each in self.gives)
        return results[0] if len(results) == 1 else results

    def _check_state(self) -> None:
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            if tensor.is_meta:
                raise PipelineError(
                    f"{name} is not loaded: fill the state of the stage from a checkpoint first"
                )
        self._is_filled = True

    def _first(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Check the arguments of the first stage; return {name of a program's input: argument}."""
        try:
            ordered = reorder_kwargs(kwargs, self._in_spec)
        except ValueError as error:
            raise PipelineError(f"stage 0 expects the inputs of the program: {error}") from None
        leaves, given = pytree.tree_flatten((tuple(args), ordered))
        if given != self._in_spec:
            raise PipelineError(
                "stage 0 expects the inputs of the program, with the structure "
                f"{_line(self._in_spec)}, got {_line(given)}"
            )
        return dict(zip((each.name for each in self._inputs), leaves, strict=True))

    def _received(self, args: tuple[Any, ...]) -> dict[str, Any]:
        if len(args) != len(self.takes):
            raise PipelineError(
                f"the stage expects {len(self.takes)} tensors from the previous stage, got "
                f"{len(args)}"
            )
        pairs = zip(self.takes, args, strict=True)
        return {facts.name: unpacked(tensor, facts) for facts, tensor in pairs}

    def given_fakes(self) -> list[Any]:
        """Return `meta["val"]` of each input of the stage's program."""
        return [self._fakes[each.name] for each in self.facts.inputs]

    def fill(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Fill uninitialized input tensors with values with which the stage can run."""
        known: dict[Any, Any] = {}
        for facts, tensor in zip(self.takes, tensors, strict=True):
            fake = self._fakes.get(facts.name)
            if isinstance(fake, torch.Tensor):
                order = facts.order or range(fake.dim())
                for dimension, size in zip(order, tensor.shape, strict=True):
                    symbol = fake.shape[dimension]
                    if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_symbol:
                        known[symbol.node.expr] = sympy.Integer(size)
        with torch.no_grad():
            for facts, tensor in zip(self.takes, tensors, strict=True):
                fake = self._fakes.get(facts.name)
                # 0 is valid even in indices. Sizes of tensors depend on the symbolic numbers.
                tensor.fill_(0 if facts.type == "tensor" else _number(fake, known))
        self._has_values = False


_NONE: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def _guards_at(manifest: Manifest, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the guards that a stage checks, and the names of their inputs."""
    types = {each.name: each.type for each in manifest.inputs}
    guards = manifest.stages[number].guards
    if number == 0:
        # The first stage has all inputs, and checks the guards that no other stage can check.
        others = manifest.unchecked_guards
        guards = (*(each for each in others if inputs_in(each, types) is not None), *guards)
    names = sorted(set().union(*(inputs_in(each, types) or () for each in guards)))
    return guards, tuple(names)


def _line(spec: Any) -> str:
    """Return a tree spec as one line, because ranks exchange only the first line of an error."""
    return " ".join(str(spec).split())


def _results(manifest: Manifest) -> tuple[Value, ...]:
    """Return the results of the program that are not constants, without duplicates."""
    known = {each.name: each for each in manifest.inputs}
    for stage in manifest.stages:
        known.update((each.name, each) for each in stage.outputs)
    names = dict.fromkeys(each.source[1] for each in manifest.results if each.source)
    return tuple(known[name] for name in names)


def _by_plain_name(
    named: Iterable[tuple[str, _Tensor]], remove_duplicate: bool
) -> Iterator[tuple[str, _Tensor]]:
    names: set[str] = set()
    seen: set[int] = set()
    for name, tensor in named:
        original = plain(name)
        if original in names or (remove_duplicate and id(tensor) in seen):
            continue
        names.add(original)
        seen.add(id(tensor))
        yield original, tensor


def _with_plain_names(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    """Remove suffixes such as "@1", which number calls of a module, from names in a state dict."""
    for name in [name for name in state if name.startswith(prefix) and plain(name) != name]:
        value = state.pop(name)
        state.setdefault(plain(name), value)


def _with_names_of_calls(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add entries for further names of weights; check that tied weights have equal values."""
    names = {
        f"{prefix}{path}.{own}" if path else f"{prefix}{own}": tensor
        for path, each in module.named_modules(remove_duplicate=False)
        for own, tensor in (*each._parameters.items(), *each._buffers.items())
    }
    further = [name for name in names if plain(name) != name]
    for name in further:
        if plain(name) in state:
            state.setdefault(name, state[plain(name)])
    for name in further:
        if plain(name) not in names:
            state.pop(plain(name), None)
    found = [
        (plain(name), _local(tensor), _local(state[name]))
        for name, tensor in names.items()
        if isinstance(tensor, torch.Tensor) and isinstance(state.get(name), torch.Tensor)
    ]
    fitting = [each for each in found if each[1].shape == each[2].shape]
    check_shared(
        [name for name, _, _ in fitting],
        [tensor for _, tensor, _ in fitting],
        [value.detach().to(tensor.dtype) for _, tensor, value in fitting],
    )


def _local(value: Any) -> Any:
    """Return this rank's part of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def route(manifest: Manifest) -> list[list[Value]]:
    """Return the values that each stage gets from the previous one, in order of creation."""
    made: dict[str, tuple[int, Value]] = {each.name: (0, each) for each in manifest.inputs}
    for number, stage in enumerate(manifest.stages):
        made.update((each.name, (number, each)) for each in stage.outputs)
    last_use: dict[str, int] = {}
    for number, stage in enumerate(manifest.stages):
        last_use.update((each.source[1], number) for each in stage.inputs if each.source)
    end = len(manifest.stages) - 1
    last_use.update((each.source[1], end) for each in manifest.results if each.source)
    taken: list[list[Value]] = [[] for _ in manifest.stages]
    for name, (maker, value) in made.items():
        for number in range(maker + 1, last_use.get(name, 0) + 1):
            if value.type not in ("tensor", "int", "float", "bool"):
                raise PipelineError(
                    f"{name} passes from stage {number - 1} to {number}, and is of type "
                    f"{value.type}: only tensors and numbers can pass"
                )
            taken[number].append(value)
    return taken


def fakes_of(program: ExportedProgram) -> dict[str, Any]:
    """Return `meta["val"]` of each input of a stage, by name."""
    return {
        node.name: node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder" and "val" in node.meta
    }


def _number(fake: Any, known: dict[Any, Any]) -> Any:
    if not isinstance(fake, (torch.SymInt, torch.SymFloat)):
        return 1
    found = fake.node.expr.xreplace(known)
    return float(found) if found.is_number else 1


class _Received(torch.autograd.Function):  # type: ignore[misc]
    """An identity function whose backward makes the gradient contiguous, so that it can be sent."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


class _Identity(torch.autograd.Function):  # type: ignore[misc]
    """An identity function that returns a new tensor, because torch detaches results in place."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def packed(value: Any, facts: Value) -> torch.Tensor:
    """Return a number as a tensor, or a tensor permuted so that it is contiguous."""
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=_DTYPES[facts.type])
    if facts.order is not None:
        value = value.permute(facts.order)
    return _given(value.contiguous())


def as_result(value: Any, facts: Value) -> torch.Tensor:
    """Convert a result of the program to a tensor; a tensor keeps its strides."""
    return _given(value) if isinstance(value, torch.Tensor) else packed(value, facts)


def _given(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor object, which torch may detach in place."""
    return _Identity.apply(tensor) if tensor.requires_grad else tensor.detach()


def unpacked(tensor: torch.Tensor, facts: Value) -> Any:
    """Convert `tensor`, a result of `packed`, back to the original value."""
    if facts.type != "tensor":
        return tensor.item()
    if tensor.requires_grad:
        tensor = _Received.apply(tensor)
    if facts.order is None:
        return tensor
    back = sorted(range(len(facts.order)), key=facts.order.__getitem__)
    return tensor.permute(back)
