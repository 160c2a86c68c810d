"""Compare every step from export to forward with torch's, on models of transformers."""

from __future__ import annotations

import copy
import functools
import io
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

import bench_capture
import bench_decompose
import fxpress
from bench_architectures import find_architectures
from compare import assert_same_output
from figures import Figure, Goal, Step
from fxpress import archive, decompose
from fxpress.decompose import Report
from fxpress.export import module
from fxpress.unflatten import unflatten
from progress import Progress
from timing import interleaved, per_node, ratio, stopwatch

NEVER_SLOWER = Goal(1, more_is_better=True)
CACHED = "llama_cache"  # returns keys and values
STEPS = {
    "any names": "first decomposition within `any_names()`",
    "first": "first decomposition",
    "second": "second decomposition",
}
FORWARD = "forward of the unflattened module"
DIFFERENCE = 300  # characters of a difference in the report


@dataclass(frozen=True)
class Model:
    """A model with static or dynamic batch and sequence sizes.

    Attributes:
        family: the name of its family, or `CACHED`.
        sizes: "static" or "dynamic".
        shapes: the dynamic shapes of its inputs, if its sizes are dynamic.
    """

    family: str
    layers: int
    sizes: str
    eager: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: Any

    @property
    def name(self) -> str:
        return f"{self.family}, {self.layers} layers, {self.sizes}"

    def export(self, *, strict: bool = False) -> ExportedProgram:
        """Export the model, by fxpress if it is installed."""
        torch.manual_seed(0)
        return torch.export.export(
            self.eager, self.args, self.kwargs, dynamic_shapes=self.shapes, strict=strict
        )

    def step(
        self,
        name: str,
        seconds: dict[str, list[float]],
        difference: str,
        *,
        ours: str = "ours",
        report: Report | None = None,
    ) -> Step:
        """Return the figure of a step.

        Args:
            seconds: the times of torch ("torch") and of fxpress.
            ours: the key of the times of fxpress.
        """
        return Step(
            self.name,
            name,
            "s",
            per_node(seconds[ours], 1) / 1e6,
            per_node(seconds["torch"], 1) / 1e6,
            ratio(seconds["torch"], seconds[ours]),
            len(seconds["torch"]),
            NEVER_SLOWER,
            family=self.family,
            sizes=self.sizes,
            difference=difference,
            report=report,
        )


def measure(names: Sequence[str], layers: int, rounds: int, progress: Progress) -> list[Figure]:
    """Measure every step of every model.

    A result that differs from torch's does not stop the benchmark: the report lists it.

    Args:
        names: only these models; all if it is empty.
        layers: layers of each model; an encoder and a decoder each have this many.
        rounds: how often each step is measured.
        progress: is called for each model.
    """
    if not find_architectures():
        return []
    from tests.support.architectures import FAMILIES, architecture, with_cache
    from tests.support.exported import dynamic_shapes

    figures: list[Figure] = []
    for name in names or (*FAMILIES, CACHED):
        made = (
            with_cache("llama", layers)
            if name == CACHED
            else architecture(name, layers, masked=True)
        )
        for sizes in ("static", "dynamic"):
            shapes = dynamic_shapes(made.args, made.kwargs, 2) if sizes == "dynamic" else None
            model = Model(name, layers, sizes, made.model, made.args, made.kwargs, shapes)
            for measure_steps in (_exports, _decompositions, _files, _modules):
                progress(f"{name}, {sizes}: {measure_steps.__name__.strip('_')}")
                figures += measure_steps(model, rounds)
    return figures


def _exports(model: Model, rounds: int) -> Iterator[Step]:
    from tests.support.programs import assert_exported_as_torch

    for name, strict in (("non-strict export", False), ("strict export", True)):
        export = functools.partial(model.export, strict=strict)

        def compare(export: Callable[[], ExportedProgram] = export) -> None:
            theirs = export()
            with fxpress.installed():
                ours = export()
            assert_exported_as_torch(ours, theirs, stale=None)

        difference = _difference(compare)
        actions = {
            "ours": bench_capture.installed(export, "guards"),
            "torch": bench_capture.settled(export),
        }
        yield model.step(name, interleaved(actions, rounds), difference)


def _decompositions(model: Model, rounds: int) -> Iterator[Step]:
    """Measure the first decomposition of a program, and then of an equal program.

    With dynamic sizes, also measure the first decomposition within `decompose.any_names()`.
    """
    from tests.support.decompose_cases import assert_equal_except_names, assert_fresh_as_torch

    for table, given in bench_decompose.TABLES.items():
        try:
            model.export().run_decompositions(given)
        except Exception as error:
            print(f"{model.name}: torch does not decompose it, {table}: {error!r}"[:DIFFERENCE])
            continue
        # Names of dynamic programs depend on earlier computations with their symbols, so torch and
        # fxpress each decompose a program that was just exported.
        decompose.forget_templates()
        compare = functools.partial(assert_fresh_as_torch, model.export, lambda given=given: given)
        differences = dict.fromkeys(("first", "second"), _difference(compare))
        reports: dict[str, Report] = {}
        others: dict[str, list[float]] = {"first": []}
        if model.sizes == "dynamic":
            compare = functools.partial(
                assert_equal_except_names, model.export, lambda given=given: given
            )
            differences["any names"] = _difference(compare)
            others["any names"] = []

        def fresh(name: str, given: Any = given, reports: dict[str, Report] = reports) -> float:
            with fxpress.installed():
                program = model.export()
            seconds = bench_decompose.installed(program, given, keep=name == "second")()
            reports[name] = decompose.report()
            return seconds

        def both(fresh: Callable[[str], float] = fresh, others: Any = others) -> float:
            if "any names" in others:
                with decompose.any_names():
                    others["any names"].append(fresh("any names"))
            others["first"].append(fresh("first"))
            return fresh("second")

        def theirs(given: Any = given) -> float:
            return bench_decompose.processor_time(model.export(), given)()

        seconds = {**interleaved({"second": both, "torch": theirs}, rounds), **others}
        for name, report in reports.items():
            yield model.step(
                f"`run_decompositions`, {table}, {STEPS[name]}",
                seconds,
                differences[name],
                ours=name,
                report=report,
            )


def _files(model: Model, rounds: int) -> Iterator[Step]:
    from tests.support import archived

    program = model.export()
    data = bytes(archived.saved_by_torch(program))
    differences = {
        "`save`": _difference(
            lambda: archived.assert_same_records(bytes(archived.saved_by_us(program)), data)
        ),
        "`load`": _difference(lambda: archived.loaded_as_torch(data)),
    }
    actions = {
        ("`save`", "ours"): lambda: archive.save(program, io.BytesIO()),
        ("`save`", "torch"): lambda: torch.export.save(program, io.BytesIO()),
        ("`load`", "ours"): lambda: archive.load(io.BytesIO(data)),
        ("`load`", "torch"): lambda: torch.export.load(io.BytesIO(data)),
    }
    yield from _steps(model, actions, differences, rounds)


def _modules(model: Model, rounds: int) -> Iterator[Step]:
    from tests.support.unflatten_cases import assert_unflattens_as_torch
    from tests.support.unlifted import assert_module_as_torch

    program, unflattened = model.export(), model.export()  # torch's unflatten changes its program
    with torch.no_grad():
        differences = {
            "`unflatten`": _difference(
                lambda: assert_unflattens_as_torch(
                    unflattened, copy.deepcopy(model.eager), model.args, model.kwargs
                )
            ),
            "`module`": _difference(
                lambda: assert_module_as_torch(program, model.args, model.kwargs)
            ),
        }
        ours, theirs = unflatten(program), torch.export.unflatten(unflattened)
        differences[FORWARD] = _difference(
            lambda: assert_same_output(
                ours(*model.args, **model.kwargs), theirs(*model.args, **model.kwargs)
            )
        )
        actions = {
            ("`unflatten`", "ours"): lambda: unflatten(program),
            ("`unflatten`", "torch"): lambda: torch.export.unflatten(unflattened),
            ("`module`", "ours"): lambda: module(program),
            ("`module`", "torch"): program.module,
            (FORWARD, "ours"): lambda: ours(*model.args, **model.kwargs),
            (FORWARD, "torch"): lambda: theirs(*model.args, **model.kwargs),
        }
        yield from _steps(model, actions, differences, rounds)


def _steps(
    model: Model,
    calls: dict[tuple[str, str], Callable[[], Any]],
    differences: dict[str, str],
    rounds: int,
) -> Iterator[Step]:
    """Measure calls of fxpress and torch, by the name of the step and the side."""
    actions = {key: stopwatch(call, time.process_time) for key, call in calls.items()}
    seconds = interleaved(actions, rounds)
    for name, difference in differences.items():
        of_step = {side: seconds[name, side] for side in ("ours", "torch")}
        yield model.step(name, of_step, difference)


def _difference(compare: Callable[[], object]) -> str:
    """Return the first assertion of a comparison that fails; "" if all of them hold."""
    try:
        compare()
    except AssertionError as error:
        failed = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{failed.name}: {str(error) or failed.line}"
        return text.partition("\n")[0][:DIFFERENCE]
    return ""
