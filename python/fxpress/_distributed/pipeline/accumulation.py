"""Add the gradients of a step to those that are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch


@contextlib.contextmanager
def added(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Return a block whose gradients are added, when it ends, to those from before it.

    torch divides all gradients by the number of microbatches after each step, those of earlier
    steps again; and copies of a weight on several ranks have to be summed once.
    """
    before = [(each, each.grad) for each in parameters if each.grad is not None]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
            parameter.grad = gradient
