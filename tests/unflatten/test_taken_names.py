"""State and children whose names the classes of unflattened modules have for something else."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import fxpress
from fxpress._base.errors import UnsupportedError
from fxpress.decompose import report, run_decompositions
from fxpress.export import module
from fxpress.serialize import serialize
from fxpress.unflatten import unflatten
from tests.support.sampled import turns
from tests.support.unflatten_cases import quietly, torchs


class Holder(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_buffer(name, torch.arange(2.0))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        value = self._buffers[self.name]
        assert value is not None
        return x + value


class AroundState(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = Holder(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class AroundChild(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, Holder("value"))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        child = self._modules[self.name]
        assert child is not None
        return child(x)


STATE = "state of module 'inner', a InterpreterModule"
CHILD = "module '', a UnflattenedModule, cannot have a submodule of that name"
NAMES = ["graph", "finalize", "print_readable"]


@pytest.mark.parametrize(
    ("model", "name", "what"),
    [
        *((AroundState, name, STATE) for name in NAMES),
        *((AroundChild, name, CHILD) for name in (*NAMES, "meta", "ivals", "module_call_graph")),
    ],
)
def test_the_error_names_the_module(model: type[nn.Module], name: str, what: str) -> None:
    program = export(model(name), (torch.ones(2),), strict=False)
    with pytest.raises(KeyError, match=f"attribute '{name}' already exists"):
        torchs(program)
    with pytest.raises(KeyError) as caught:
        quietly(program)
    assert caught.value.args == (f"attribute '{name}' already exists: {what}",)


@pytest.mark.parametrize("model", [AroundState, AroundChild])
@pytest.mark.parametrize("name", ["parent", "fqn", "call_modules", "graph_module", "_x"])
def test_other_names_are_free(model: type[nn.Module], name: str) -> None:
    x = torch.ones(2)
    program = export(model(name), (x,), strict=False)
    ours = quietly(program)
    assert torch.equal(ours(x), x + torch.arange(2.0))
    assert list(ours.state_dict()) == list(program.state_dict)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Named(nn.Module):
    """State or a child with a name of the caller's, and a constant that torch names."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([5.0, 7.0]))
        self.name = name
        value = torch.tensor([2.0, 3.0])
        if kind == "parameter":
            self.register_parameter(name, nn.Parameter(value))
        elif kind == "child":
            self.add_module(name, Part())
        elif kind == "constant":
            setattr(self, name, value)
        else:
            self.register_buffer(name, value, persistent=kind == "buffer")

    def forward(self, x: Tensor) -> Tensor:
        own = getattr(self, self.name)
        y = own(x) if isinstance(own, nn.Module) else x * own
        first, second = torch.split(y + torch.tensor([11.0, 13.0]) + self.weight, 1, -1)
        return first - second


KINDS = ["parameter", "buffer", "transient buffer", "constant", "child"]
INVENTED = ["lifted_tensor_0", "lifted_custom_0", "_guards_fn", "c_weight", "p_weight", "b_weight"]
INVENTED += ["obj_weight", "token", "getitem"]


@pytest.mark.parametrize("name", INVENTED)
@pytest.mark.parametrize(("kind", "strict"), turns(KINDS, [False, True]))
def test_names_that_torch_invents(name: str, kind: str, strict: bool) -> None:
    x = torch.tensor([1.0, 10.0])
    model = Named(name, kind)
    if (name, kind, strict) == ("lifted_tensor_0", "transient buffer", True):
        pytest.skip("torch does not export this model")
    program = export(model, (x,), strict=strict)
    if (name, kind) == ("lifted_tensor_0", "constant"):  # torch keeps one value for the two
        for use in (unflatten, module):
            with pytest.raises(UnsupportedError, match="named 'lifted_tensor_0'"):
                use(program)
        return
    file = io.BytesIO()
    fxpress.save(program, file)
    decomposed = run_decompositions(program)
    for each in (program, fxpress.load(io.BytesIO(file.getvalue())), decomposed):
        for made in (unflatten(each), module(each), module(each, check_guards=False)):
            assert torch.equal(made(x), model(x))
        for check_guards in (True, False):
            with pytest.raises((AssertionError, RuntimeError)):  # another size
                module(each, check_guards=check_guards)(torch.ones(1))


@pytest.mark.parametrize("name", ["lifted_tensor_0", "_guards_fn"])
@pytest.mark.parametrize("kind", ["parameter", "buffer", "child"])
def test_programs_with_invented_names_are_traced_in_full(name: str, kind: str) -> None:
    x = torch.tensor([[1.0, 10.0], [2.0, 3.0], [5.0, 4.0]])
    model = Named(name, kind)
    program = export(model, (x,), dynamic_shapes=({0: Dim.DYNAMIC},), strict=True)
    decomposed = run_decompositions(program)
    assert report().reason
    for made in (unflatten(decomposed), module(decomposed)):
        assert torch.equal(made(x), model(x))


class Affine(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([scale, scale + 1]))
        self.register_buffer("offset", torch.tensor([scale * 3]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.offset


class Children(nn.Module):
    def __init__(self, names: str, order: str) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({n: Affine(i + 2.0) for i, n in enumerate(names.split("|"))})
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        children = list(self.inner.values())
        for i in self.order:
            x = children[int(i)](x)
        return x


@pytest.mark.parametrize(
    ("names", "order"), [("n|n@1", "01"), ("n@1|n", "0011"), ("n|m@1", "01"), ("@1", "0")]
)
@pytest.mark.parametrize("strict", [False, True])
def test_children_named_as_repeated_calls(names: str, order: str, strict: bool) -> None:
    x = torch.tensor([1.0, 10.0])
    model = Children(names, order)
    program = export(model, (x,), strict=strict)
    for made in (unflatten(program), module(program)):
        assert torch.equal(made(x), model(x))


@pytest.mark.parametrize(
    ("name", "in_files"),
    [
        *((name, True) for name in ("class", "None", "lambda", "a-b", "a b", "é", "%s{0}", "a@b")),
        *((name, False) for name in ("it's", 'a"b', "a\\b", "a\nb", "a,b", "a;b", "a]b", "(x")),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_names_of_children(name: str, in_files: bool, strict: bool) -> None:
    x = torch.tensor([1.0, 10.0])
    model = Children(name, "00")
    programs = [export(model, (x,), strict=strict)]
    file = io.BytesIO()
    if in_files:
        fxpress.save(programs[0], file)
        programs.append(fxpress.load(io.BytesIO(file.getvalue())))
    else:
        with pytest.raises(UnsupportedError, match="a file cannot contain this name"):
            fxpress.save(programs[0], file)
        with pytest.raises(UnsupportedError, match="a file cannot contain this name"):
            serialize(programs[0])
        assert not file.getvalue()
    for program in programs:
        for made in (unflatten(program), module(program)):
            assert torch.equal(made(x), model(x))
