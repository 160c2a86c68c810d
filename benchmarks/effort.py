"""The sizes and repetitions of a run, which `--full` increases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Sizes and repetitions.

    Attributes:
        layers: layers of the transformer that is split, unflattened and written.
        rounds: the number of measurements of a model in one process.
        rounds_of_torch: the number of measurements of the slowest calls of torch.
        every_model: measure the other models and larger graphs as well.
        cold_rounds: the number of pairs of fresh processes; may be 0.
        split_sizes: nodes of a hand-built graph -> rounds of fxpress and floor, rounds of torch.
        program_sizes: nodes of hand-built programs to unflatten.
        written_sizes: nodes of hand-built programs to serialize.
        weight_bytes: the size of the weights to save, load and clone.
        captured_layers: layers of the captured transformer; the CNN has twice as many blocks.
        decomposed_layers: layers of the decomposed transformer; the CNN has twice as many blocks.
        models: names of the models that `bench_models` takes through every step; () for all.
        model_layers: layers of these models.
        model_rounds: the number of measurements of each step of these models.
        depths: numbers of stack frames; captures are timed once on a stack with each depth.
    """

    layers: int
    rounds: int
    rounds_of_torch: int
    every_model: bool
    cold_rounds: int
    split_sizes: dict[int, tuple[int, int]]
    program_sizes: list[int]
    written_sizes: list[int]
    weight_bytes: int
    captured_layers: int
    decomposed_layers: int
    depths: tuple[int, ...]
    model_layers: int
    model_rounds: int
    models: tuple[str, ...] = ()


SHORT = Effort(
    layers=32,
    rounds=5,
    rounds_of_torch=2,
    every_model=False,
    cold_rounds=0,
    split_sizes={10_000: (5, 1)},
    program_sizes=[],
    written_sizes=[],
    weight_bytes=2**28,
    captured_layers=32,
    decomposed_layers=8,
    depths=(0,),
    model_layers=8,
    model_rounds=2,
)
FULL = Effort(
    layers=128,
    rounds=7,
    rounds_of_torch=3,
    every_model=True,
    cold_rounds=3,
    split_sizes={10_000: (7, 5), 100_000: (5, 3), 1_000_000: (5, 0)},
    program_sizes=[10_000, 100_000],
    written_sizes=[10_000, 1_000_000],
    weight_bytes=2**32,
    captured_layers=32,
    decomposed_layers=32,
    depths=(0, 20, 60),  # the time of creating guards depends on the depth of the stack
    model_layers=2,  # with 8 layers, the models alone need as much time as all other groups
    model_rounds=1,
)
