"""Measure operations on transformers of several sizes, and torch's, for plots against nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import bench_archive
import bench_decompose
import bench_export
import bench_serialize
import bench_split
import bench_unflatten
import graphs
import programs
from figures import Figure
from progress import Progress

LAYERS = (4, 16, 64)
ROUNDS = 2


def measure(progress: Progress) -> list[Figure]:
    """Return the headline of each operation, at each size; goals are for the other groups."""
    figures = []
    for layers in LAYERS:
        progress(f"every operation: {layers} layers")
        program = programs.transformer(layers)
        for figure in _all_of(program, layers, ROUNDS):
            if figure.operation:
                figures.append(replace(figure, nodes=figure.nodes or program.nodes, goal=None))
    return figures


def _all_of(program: programs.Program, layers: int, rounds: int) -> Iterator[Figure]:
    case, _ = graphs.transformer_cases(layers)
    yield from bench_split.measure_split(case, rounds)
    yield from bench_unflatten.measure_unflatten(program, rounds, bench_unflatten.OVER_TORCH)
    yield from bench_export.measure_program(program, rounds)
    yield from bench_serialize.measure_program(program, rounds)
    yield from bench_archive.measure(program, rounds)
    yield from bench_decompose.measure(layers, rounds, every_model=False)
