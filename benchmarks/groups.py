"""List the groups of benchmarks, with their functions and expected times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import bench_architectures
import bench_archive
import bench_capture
import bench_cold
import bench_decompose
import bench_export
import bench_forward
import bench_gpu
import bench_models
import bench_pipeline
import bench_scale
import bench_serialize
import bench_sizes
import bench_split
import bench_unflatten
import bench_whole
import graphs
import limits
import programs
from effort import Effort
from figures import Figure
from progress import Progress

Measure = Callable[[Effort, Progress], list[Figure]]


@dataclass(frozen=True)
class Group:
    """Benchmarks that share a process; `page.md` has the title and the text of their section.

    Attributes:
        measure: the function that returns their figures.
        short: expected seconds of a short run on two quiet cores.
        full: expected seconds of a full run on two quiet cores.
    """

    measure: Measure
    short: float
    full: float


def _split(effort: Effort, progress: Progress) -> list[Figure]:
    progress(f"split_module: exporting a transformer of {effort.layers} layers")
    module, flat = graphs.transformer_cases(effort.layers)
    progress(f"split_module: {module.nodes:,} nodes, {module.partitions} partitions")
    if not effort.every_model:
        return bench_split.measure_split(module, effort.rounds)
    figures = _all_of(module, effort.rounds, progress)
    progress("split_module: cold starts")
    figures += bench_cold.measure(module, effort.cold_rounds)
    progress(f"split_module: {flat.name}")
    figures += bench_split.measure_split(flat, effort.rounds)
    progress("split_module_simple")
    return figures + bench_split.measure_simple(flat, effort.rounds)


def _all_of(case: graphs.Case, rounds: int, progress: Progress) -> list[Figure]:
    figures = []
    for name, measure in (
        ("the call", bench_split.measure_split),
        ("first forward", bench_split.measure_first_forward),
        ("source", bench_split.measure_source),
        ("floor", limits.measure),
    ):
        progress(f"split_module: {name}")
        figures += measure(case, rounds)
    return figures


def _scale(effort: Effort, progress: Progress) -> list[Figure]:
    points = []
    for size, (rounds, torch_rounds) in effort.split_sizes.items():
        progress(f"split_module: a hand-built graph of {size:,} nodes")
        points.append(bench_scale.measure(size, rounds, torch_rounds))
    return bench_scale.figures(points)


def _llama(effort: Effort, progress: Progress) -> list[Figure]:
    progress("split_module: exporting a Llama")
    case = graphs.llama()
    if case is None:
        print("no Llama: transformers is not installed")
        return []
    return _all_of(case, effort.rounds, progress)


def _unflatten(effort: Effort, progress: Progress) -> list[Figure]:
    progress(f"unflatten: a transformer of {effort.layers} layers")
    figures = bench_unflatten.measure_unflatten(
        programs.transformer(effort.layers), effort.rounds, bench_unflatten.OVER_TORCH
    )
    if effort.every_model:
        progress("unflatten: a mixture of experts")
        figures += bench_unflatten.measure_unflatten(
            programs.mixture_of_experts(), effort.rounds, bench_unflatten.OVER_TORCH_EXPERTS
        )
        progress("unflatten: growth and state")
        figures += bench_unflatten.measure_growth(effort.program_sizes, effort.rounds)
        figures += bench_unflatten.measure_state(effort.rounds)
    return figures


def _export(effort: Effort, progress: Progress) -> list[Figure]:
    progress("export: modules of programs")
    layers = min(effort.layers, 32)
    return bench_export.measure(layers, effort.rounds, every_model=effort.every_model)


def _forward(effort: Effort, progress: Progress) -> list[Figure]:
    progress("forward of unflattened modules")
    return bench_forward.measure(effort.rounds, every_model=effort.every_model)


def _serialize(effort: Effort, progress: Progress) -> list[Figure]:
    progress("serialize, deserialize, canonicalize, graph_hash")
    figures = bench_serialize.measure(
        effort.layers, effort.rounds_of_torch, large=effort.every_model
    )
    if effort.every_model:
        progress("serialize: phases")
        program = programs.transformer(effort.layers)
        figures += bench_serialize.measure_phases(program, effort.rounds)
    return figures


def _growth(effort: Effort, progress: Progress) -> list[Figure]:
    progress("serialize: growth")
    return bench_serialize.measure_growth(effort.written_sizes, effort.rounds_of_torch)


def _archives(effort: Effort, progress: Progress) -> list[Figure]:
    progress("save and load")
    program = programs.transformer(effort.layers)
    figures = bench_archive.measure(program, effort.rounds_of_torch)
    if effort.every_model:
        progress(f"save and load: {effort.weight_bytes / 2**30:g} GiB of weights")
        figures += bench_archive.measure_large(effort.weight_bytes, effort.rounds_of_torch)
    return figures


def _clones(effort: Effort, progress: Progress) -> list[Figure]:
    progress("state: copies of tensors")
    return bench_archive.measure_clones(effort.weight_bytes, effort.rounds)


def _capture(effort: Effort, progress: Progress) -> list[Figure]:
    progress("functional_export, nn_module: captures, exports, compilations")
    return bench_capture.measure(
        effort.captured_layers,
        effort.rounds_of_torch,
        effort.depths,
        every_model=effort.every_model,
    )


def _architectures(effort: Effort, progress: Progress) -> list[Figure]:
    return bench_architectures.measure(progress)


def _models(effort: Effort, progress: Progress) -> list[Figure]:
    return bench_models.measure(effort.models, effort.model_layers, effort.model_rounds, progress)


def _decompose(effort: Effort, progress: Progress) -> list[Figure]:
    progress("decompose: run_decompositions")
    return bench_decompose.measure(
        effort.decomposed_layers, effort.rounds_of_torch, every_model=effort.every_model
    )


def _whole(effort: Effort, progress: Progress) -> list[Figure]:
    return bench_whole.measure(effort.rounds_of_torch, progress)


def _pipeline(effort: Effort, progress: Progress) -> list[Figure]:
    return bench_pipeline.measure(effort.rounds_of_torch, progress)


def _gpu(effort: Effort, progress: Progress) -> list[Figure]:
    progress("copies to, from and on a GPU")
    return bench_gpu.measure(effort.weight_bytes, effort.rounds)


def _sizes(effort: Effort, progress: Progress) -> list[Figure]:
    return bench_sizes.measure(progress)


GROUPS = {
    "split": Group(_split, 10, 160),
    "unflatten": Group(_unflatten, 8, 90),
    "export": Group(_export, 8, 25),
    "forward": Group(_forward, 11, 60),
    "serialize": Group(_serialize, 24, 400),
    "archives": Group(_archives, 10, 100),
    "clones": Group(_clones, 17, 60),
    "capture": Group(_capture, 28, 400),
    "architectures": Group(_architectures, 150, 150),
    "models": Group(_models, 3000, 1100),
    "decompose": Group(_decompose, 26, 400),
    "whole": Group(_whole, 450, 280),
    "scale": Group(_scale, 10, 250),
    "growth": Group(_growth, 0, 250),
    "llama": Group(_llama, 30, 60),
    "pipeline": Group(_pipeline, 200, 320),
    "sizes": Group(_sizes, 300, 300),
    "gpu": Group(_gpu, 90, 300),
}
# A run measures these groups unless its arguments name others.
SHORT_GROUPS = (
    "split",
    "unflatten",
    "export",
    "forward",
    "serialize",
    "archives",
    "capture",
    "decompose",
)
FULL_GROUPS = tuple(name for name in GROUPS if name != "gpu")
