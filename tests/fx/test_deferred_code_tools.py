"""torch's compilers, exporters and packagers on split modules whose code was not generated yet."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.package import PackageExporter, PackageImporter

from tests.support.deferred import (
    Pair,
    assert_equal,
    inputs,
    is_deferred,
    make_pair,
    negate_output,
)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def readable(module: GraphModule) -> str:
    """Return the graphs of a module as text, without the numbers of generated sources."""
    text = module.print_readable(print_output=False)
    return re.sub(r"<eval_with_key>\.\d+", "<source>", text)


class Recorder:
    """A backend that keeps the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def __call__(self, module: GraphModule, example: list[Any]) -> Callable[..., Any]:
        self.graphs.append(readable(module))
        return module.forward


class Caller(torch.nn.Module):
    """A user's module around an untouched child."""

    def __init__(self, child: torch.nn.Module, how: str) -> None:
        super().__init__()
        self.child = child
        self.how = how

    def forward(self, *args: torch.Tensor) -> Any:
        if self.how == "forward":
            return self.child.forward(*args)
        if self.how == "getattr":
            return getattr(self.child, "forward")(*args)  # noqa: B009
        return self.child(*args)


HOW = ("call", "forward", "getattr")


# ---- torch.compile ----


def compiled(
    module: torch.nn.Module, args: tuple[Any, ...], **options: Any
) -> tuple[Any, list[str]]:
    recorder = Recorder()
    run = torch.compile(module, backend=recorder, fullgraph=True, **options)
    first, second = run(*args), run(*args)
    assert_equal(first, second)
    assert len(recorder.graphs) == 1  # generating code invalidated no guard
    return first, recorder.graphs


@pytest.mark.parametrize("dynamic", [None, True])
def test_compile_whole(pair: Pair, dynamic: bool | None) -> None:
    assert is_deferred(pair.ours)
    ours, graphs = compiled(pair.ours, pair.args, dynamic=dynamic)
    torch._dynamo.reset()
    theirs, expected = compiled(pair.theirs, pair.args, dynamic=dynamic)
    assert_equal(ours, theirs)
    assert graphs == expected


@pytest.mark.parametrize("how", HOW)
def test_compile_a_caller(pair: Pair, how: str) -> None:
    ours, graphs = compiled(Caller(pair.ours, how), pair.args)
    torch._dynamo.reset()
    theirs, expected = compiled(Caller(pair.theirs, how), pair.args)
    assert_equal(ours, theirs)
    assert graphs == expected


def test_compile_in_place(pair: Pair) -> None:
    pair.ours.compile(backend="eager", fullgraph=True)
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_compile_the_forward(pair: Pair) -> None:
    run = torch.compile(pair.ours.forward, backend="eager", fullgraph=True)
    assert_equal(run(*pair.args), pair.expected())


def test_compile_aot_eager_with_gradients(pair: Pair) -> None:
    def gradients(module: GraphModule) -> list[Any]:
        pair.source.zero_grad()
        out = torch.compile(module, backend="aot_eager", fullgraph=True)(*pair.args)
        sum(o.square().sum() for o in out).backward()
        torch._dynamo.reset()
        return [p.grad for p in pair.source.parameters() if p.grad is not None]

    pair.same_result(gradients)


def test_compile_two_splits_that_differ() -> None:
    """Each has a separate class: the second is not confused with the first."""
    pair, other = make_pair("result"), make_pair("result")
    for module in (other.ours, other.theirs):
        negate_output(module.submod_0)
    other.theirs.recompile()
    run = torch.compile(lambda m, *a: m(*a), backend="eager", fullgraph=True)
    for each in (pair, other, pair):
        assert_equal(run(each.ours, *each.args), each.expected())


# ---- export ----


def exported_text(program: torch.export.ExportedProgram) -> tuple[str, str]:
    return str(program.graph_signature), readable(program.graph_module)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export(pair: Pair, strict: bool) -> None:
    def export(module: GraphModule) -> torch.export.ExportedProgram:
        return torch.export.export(module, pair.args, strict=strict)

    assert is_deferred(pair.ours)
    ours, theirs = export(pair.ours), export(pair.theirs)
    assert exported_text(ours) == exported_text(theirs)
    assert_equal(ours.module()(*pair.args), pair.expected())


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_a_caller(pair: Pair, how: str, strict: bool) -> None:
    def export(module: GraphModule) -> torch.export.ExportedProgram:
        return torch.export.export(Caller(module, how), pair.args, strict=strict)

    ours, theirs = export(pair.ours), export(pair.theirs)
    assert exported_text(ours) == exported_text(theirs)
    assert_equal(ours.module()(*pair.args), pair.expected())


def test_make_fx(pair: Pair) -> None:
    def traced(module: GraphModule) -> str:
        return make_fx(module)(*pair.args).code

    pair.same(traced)


def test_symbolic_trace_of_a_caller(pair: Pair) -> None:
    pair.same(lambda m: trace_caller(m, len(pair.args)).code)


def trace_caller(module: GraphModule, count: int) -> GraphModule:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = module

        def forward(self, x: Any, y: Any) -> Any:
            return self.child(x, y), self.child.forward(x, y)

    assert count == 2
    return torch.fx.symbolic_trace(Two())


# ---- TorchScript ----


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The TorchScript type system")
def test_script(pair: Pair) -> None:
    def scripted(module: GraphModule) -> str:
        script = torch.jit.script(module)
        assert_equal(script(*pair.args), pair.expected())
        return script.code

    pair.same(scripted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_a_caller_and_save(pair: Pair) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = pair.ours

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.child(x, y)

    stream = io.BytesIO()
    torch.jit.save(torch.jit.script(Two()), stream)
    stream.seek(0)
    assert_equal(torch.jit.load(stream)(*pair.args), pair.expected())


# ---- packages and caches ----


def packaged(module: GraphModule, file: Path) -> GraphModule:
    with PackageExporter(file) as exporter:
        exporter.extern(["torch.**", "torch", "tests.**"])
        exporter.save_pickle("model", "model.pkl", module)
    importer = PackageImporter(file)
    assert not [name for name in importer.extern_modules if name.startswith("fxpress")]
    return importer.load_pickle("model", "model.pkl")


def test_package(pair: Pair, tmp_path: Path) -> None:
    def loaded_code(module: GraphModule) -> str:
        loaded = packaged(module, tmp_path / f"{module is pair.ours}.pt")
        assert_equal(loaded(*pair.args), pair.expected())
        return loaded.code

    pair.same(loaded_code)


@pytest.mark.parametrize("inner", [False, True], ids=["module", "in a tuple"])
def test_key_of_inductors_cache(pair: Pair, inner: bool) -> None:
    from torch._inductor.codecache import FxGraphCachePickler

    def key(module: GraphModule) -> str:
        pickler = FxGraphCachePickler(module)
        return pickler.get_hash((module, 1) if inner else module)

    expected = key(make_pair("result", pair.source).theirs)
    assert expected == key(make_pair("result", pair.source).theirs)  # torch's own is stable
    pair.same(key)


def test_key_of_the_autograd_cache(pair: Pair) -> None:
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCachePickler

    pair.same(lambda m: AOTAutogradCachePickler(m).get_hash(m))


def test_key_of_a_deepcopy(pair: Pair) -> None:
    from torch._inductor.codecache import FxGraphCachePickler

    def key(module: GraphModule) -> str:
        copied = copy.deepcopy(module)
        return FxGraphCachePickler(copied).get_hash(copied)

    pair.same(key)


def test_functional_transforms() -> None:
    pair = make_pair("result")
    args = inputs()

    def loss(module: GraphModule) -> Any:
        parameters = dict(module.named_parameters())

        def run(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(module, parameters, args)[0].sum()

        return torch.func.grad(run)(parameters)

    pair.same_result(loss)


def test_checkpoint(pair: Pair) -> None:
    from torch.utils.checkpoint import checkpoint

    pair.same_result(lambda m: checkpoint(m, *pair.args, use_reentrant=False))


def test_profiler_metadata(pair: Pair) -> None:
    """With torch's enriched profiler metadata the code is torch's, marks included."""
    from torch.fx.experimental import _config

    with _config.patch(enrich_profiler_metadata=True):
        pair.theirs.recompile()
        pair.same(lambda m: m.code)
        assert "RecordFunctionFast" in pair.ours.code
        assert_equal(pair.ours(*pair.args), pair.expected())
