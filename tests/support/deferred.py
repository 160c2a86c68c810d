"""Splits by torch and by fxpress without generated code, for tests of the first access to code."""

import io
import operator
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module as torch_split

from fxpress._torch import fx as torch_fx
from fxpress.split_module import split_module

Which = Literal["result", "submodule"]
WHICH: tuple[Which, ...] = ("result", "submodule")


class Deep(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x)


class Net(torch.nn.Module):
    """Parameter, buffer, nested module, several values between the partitions, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.deep = Deep()
        self.scale = torch.nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.first(x) * self.scale)
        total = hidden.sum(-1)
        mixed = self.deep.second(hidden + y) + self.shift
        return mixed / (1.0 + total.unsqueeze(-1)), hidden


def in_blocks(module: GraphModule, size: int) -> Callable[[Node], int]:
    nodes = [n for n in module.graph.nodes if n.op.startswith("call_")]
    return {n: i // size for i, n in enumerate(nodes)}.__getitem__


def traced_net(*, annotated: bool = False) -> GraphModule:
    """Return the graph of `Net`. If `annotated`, the placeholders have types; then torch, not
    fxpress, generates the code."""
    torch.manual_seed(0)
    module = torch.fx.symbolic_trace(Net())
    if not annotated:
        for node in module.graph.nodes:
            node.type = None
        module.recompile()
    return module


def is_deferred(module: torch.nn.Module) -> bool:
    """Whether no code was generated yet for this module."""
    return any(torch_fx.PENDING in vars(cls) for cls in type(module).__mro__)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)


def inner_inputs(root: GraphModule) -> tuple[torch.Tensor, ...]:
    """Return the inputs of `submod_0` of a split `Net`: the input and the scale."""
    return inputs()[0], root.scale


@dataclass(frozen=True)
class Pair:
    """Splits of one module by fxpress and by torch, which share weights, without code."""

    ours: GraphModule
    theirs: GraphModule
    args: tuple[torch.Tensor, ...]
    root: GraphModule  # the split that contains `ours`; the attribute keeps it alive
    source: GraphModule  # what was split

    def same(self, value: Callable[[GraphModule], Any]) -> Any:
        """Apply `value` to both, compare the results, and return fxpress's."""
        assert is_deferred(self.ours)
        ours, theirs = value(self.ours), value(self.theirs)
        assert ours == theirs
        return ours

    def same_result(self, call: Callable[[GraphModule], Any]) -> None:
        """Apply `call` to both and compare the tensors bit for bit."""
        assert is_deferred(self.ours)
        assert_equal(call(self.ours), call(self.theirs))

    def expected(self) -> Any:
        return self.theirs(*self.args)


def make_pair(which: Which, source: GraphModule | None = None, **options: Any) -> Pair:
    source = traced_net() if source is None else source
    callback = in_blocks(source, 4)
    theirs = torch_split(source, None, callback, **options)
    ours = split_module(source, None, callback, **options)
    if which == "result":
        return Pair(ours, theirs, inputs(), ours, source)
    return Pair(ours.submod_0, theirs.submod_0, inner_inputs(ours), ours, source)


def negate_output(module: GraphModule) -> None:
    """Insert `neg` before the first value that the module returns."""
    output = module.graph.output_node()
    values = output.args[0]
    first = values[0] if isinstance(values, (tuple, list)) else values
    with module.graph.inserting_before(output):
        negated = module.graph.call_function(operator.neg, (first,))
    output.replace_input_with(first, negated)


def assert_equal(ours: Any, theirs: Any) -> None:
    """Assert that values and containers are equal bit for bit; NaN equals NaN."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def stderr_of(call: Callable[[], Any]) -> tuple[BaseException | None, str]:
    """Return the exception of `call`, and its output on stderr."""
    stream = io.StringIO()
    with redirect_stderr(stream):
        try:
            call()
        except Exception as error:
            return error, stream.getvalue()
    return None, stream.getvalue()
