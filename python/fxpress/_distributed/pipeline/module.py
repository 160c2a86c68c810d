"""The module of a stage: what it takes from the stage before, and gives to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.export import ExportedProgram

from fxpress._distributed.pipeline.calls import number_calls, plain
from fxpress._distributed.pipeline.errors import PipelineError
from fxpress._distributed.pipeline.order import restore_order
from fxpress._distributed.pipeline.rehearsal import fakes_of, fill
from fxpress._distributed.pipeline.route import route
from fxpress._distributed.pipeline.ties import kept
from fxpress._distributed.pipeline.values import as_result, packed, unpacked
from fxpress._distributed.stages.manifest import Manifest, Value
from fxpress._graphs.unflatten.modules import unflatten
from fxpress._torch.decompose import pytree
from fxpress._torch.export import reorder_kwargs

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


class StageModule(nn.Module):  # type: ignore[misc]
    """A stage of a program. Its parameters, buffers and modules have the names of the whole.

    The first stage takes what the program takes. Another takes the tensors that the one before
    gives. The last gives the program's results as a tensor or a tuple of tensors; see
    `LoadedStage.results`.
    """

    def __init__(
        self, program: ExportedProgram, manifest: Manifest, number: int, in_spec: Any
    ) -> None:
        super().__init__()
        number_calls(program.graph)
        names = list(program.state_dict)
        module = unflatten(program, share_state=True)  # nobody else has the program
        restore_order(module, names)
        # Both have the same state, under the same names: the other module is not a child.
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
        self._is_filled = False
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
        """Copy a state into the stage, as `torch.nn.Module` does; tied weights stay one."""
        with kept(self):
            return super().load_state_dict(state_dict, strict, assign)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Change all tensors, as `to_empty` and others do; tied weights stay one."""
        with kept(self):
            return super()._apply(fn, recurse)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the stage gives: a tuple of tensors; the last stage one tensor alone as such.

        Raises PipelineError for arguments that the stage does not take, or without its weights.
        """
        if not self._is_filled:
            self._check_state()
        values = self._first(args, kwargs) if self._is_first else self._received(args)
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
                    f"{name} was not loaded: fill the state of the stage from a checkpoint first"
                )
        self._is_filled = True

    def _first(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return the inputs of the whole program by name."""
        try:
            ordered = reorder_kwargs(kwargs, self._in_spec)
        except ValueError as error:
            raise PipelineError(f"stage 0 takes what the program takes: {error}") from None
        leaves, given = pytree.tree_flatten((tuple(args), ordered))
        if given != self._in_spec:
            raise PipelineError(
                "stage 0 takes what the program takes, which has another structure: "
                f"{_line(self._in_spec)}, not {_line(given)}"
            )
        return dict(zip((each.name for each in self._inputs), leaves, strict=True))

    def _received(self, args: tuple[Any, ...]) -> dict[str, Any]:
        if len(args) != len(self.takes):
            raise PipelineError(
                f"the stage takes {len(self.takes)} tensors from the one before, and was given "
                f"{len(args)}"
            )
        pairs = zip(self.takes, args, strict=True)
        return {facts.name: unpacked(tensor, facts) for facts, tensor in pairs}

    def given_fakes(self) -> list[Any]:
        """Return what the metadata says of each value that the program of the stage takes."""
        return [self._fakes[each.name] for each in self.facts.inputs]

    def fill(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Write to tensors in place of what the stage takes something that it runs with."""
        fill(tensors, self.takes, self._fakes)


def _line(spec: Any) -> str:
    """Return a tree spec as one line: errors of other ranks have no more."""
    return " ".join(str(spec).split())


def _results(manifest: Manifest) -> tuple[Value, ...]:
    """Return the results of the whole program that are computed, each once."""
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
    """Give the state of further calls of modules its original names in a state dict."""
    for name in [name for name in state if name.startswith(prefix) and plain(name) != name]:
        value = state.pop(name)
        state.setdefault(plain(name), value)


def _with_names_of_calls(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give the state of further calls of modules the names that it is loaded by."""
    names = {
        f"{prefix}{path}.{own}"
        for path, each in module.named_modules(remove_duplicate=False)
        for own in (*each._parameters, *each._buffers)
    }
    further = [name for name in names if plain(name) != name]
    for name in further:
        if plain(name) in state:
            state.setdefault(name, state[plain(name)])
    for name in further:
        if plain(name) not in names:
            state.pop(plain(name), None)
