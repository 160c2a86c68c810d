"""Add up the gradients of weights that several stages have a copy of."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from fxpress._distributed.pipeline.load import LoadedStage


class _Shared(NamedTuple):
    copies: list[torch.nn.Parameter]  # on this rank
    places: tuple[int, ...]  # the ranks that have one, in the default group


class SharedGradients:
    """The parameters of this rank's stages of which others have copies.

    The sum goes from rank to rank in messages of the group that there is. Groups of fewer ranks
    would make torch name later groups differently on different ranks, which then wait forever.
    """

    def __init__(self, stages: list[LoadedStage], ranks: dict[int, int], group: Any) -> None:
        self._shared: list[_Shared] = []
        self._group, self._own = group, distributed.get_rank()
        here = {
            stage.number: dict(stage.module.named_parameters(remove_duplicate=False))
            for stage in stages
        }
        of_all = distributed.get_process_group_ranks(group)
        shared = stages[0].source.manifest.shared if stages else ()
        for names, numbers in shared:
            places = tuple(sorted({of_all[ranks[number]] for number in numbers}))
            copies = [
                parameters[name]
                for number in numbers
                for name, parameters in ((name, here.get(number, {})) for name in names)
                if name in parameters and parameters[name].requires_grad
            ]
            if copies:
                self._shared.append(_Shared(list(dict.fromkeys(copies)), places))

    def reduce(self) -> None:
        """Give all copies the sum of their gradients, which are those of one step."""
        for copies, places in self._shared:
            total = torch.zeros_like(copies[0], memory_format=torch.contiguous_format)
            for each in copies:
                if each.grad is not None:
                    total += each.grad
            self._sum(total.to_local() if isinstance(total, DTensor) else total, places)
            for each in copies:
                each.grad = total.clone() if each is not copies[0] else total

    def hang_up(self) -> None:
        """Forget the process group, which is closed when nobody refers to it."""
        self._group = None

    def _sum(self, total: torch.Tensor, places: tuple[int, ...]) -> None:
        """Add up in place what the ranks have; the first of them does it."""
        first, *others = places
        if self._own != first:
            distributed.send(total, first, group=self._group)
            distributed.recv(total, first, group=self._group)
            return
        part = torch.empty_like(total)
        for rank in others:
            distributed.recv(part, rank, group=self._group)
            total += part
        for rank in others:
            distributed.send(total, rank, group=self._group)
