"""Exports compared with torch's: modes, contexts, threads, side effects of a forward."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Any

import pytest
import torch
import torch.fx.traceback as fx_traceback
from torch._export.serde.serialize import serialize
from torch._logging._internal import trace_log
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import export, unflatten
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fxpress
from tests.support.export_cases import (
    FORWARDS,
    SLOW,
    Made,
    Nested,
    branches,
    of_data,
    on_device,
    one_line_many_operators,
    views_and_writes,
)
from tests.support.programs import (
    Side,
    assert_exports_as_torch,
    assert_nothing_replaced,
    assert_same_program,
    exported_by_us,
    replaced_names,
)
from tests.support.sampled import turns

# ---- modes --------------------------------------------------------------------------------------


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Seen, Dispatched])
@pytest.mark.parametrize("inside", [False, True])
def test_modes_of_the_user(mode: Any, inside: bool) -> None:
    seen: list[list[str]] = []

    def forward(self: Any, x: Any) -> Any:
        y = x.sin() + x
        with mode() if inside else contextlib.nullcontext() as active:
            y = y.view(4, 3) + self.linear(x).view(4, 3) + torch.ones(4, 3)
            if active is not None:
                seen.append(active.names)
        return y.sin() + y

    def way(*args: Any, **options: Any) -> Any:
        with contextlib.nullcontext() if inside else mode() as active:
            result = export(*args, **options)
        if active is not None:
            seen.append(active.names)
        return result

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),), way=way)
    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),), way=way)
    assert seen[-1] == seen[-2]


CONTEXTS: list[Any] = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.device("cpu"),
    lambda: torch.device("meta"),
    lambda: torch.autocast("cpu", torch.bfloat16),
    lambda: torch.set_grad_enabled(True),
    lambda: fx_traceback.preserve_node_meta(),
    lambda: torch.fx.experimental._config.patch(soft_pending_unbacked_not_found_error=True),
    lambda: torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True),
    lambda: torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
    lambda: torch._dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True),
]


@SLOW
@pytest.mark.parametrize(
    ("context", "name"), turns(CONTEXTS, ["one_line_many_operators", "factories"])
)
def test_contexts(context: Any, name: str) -> None:
    def way(*args: Any, **options: Any) -> Any:
        with context():
            return export(*args, **options)

    assert_exports_as_torch(Made(FORWARDS[name]), (torch.rand(3, 4),), way=way, runs=False)


def test_default_device() -> None:
    torch.set_default_device("cpu")
    try:
        assert_exports_as_torch(Made(on_device), (torch.rand(3, 4),))
    finally:
        torch.set_default_device(None)


def test_fake_inputs() -> None:
    with FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv()):
        model, x = Made(one_line_many_operators), torch.empty(3, 4)
    assert_exports_as_torch(model, (x,), runs=False)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.rand(3, 4)
    assert_exports_as_torch(Made(views_and_writes), (x,))


# ---- what forward does besides ------------------------------------------------------------------


@SLOW
def test_nested_export() -> None:
    inner: list[Any] = []

    def forward(self: Any, x: Any) -> Any:
        y = self.linear(x)
        inner.append(export(Nested(), (torch.rand(2, 4),)))
        return y.sin() + y.view(4, 3).sin().view(3, 4)

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))


def test_make_fx_inside() -> None:
    codes: list[str] = []

    def forward(self: Any, x: Any) -> Any:
        traced = make_fx(lambda y: y.sin() + y)(torch.ones(2))
        codes.append(traced.code)
        graph = traced.graph
        node = next(n for n in graph.nodes if n.op == "call_function")
        node.target = torch.ops.aten.cos.default
        codes.append(traced.code)
        codes.append(traced.recompile().src)
        codes.append(traced.code)
        return x.sin() + 1

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))
    half = len(codes) // 2
    assert codes[:half] == codes[half:]


def test_compile_inside() -> None:
    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.code)
        return module.forward

    def forward(self: Any, x: Any) -> Any:
        return torch.compile(lambda y: y.sin() + 1, backend=backend)(x)

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_error_in_forward(error: type[BaseException]) -> None:
    def forward(self: Any, x: Any) -> Any:
        raise error(f"here{x.sin().shape}")

    before = list(replaced_names())
    with pytest.raises(error, match="here"):
        exported_by_us(Made(forward), (torch.rand(3, 4),))
    assert_nothing_replaced(before)
    assert_exports_as_torch(Made(one_line_many_operators), (torch.rand(3, 4),))


def test_torch_is_as_it_was() -> None:
    before = list(replaced_names())
    exported_by_us(Made(one_line_many_operators), (torch.rand(3, 4),), strict=True)
    assert_nothing_replaced(before)


def test_other_threads_have_torchs_functions() -> None:
    """torch can export in one thread at a time; other threads use torch's functions meanwhile."""
    started, ended = threading.Event(), threading.Event()
    seen: list[Any] = []

    def other() -> None:
        started.wait(60)
        while not ended.is_set() or not seen:
            graph = torch.fx.Graph()
            graph.output(graph.placeholder("x"))
            module = torch.fx.GraphModule({}, graph)
            seen.append("_code" in vars(module))

    def forward(self: Any, x: Any) -> Any:
        started.set()
        return FORWARDS["one_line_many_operators"](self, x) + FORWARDS["fused"](self, x)[1]

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))
    finally:
        ended.set()
        thread.join()
    assert all(seen)


@SLOW
def test_exports_in_several_threads() -> None:
    names = ["one_line_many_operators", "fused", "several_outputs", "factories"]
    models = [Made(FORWARDS[name]) for name in names]
    x = torch.rand(3, 4)
    theirs = [export(model, (x,)) for model in models]
    ours: dict[int, Any] = {}
    one = threading.Lock()  # torch can export in one thread at a time
    before = list(replaced_names())

    def run(index: int) -> None:
        with one:
            ours[index] = exported_by_us(models[index], (x,))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, program in enumerate(theirs):
        assert_same_program(ours[index], program)
    assert_nothing_replaced(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_while_a_block_is_open() -> None:
    codes: list[int] = []

    def forward(self: Any, x: Any) -> Any:
        child = os.fork()
        if not child:
            graph = torch.fx.Graph()
            graph.output(graph.placeholder("x"))
            ok = torch.fx.GraphModule({}, graph)(3) == 3
            os._exit(0 if ok else 1)
        codes.append(os.waitpid(child, 0)[1])
        return x.sin()

    before = list(replaced_names())
    exported_by_us(Made(forward), (torch.rand(3, 4),))
    assert codes == [0]
    assert_nothing_replaced(before)


def test_fork_in_another_thread() -> None:
    """The child has no thread that is in a block: nothing of torch is replaced there."""
    inside, forked = threading.Event(), threading.Event()

    def forward(self: Any, x: Any) -> Any:
        inside.set()
        forked.wait(60)
        return x.sin()

    before = list(replaced_names())
    thread = threading.Thread(target=exported_by_us, args=(Made(forward), (torch.rand(3, 4),)))
    with fxpress.installed():
        thread.start()
        inside.wait(60)
        child = os.fork()
        if not child:
            same = all(a[2] is b[2] for a, b in zip(before, replaced_names(), strict=True))
            os._exit(0 if same else 1)
        status = os.waitpid(child, 0)[1]
        forked.set()
        thread.join()
    assert status == 0
    assert_nothing_replaced(before)


@SLOW
def test_draft_export() -> None:
    from torch.export import draft_export

    assert_exports_as_torch(Made(of_data), (torch.rand(3, 4) + 0.1,), way=draft_export)


@SLOW
@pytest.mark.parametrize("name", ["one_line_many_operators", "branches"])
def test_programs_as_bytes(name: str) -> None:
    x = torch.rand(3, 4)
    texts = []
    for way in (export, exported_by_us):
        program = way(Made(FORWARDS[name]).eval().requires_grad_(False), (x,))
        texts.append(str(program.run_decompositions()))
        texts.append(str(unflatten(program).graph))
        texts.append(serialize(program).exported_program.decode())
    ours, theirs = texts[3:], texts[:3]
    assert Side().described(ours) == Side().described(theirs)


GRAPHS_IN_TRACES = {"dynamo_output_graph", "exported_program", "graph_dump"}


@SLOW
@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_structured_traces(strict: bool) -> None:
    """The graphs that TORCH_TRACE writes."""
    written: list[list[Any]] = []

    def way(*args: Any, **options: Any) -> Any:
        records: list[Any] = []
        handler = logging.Handler()
        handler.emit = records.append  # type: ignore[method-assign]
        trace_log.addHandler(handler)
        try:
            return export(*args, **options)
        finally:
            trace_log.removeHandler(handler)
            kinds = [(next(k for k in r.metadata if k != "stack"), r.payload) for r in records]
            written.append([each for each in kinds if each[0] in GRAPHS_IN_TRACES])

    model = Made(FORWARDS["branches"])
    assert_exports_as_torch(model, (torch.rand(3, 4),), way=way, strict=strict)
    assert written[0]
    assert Side().described(written[1]) == Side().described(written[0])


@SLOW
def test_logs(caplog: pytest.LogCaptureFixture) -> None:
    texts: list[list[str]] = []

    def way(*args: Any, **options: Any) -> Any:
        handler = logging.Handler()
        lines: list[str] = []
        handler.emit = lambda r: lines.append(r.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("torch.fx.experimental.proxy_tensor")
        logger.addHandler(handler)
        level = logger.level
        torch._logging.set_logs(graph_code=True, export=logging.INFO)
        try:
            return export(*args, **options)
        finally:
            torch._logging.set_logs()
            logger.removeHandler(handler)
            logger.setLevel(level)
            texts.append(lines)

    assert_exports_as_torch(Made(branches), (torch.rand(3, 4),), way=way)
    assert texts[0] == texts[1]
