"""Modes, subclasses, transforms and tracers receive the same calls as with torch's Interpreter."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fxpress._graphs import engine as native_engine
from tests.support.engine import assert_same, by_torch, engine, tower, unflattened


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.log.append((func, len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.log.append((func, len(args), sorted(kwargs or {})))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode_type", [Functions, Dispatches])
def test_modes_log_the_same_sequence(mode_type: Any) -> None:
    _, module, x = tower()
    with mode_type() as theirs:
        expected = module(x)
    with engine():
        module(x)
        with mode_type() as ours:
            result = module(x)
        assert_same(result, expected)
        assert_same(module(x), expected)
    assert ours.log == theirs.log
    assert len(ours.log) > 10


def test_mode_pushed_during_a_run() -> None:
    _, module, x = tower()
    mode = Functions()
    blocks = module.blocks
    blocks.get_submodule("0").register_forward_hook(lambda *a: mode.__enter__() and None)
    blocks.get_submodule("1").register_forward_hook(lambda *a: mode.__exit__(None, None, None))
    theirs = module(x)
    log, mode.log = mode.log, []
    with engine():
        assert_same(module(x), theirs)
    assert mode.log == log
    assert log


def test_default_device() -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.zeros(3)

    module = unflattened(Makes(), torch.randn(3))
    with engine(), torch.device("meta"):
        assert module.graph is not None


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    _, module, x = tower()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = mode.from_tensor(x)
    for inside in (True, False):
        with engine():
            module(x)
            if inside:
                with mode:
                    out = module(fake)
            else:
                out = module(fake)
        assert isinstance(out, torch._subclasses.FakeTensor)
        assert out.shape == (2, 4)


class Logged(torch.Tensor):
    log: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.log.append(func)
        return super().__torch_function__(func, types, args, kwargs)


def test_function_subclass() -> None:
    _, module, x = tower()
    special = x.as_subclass(Logged)
    Logged.log.clear()
    expected = module(special)
    theirs, ours = list(Logged.log), Logged.log
    ours.clear()
    with engine():
        module(x)
        assert ours == []
        result = module(special)
    assert ours == theirs
    assert type(result) is type(expected) is Logged
    assert torch.equal(result, expected)


def test_dispatch_subclass() -> None:
    _, module, x = tower()
    two = TwoTensor(x, x.clone())
    with torch.no_grad():
        expected = module(two)
        with engine():
            module(x)
            ours = module(two)
    assert type(ours) is TwoTensor
    assert_same(ours.a, expected.a)


def test_subclass_among_the_weights() -> None:
    _, module, x = tower()
    linear = getattr(module.blocks, "1").up
    plain = linear.weight
    with engine():
        module(x)
        del linear.weight
        linear.weight = plain.detach().as_subclass(Logged)
        Logged.log.clear()
        ours = module(x)
        assert torch.ops.aten.linear.default in Logged.log
    assert_same(ours, module(x))


def test_subclass_from_an_operator() -> None:
    """A Python kernel may return a subclass of which nobody has heard before."""

    @torch.library.custom_op("fxpress_test::special", mutates_args=())
    def special(x: torch.Tensor) -> torch.Tensor:
        return x.clone().as_subclass(Logged)

    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for target in (torch.ops.fxpress_test.special.default, torch.ops.aten.neg.default):
        node = graph.call_function(target, (node,))
    graph.output(node)
    root, x = nn.Module(), torch.randn(3)
    Logged.log.clear()
    expected = by_torch(root, graph, x)
    theirs, Logged.log = Logged.log, []
    ours = native_engine.run(root, graph, (x,))
    assert Logged.log == theirs
    assert type(ours) is type(expected) is Logged
    assert torch.equal(ours, expected)


def test_vmap_and_grad() -> None:
    _, module, _ = tower()
    x = torch.randn(5, 2, 8)
    weights = {k: v.detach() for k, v in module.named_parameters()}

    def loss(v: torch.Tensor) -> torch.Tensor:
        return module(v).square().sum()

    def by_weight(w: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(module, w, (x[0],)).sum()

    def results() -> tuple[Any, ...]:
        return (
            torch.vmap(module)(x),
            torch.func.grad(loss)(x[0]),
            torch.vmap(torch.func.grad(loss))(x),
            torch.func.jvp(module, (x[0],), (x[1],)),
            torch.func.grad(by_weight)(weights),
            torch.func.hessian(loss)(x[0]),
        )

    theirs = results()
    with engine():
        module(x[0])
        ours = results()
    assert_same(ours, theirs)


def targets(graph: torch.fx.Graph) -> list[Any]:
    return [(n.op, n.target if n.op == "call_function" else "") for n in graph.nodes]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx(mode: str, pre_dispatch: bool) -> None:
    _, module, x = tower()
    options = {"tracing_mode": mode, "pre_dispatch": pre_dispatch, "_allow_non_fake_inputs": True}
    theirs = make_fx(module, **options)(x)
    with engine():
        module(x)
        ours = make_fx(module, **options)(x)
    assert targets(ours.graph) == targets(theirs.graph)
    assert_same(ours(x), theirs(x))


def test_symbolic_trace() -> None:
    _, module, x = tower()

    class Wraps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 2

    theirs = torch.fx.symbolic_trace(Wraps())
    with engine():
        module(x)
        ours = torch.fx.symbolic_trace(Wraps())
        assert targets(ours.graph) == targets(theirs.graph)
        assert_same(ours(x), theirs(x))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace() -> None:
    _, module, x = tower()
    with torch.no_grad():
        theirs = torch.jit.trace(module, x, check_trace=False)
        with engine():
            module(x)
            ours = torch.jit.trace(module, x, check_trace=False)
        kinds = [n.kind() for n in ours.inlined_graph.nodes()]
        assert kinds == [n.kind() for n in theirs.inlined_graph.nodes()]
        assert_same(ours(x), theirs(x))


def test_preserved_meta() -> None:
    _, module, x = tower()

    def traced() -> list[Any]:
        with fx_traceback.preserve_node_meta():
            graph = make_fx(module)(x).graph
        return [
            (n.target, [s.name for s in n.meta["from_node"]])
            for n in graph.nodes
            if n.op == "call_function" and "from_node" in n.meta
        ]

    theirs = traced()
    with engine():
        module(x)
        ours = traced()
    assert ours == theirs
    assert len(ours) > 10


def test_profiler_sees_the_same_operators() -> None:
    _, module, x = tower()

    def profiled() -> list[str]:
        with torch.profiler.profile() as profiler:
            module(x)
        return [e.name for e in profiler.events() if e.name.startswith("aten::")]

    module(x)
    theirs = profiled()
    with engine():
        module(x)
        assert profiled() == theirs


def test_profiler_with_modules_sees_the_modules() -> None:
    _, module, x = tower()

    def profiled() -> int:
        with torch.profiler.profile(with_stack=True) as profiler:
            module(x)
        return sum("nn.Module: InterpreterModule" in e.name for e in profiler.events())

    theirs = profiled()
    with engine():
        module(x)
        assert profiled() == theirs
    assert theirs > 5


def test_export_of_an_unflattened_module() -> None:
    _, module, x = tower()
    theirs = torch.export.export(module, (x,), strict=False)
    with engine():
        module(x)
        ours = torch.export.export(module, (x,), strict=False)
    assert targets(ours.graph) == targets(theirs.graph)


def test_compile() -> None:
    _, module, x = tower(1)
    expected = module(x)
    with engine():
        module(x)
        compiled = torch.compile(module, backend="eager", fullgraph=False)
        torch.testing.assert_close(compiled(x), expected)
    torch._dynamo.reset()


def test_saved_tensor_hooks() -> None:
    _, module, x = tower()
    packed: list[Any] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t.shape)
        return t

    def run() -> list[Any]:
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            module(x).sum().backward()
        return list(packed)

    theirs = run()
    with engine():
        assert run() == theirs
    assert theirs
