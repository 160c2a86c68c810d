"""Compare the capture of a callable as a graph, and two of its steps, with torch."""

from __future__ import annotations

import functools
import gc
import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
import torch._dynamo.guards as torch_guards
from torch import nn
from torch._dynamo import functional_export as torch_capture
from torch.fx import Graph, GraphModule

import fxpress
import graphs
from figures import Figure, Goal, growth_over_floor
from floor import creation_times
from fxpress import functional_export
from fxpress._graphs.capture import functional_export as capturing
from fxpress._graphs.capture.guard_function import build_guard_function
from fxpress._graphs.capture.transformer import rewrite_and_clean
from timing import Action, interleaved, per_node, ratio, stopwatch

_Function = Callable[[list[str], str], tuple[str, str]]
Depths = tuple[int, ...]

GUARDS = Goal(40, more_is_better=True)
REWRITE = Goal(8, more_is_better=True)
LLAMA_LAYERS = 16


@dataclass(frozen=True)
class Model:
    """A model to capture, with its inputs and the goals."""

    name: str
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    capture: Goal
    light: Goal
    export: Goal
    compile_: Goal


def measure(layers: int, rounds: int, depths: Depths, *, every_model: bool) -> list[Figure]:
    """Measure complete captures and strict exports.

    Args:
        layers: the number of layers of the transformer.
        depths: numbers of stack frames; captures are timed once on a stack with each depth.
        every_model: also measure captures with the light check, compilations, the generation of
            guards and the rewrite; a CNN and, with `transformers`, a Llama; and larger graphs.
    """
    transformer = _transformer(layers)
    if not every_model:
        return _measure_whole(transformer, depths, IN_SHORT_TABLE)
    figures = _measure_whole(transformer, depths, ROWS)
    figures.append(_measure_guards(transformer, rounds, depths))
    figures += _measure_rewrite(transformer, rounds)
    for model in (convolutions(2 * layers), *llama()):
        figures += _measure_whole(model, depths, ROWS)
    figures.append(_measure_growth(rounds))
    return figures


def _transformer(count: int) -> Model:
    torch.manual_seed(0)
    layers = (graphs.Layer(graphs.WIDTH, graphs.HEADS) for _ in range(count))
    inputs = (torch.randn(2, 8, graphs.WIDTH),)
    name = f"transformer, {count} layers"
    return Model(name, nn.Sequential(*layers).eval(), inputs, *_goals(4, 6, 3, 2))


def convolutions(count: int) -> Model:
    """Return blocks of convolution, batch norm, activation and dropout."""
    module, inputs = graphs.convolution_module(count)
    return Model(f"CNN, {count} blocks", module, inputs, *_goals(3, 3, 2, 1.5))


def llama() -> list[Model]:
    """Return a list with a Llama; it is empty without `transformers`."""
    if importlib.util.find_spec("transformers") is None:
        return []
    module, inputs = graphs.llama_module(LLAMA_LAYERS)
    return [Model(f"Llama, {LLAMA_LAYERS} layers", module, inputs, *_goals(3, 3, 2.5, 2))]


def _goals(*bounds: float) -> list[Goal]:
    return [Goal(bound, more_is_better=True) for bound in bounds]


def _measure_guards(model: Model, rounds: int, depths: Depths) -> Figure:
    """Measure the generation of the function that checks guards."""
    calls = _recorded(lambda: torch.export.export(model.module, model.inputs, strict=True))
    parts, arguments = max(calls, key=lambda call: len(call[0]))
    theirs = functools.partial(torch_guards.build_guard_function, parts, arguments)
    ours = functools.partial(build_guard_function, parts, arguments)
    assert ours() == theirs()
    seconds = _at_depths({"ours": stopwatch(ours), "torch": stopwatch(theirs)}, rounds, depths)
    return Figure(
        f"{model.name}: {len(parts):,} guards",
        "generation of the function that checks the guards of a strict export",
        "us/guard",
        per_node(seconds["ours"], len(parts)),
        per_node(seconds["torch"], len(parts)),
        ratio(seconds["torch"], seconds["ours"]),
        len(seconds["ours"]),
        GUARDS,
    )


def _measure_rewrite(model: Model, rounds: int) -> list[Figure]:
    """Measure the rewrite to flat inputs and outputs with clean names, without and with code."""
    given: list[Any] = []

    def record(*arguments: Any) -> GraphModule:
        given.append(arguments)
        return rewrite_and_clean(*arguments)

    with mock.patch.object(capturing, "rewrite_and_clean", record):
        functional_export._dynamo_graph_capture_for_export(model.module)(*model.inputs)
    (arguments,) = given

    def ours() -> GraphModule:
        return rewrite_and_clean(*arguments)

    def theirs() -> GraphModule:
        made = torch_capture.DynamoGraphTransformer(*arguments).transform()
        made.recompile()
        torch_capture.clean_nn_module_stack_and_source_fn(made, True)
        torch_capture.clean_export_root(made)
        return made

    first = ours()
    assert str(first.graph) == str(theirs().graph)
    nodes = len(first.graph.nodes)
    seconds = interleaved(
        {
            "ours": stopwatch(ours),
            "with code": stopwatch(lambda: ours().code),
            "torch": stopwatch(theirs),
        },
        rounds,
    )
    return [
        Figure(
            f"{model.name}: {nodes:,} nodes",
            what,
            "us/node",
            per_node(seconds[which], nodes),
            per_node(seconds["torch"], nodes),
            ratio(seconds["torch"], seconds[which]),
            rounds,
            goal,
        )
        for what, which, goal in (
            ("rewrite of a captured graph to flat inputs, with clean names", "ours", REWRITE),
            (
                "rewrite of a captured graph to flat inputs, and generation of the code",
                "with code",
                None,
            ),
        )
    ]


def _captured(size: int) -> GraphModule:
    """Return a graph of `size` calls with the meta that Dynamo gives nodes."""
    graph = Graph()
    node = graph.placeholder("l_flat_args_0_")
    for i in range(size):
        node = graph.call_function(torch.neg, (node,))
        path = f"L['self']._export_root.layers[{i // 20}]"
        node.meta = {
            "stack_trace": "File",
            "nn_module_stack": {
                "L__self____export_root": ("L['self']._export_root", nn.Module),
                f"L__self____export_root_layers_{i // 20}": (path, nn.Linear),
            },
            "source_fn_stack": [(node.name, torch.neg)],
            "example_value": None,
        }
    graph.output((node,))
    return GraphModule(nn.Module(), graph)


def _measure_growth(rounds: int) -> Figure:
    """Measure the rewrite of 20,000 and of 2,000 nodes, compared with only creating the result."""
    outputs = {0: ("graph_out", 0)}

    def rewrite(module: GraphModule) -> GraphModule:
        return rewrite_and_clean(module, [None], [set()], {0: 0}, outputs, None, {})

    ratios = {}
    for size in (2_000, 20_000):
        module = _captured(size)
        seconds = interleaved(
            {
                "ours": stopwatch(functools.partial(rewrite, module)),
                "floor": lambda: creation_times([module], 1)[0],  # noqa: B023
            },
            rounds,
        )
        ratios[size] = ratio(seconds["ours"], seconds["floor"])
    return growth_over_floor("rewrite of a captured graph to flat inputs", ratios, rounds)


def _measure_whole(model: Model, depths: Depths, rows: Sequence[Row]) -> list[Figure]:
    """Measure rows of the table, once at each depth."""
    assert_same_results(model, [row.call for row in rows])
    actions: dict[Any, Action] = {}
    for row in rows:
        timed = functools.partial(row.call, model)
        actions |= {row.call: settled(timed), row: installed(timed, row.check)}
    seconds = _at_depths(actions, 1, depths)
    return [
        Figure(
            model.name,
            row.what,
            "s",
            per_node(seconds[row], 1) / 1e6,
            per_node(seconds[row.call], 1) / 1e6,
            ratio(seconds[row.call], seconds[row]),
            len(depths),
            row.goal(model),
            row.operation,
        )
        for row in rows
    ]


def capture(model: Model) -> GraphModule:
    """Capture with guards, and generate the code, which fxpress would do later."""
    made: GraphModule = torch_capture._dynamo_graph_capture_for_export(model.module)(*model.inputs)
    assert made.code
    return made


def export(model: Model) -> torch.export.ExportedProgram:
    """Export strictly."""
    return torch.export.export(model.module, model.inputs, strict=True)


def compile_(model: Model) -> torch.Tensor:
    """Compile with the eager backend, and run once."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both sides warn of Llama's side effects each time
        result = torch.compile(model.module, backend="eager", fullgraph=True)(*model.inputs)
    return result if isinstance(result, torch.Tensor) else result[0]


def assert_same_results(model: Model, calls: Sequence[Callable[[Model], Any]]) -> None:
    """Assert that the results equal torch's, also for captures with the light check."""
    ours = {}
    with fxpress.installed():
        for call in calls:
            ours[call] = _text(call(model))
        if capture in calls:
            with functional_export.check_constraints("light"):
                assert _text(capture(model)) == ours[capture]
    for call in calls:
        assert _text(call(model)) == ours[call]


def _text(made: Any) -> str:
    """Return a text of a captured graph, of a program, or of all elements of a tensor."""
    if isinstance(made, torch.Tensor):
        return str(made.tolist())
    return str(made.graph if isinstance(made, GraphModule) else made)


@dataclass(frozen=True)
class Row:
    """A call to measure with fxpress installed, and without it.

    Attributes:
        what: the name of the figure.
        call: the call, of a model.
        check: how fxpress checks constraints.
        goal: the goal of the figure for a model.
        operation: its name in the short table, or an empty text.
    """

    what: str
    call: Callable[[Model], Any]
    check: Literal["guards", "light"]
    goal: Callable[[Model], Goal]
    operation: str


IN_SHORT_TABLE = (
    Row("strict capture with guards", capture, "guards", lambda m: m.capture, "strict capture"),
    Row("strict export", export, "guards", lambda m: m.export, "strict export"),
)
ROWS = (
    *IN_SHORT_TABLE,
    Row(
        'strict capture with `check_constraints("light")`',
        capture,
        "light",
        lambda m: m.light,
        "",
    ),
    Row(
        "`torch.compile` with the eager backend, and the first call",
        compile_,
        "guards",
        lambda m: m.compile_,
        "torch.compile",
    ),
)


def settled(call: Callable[[], Any]) -> Action:
    """Return an action that exports a small model, and then times a call.

    The export fills caches that Dynamo drops when fxpress is installed or removed.
    """
    timed = stopwatch(call, time.process_time)

    def action() -> float:
        export(_transformer(2))
        gc.collect()
        return timed()

    return action


def installed(call: Callable[[], Any], check: Any) -> Action:
    """Return the same action with fxpress installed."""
    timed = settled(call)

    def action() -> float:
        with fxpress.installed(), functional_export.check_constraints(check):
            return timed()

    return action


def _at_depths(actions: dict[Any, Action], rounds: int, depths: Depths) -> dict[Any, list[float]]:
    seconds: dict[Any, list[float]] = {name: [] for name in actions}
    for depth in depths:
        deeper = {name: functools.partial(_below, depth, each) for name, each in actions.items()}
        for name, times in interleaved(deeper, rounds).items():
            seconds[name] += times
    return seconds


def _below(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else _below(depth - 1, call)


def _recorded(run: Callable[[], Any]) -> list[tuple[list[str], str]]:
    calls: list[tuple[list[str], str]] = []
    real: _Function = torch_guards.build_guard_function

    def record(code_parts: list[str], closure_args: str) -> tuple[str, str]:
        calls.append((list(code_parts), closure_args))
        return real(code_parts, closure_args)

    with mock.patch.object(torch_guards, "build_guard_function", record):
        run()
    return calls
