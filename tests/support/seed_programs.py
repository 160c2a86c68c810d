"""Small programs whose files contain every type of string of the schema."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Box:
    """A class of inputs that the user registers with pytree."""

    wide: Any
    high: Any


_library = torch.library.Library("fxpress_seeds", "FRAGMENT")


def register() -> None:
    """Register the classes and operators that the files name, as each user of a file has to do."""
    if hasattr(torch.ops.fxpress_seeds, "label"):
        return
    torch.utils._pytree._register_namedtuple(
        Pair, serialized_type_name="tests.support.seed_programs.Pair"
    )
    torch.export.register_dataclass(Box, serialized_type_name="tests.support.seed_programs.Box")
    _library.define("label(Tensor x, str label, *, str? other=None) -> Tensor")
    _library.impl("label", lambda x, label, other=None: x + len(label), "CompositeExplicitAutograd")
    torch.library.register_fake(
        "fxpress_seeds::label", lambda x, label, other=None: torch.empty_like(x), lib=_library
    )


class Keys(nn.Module):
    """Inputs and results under odd keys, and arguments by keyword."""

    def forward(self, x: Any, *, scale: Tensor, **more: Any) -> Any:
        total = x["a b"] + x["b-c"] * scale
        return {'quote"d': total, "it's": total, "für": OrderedDict(z=total + more["extra"]["x.y"])}


def keys() -> ExportedProgram:
    x = {"a b": torch.ones(3), "b-c": torch.ones(3)}
    return export(Keys(), (x,), {"scale": torch.ones(3), "extra": {"x.y": torch.ones(3)}})


class Containers(nn.Module):
    """Named tuples, data classes and default dictionaries as inputs and results."""

    def forward(self, pair: Any, box: Any, table: Any) -> Any:
        return Pair(pair.left + box.wide, [table["k"] * box.high, (pair.right, None)])


def containers() -> ExportedProgram:
    table = defaultdict(list, {"k": torch.ones(2)})
    one = torch.ones(2)
    return export(Containers(), (Pair(one, one * 2), Box(one, one), table), strict=False)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, *, factor: Tensor) -> Any:
        self.count.add_(1)
        return {"scaled": x * self.weight, "shifted": x + factor + self.count}


class Layers(nn.Module):
    """Modules whose calls are preserved, shared weights, constants, mutated state."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"first": Inner(), "second": Inner()})
        self.block["second"].weight = self.block["first"].weight
        self.constant = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block["first"](x, factor=self.constant)
        z = self.block["second"](y["scaled"], factor=y["shifted"])
        return z["scaled"] + z["shifted"] + torch.tensor([1.0, 2.0, 3.0])


def layers() -> ExportedProgram:
    preserved = ("block.first", "block.second")
    return export(Layers(), (torch.ones(3),), preserve_module_call_signature=preserved)


class Guarded(nn.Module):
    """Dynamic sizes with guards on them, and constants among the arguments."""

    def forward(self, x: Tensor, y: Tensor, mode: str = "sum", rate: float = 2.5) -> Any:
        if x.shape[0] % 3 == 0 or x.shape[0] * y.shape[0] < 50:
            return x[: y.shape[0] // 2].sum() * rate, x.shape[0] + y.shape[0]
        return x.sum() + y, mode


def guarded() -> ExportedProgram:
    shapes = ({0: Dim.AUTO}, {0: Dim.AUTO}, None, None)
    return export(Guarded(), (torch.ones(9, 2), torch.ones(8), "sum", 2.5), dynamic_shapes=shapes)


def guarded_strictly() -> ExportedProgram:
    shapes = ({0: Dim.AUTO}, {0: Dim("n", min=4, max=64)}, None, None)
    arguments = (torch.ones(9, 2), torch.ones(8), "sum", 2.5)
    return export(Guarded(), arguments, dynamic_shapes=shapes, strict=True)


class Unbacked(nn.Module):
    """Data-dependent sizes, and assertions about them."""

    def forward(self, x: Tensor, n: Tensor) -> Any:
        size = n.item()
        torch._check(size >= 2)
        torch._check(size <= x.shape[0])
        return x.narrow(0, 0, size) * 2, x.nonzero()


def unbacked() -> ExportedProgram:
    return export(
        Unbacked(), (torch.ones(6), torch.tensor(3)), dynamic_shapes=({0: Dim("n")}, None)
    )


class Branches(nn.Module):
    """Graphs within the graph, and modules in them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.sin(), (x,))
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            y = y + self.linear(x)
        return y


def branches() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Branches(), (torch.ones(2, 3),), strict=True)


class Labels(nn.Module):
    """An operator of the user with texts among its arguments, devices and dtypes."""

    def forward(self, x: Tensor) -> Any:
        y = torch.ops.fxpress_seeds.label(x, "a label", other="another")
        y = torch.einsum("ij,jk->ik", y, x).to(torch.float64, memory_format=torch.contiguous_format)
        return torch.div(y, 3, rounding_mode="floor") + torch.zeros(2, 2, device="cpu")


def labels() -> ExportedProgram:
    program = export(Labels(), (torch.ones(2, 2),))
    for node in program.graph.nodes:
        node.meta["custom"] = {"a key": "a value"}
    return program


PROGRAMS: tuple[Callable[[], ExportedProgram], ...] = (
    keys,
    containers,
    layers,
    guarded,
    guarded_strictly,
    unbacked,
    branches,
    labels,
)

# The arguments of the programs, in order.
LEAVES: dict[str, Callable[[], list[Any]]] = {
    "keys": lambda: [torch.ones(3)] * 4,
    "containers": lambda: [torch.ones(2)] * 5,
    "layers": lambda: [torch.ones(3)],
    "guarded": lambda: [torch.ones(9, 2), torch.ones(8), "sum", 2.5],
    "guarded_strictly": lambda: [torch.ones(9, 2), torch.ones(8), "sum", 2.5],
    "unbacked": lambda: [torch.ones(6), torch.tensor(3)],
    "branches": lambda: [torch.ones(2, 3)],
    "labels": lambda: [torch.ones(2, 2)],
}
