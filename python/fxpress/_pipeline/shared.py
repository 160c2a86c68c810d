"""Add up the gradients of weights that several stages have a copy of."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import distributed

from fxpress._pipeline.load import LoadedStage
from fxpress._torch.distributed import new_group


class _Shared(NamedTuple):
    copies: list[torch.nn.Parameter]  # on this rank
    group: Any  # of the ranks that have one; None: only this one


class SharedGradients:
    """The parameters of this rank's stages of which others have copies.

    Every rank of the pipeline has to make one, in the same order of its calls.

    Args:
        stages: of this rank.
        ranks: the rank of each stage, in the process group.
        group: the process group.
        seconds: that a rank waits for another.
    """

    def __init__(
        self, stages: list[LoadedStage], ranks: dict[int, int], group: Any, seconds: float
    ) -> None:
        self._shared: list[_Shared] = []
        here = {
            stage.number: dict(stage.module.named_parameters(remove_duplicate=False))
            for stage in stages
        }
        of_all = distributed.get_process_group_ranks(group)
        groups: dict[tuple[int, ...], Any] = {}
        own = distributed.get_rank()
        shared = stages[0].source.manifest.shared if stages else ()
        for names, numbers in shared:
            places = tuple(sorted({of_all[ranks[number]] for number in numbers}))
            copies = [
                parameters[name]
                for number in numbers
                for name, parameters in ((name, here.get(number, {})) for name in names)
                if name in parameters and parameters[name].requires_grad
            ]
            if own not in places or not copies:
                continue
            if len(places) > 1 and places not in groups:
                groups[places] = new_group(list(places), seconds)
            self._shared.append(_Shared(list(dict.fromkeys(copies)), groups.get(places)))

    def reduce(self) -> None:
        """Give all copies the sum of their gradients, which are those of one step."""
        for copies, group in self._shared:
            total = torch.zeros_like(copies[0])
            for each in copies:
                if each.grad is not None:
                    total += each.grad
            if group is not None:
                distributed.all_reduce(total, group=group)
            for each in copies:
                each.grad = total.clone() if each is not copies[0] else total
