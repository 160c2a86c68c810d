"""Import torch's names for process groups, their stores, and stages of pipelines."""

from __future__ import annotations

import contextlib
import datetime
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed import distributed_c10d
from torch.distributed.pipelining import PipelineStage, _backward, schedules
from torch.utils._python_dispatch import TorchDispatchMode


def is_divisible(
    outputs: Iterable[Any], inputs: Iterable[Any], parameters: Iterable[torch.Tensor]
) -> bool:
    """Return whether torch computes all gradients of a stage if it splits the backward in two.

    One part computes the gradients of inputs, and the other computes the gradients of parameters.
    """
    ends, roots, weights = map(_nodes, (inputs, outputs, parameters))
    return not loses_gradients(roots, ends) and not runs_twice(roots, ends, weights)


def loses_gradients(roots: list[Node], ends: list[Node]) -> bool:
    """Return whether some output depends on a parameter, but on none of the inputs."""
    meets = dict.fromkeys(ends, True)
    stack = [(node, False) for node in roots]
    while stack:  # children before parents
        node, is_ready = stack.pop()
        if node in meets:
            continue
        children = [child for child, _ in node.next_functions if child is not None]
        if is_ready:
            meets[node] = any(meets[child] for child in children)
        else:
            stack.append((node, True))
            stack += [(child, False) for child in children]
    left, seen = [node for node in roots if not meets[node]], set()
    while left:
        node = left.pop()
        if hasattr(node, "variable"):  # the node accumulates the gradient of a parameter
            return True
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                left.append(child)
    return False


def runs_twice(roots: list[Node], ends: list[Node], weights: list[Node]) -> bool:
    """Return whether torch's split backward runs a node for two groups of parameters."""
    users = _backward.construct_reverse_graph(roots)
    groups = _backward.get_param_groups(ends, weights, users)
    owner: dict[Node, int] = {}
    for number, group in enumerate(groups):
        for node in (*group["intermediates"], *group["params"]):
            if owner.setdefault(node, number) != number:
                return True
    for number, group in enumerate(groups):
        if len(group["intermediates"]) > 1:
            above, _ = _backward.reverse_closure(list(group["params"]), set(), users)
            if any(owner.setdefault(node, number) != number for node in _below(group, above)):
                return True
    return False


def _below(group: dict[str, Any], wanted: set[Node]) -> set[Node]:
    """Return the nodes of `wanted` that are reachable from a group's intermediate nodes."""
    found: set[Node] = set()
    left = list(group["intermediates"])
    while left:
        node = left.pop()
        if node in wanted and node not in found:
            found.add(node)
            left += [child for child, _ in node.next_functions if child is not None]
    return found


def _nodes(values: Iterable[Any]) -> list[Node]:
    return [
        get_gradient_edge(each).node
        for each in values
        if isinstance(each, torch.Tensor) and each.requires_grad
    ]


_default_store: Callable[[], Any] = distributed_c10d._get_default_store
SingleSchedule: Any = schedules.PipelineScheduleSingle
CONNECTING = "fxpress connects ranks"  # the name of the thread in `new_group`
V_SCHEDULES = (schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV)


def schedule_class(name: str) -> Any:
    """Return the class of a schedule by its case-insensitive name."""
    if not isinstance(name, str):
        raise ValueError(f"expected the name of a schedule, such as '1F1B', got {name!r}")
    found: Any = schedules.get_schedule_class(name)
    if found in (SingleSchedule, schedules.PipelineScheduleMulti):
        raise ValueError(f"{found.__name__} is a base class of schedules, not a schedule")
    return found


def store_of(group: Any) -> Any:
    """Return the default store with a prefix for the keys of `group` (None: the default group)."""
    name = (distributed.group.WORLD if group is None else group).group_name
    return distributed.PrefixStore(f"fxpress/pipeline/{name}", _default_store())


def new_group(ranks: list[int], seconds: float) -> Any:
    """Return a process group with its own timeout; all `ranks` have to call this function."""
    made: list[Any] = []
    failed: list[Exception] = []
    timeout = datetime.timedelta(seconds=seconds)

    def make() -> None:
        try:
            made.append(
                distributed.new_group(ranks, timeout=timeout, use_local_synchronization=True)
            )
        except Exception as error:
            failed.append(error)

    # If a rank dies, Gloo may block for several timeouts, so a daemon thread calls Gloo.
    making = threading.Thread(target=make, name=CONNECTING, daemon=True)
    making.start()
    making.join(seconds)
    if failed:
        raise failed[0]
    if not made:
        raise distributed.DistNetworkError(f"ranks were not connected within {seconds:g} s")
    return made[0]


def disconnect(schedule: Any, error: BaseException) -> None:
    """Close the connections of a failed schedule, so that waiting ranks fail too."""
    # Gloo closes the connections when the group is freed. The stages and torch's frames in the
    # traceback of `error` refer to the group, so their references are cleared.
    stages = [schedule._stage] if isinstance(schedule, SingleSchedule) else schedule._stages
    group = stages[0].group
    if group is None:
        return
    for stage in stages:
        for name, value in list(vars(stage).items()):  # the names depend on the version of torch
            if _is_group(value):
                setattr(stage, name, None)
            elif isinstance(value, dict) and any(map(_is_group, value.values())):
                setattr(stage, name, {})
    seen: BaseException | None = error
    while seen is not None:
        for frame, _ in traceback.walk_tb(seen.__traceback__):
            if str(frame.f_globals.get("__name__")).startswith("torch.distributed."):
                with contextlib.suppress(RuntimeError):  # a running frame cannot be cleared
                    frame.clear()
        seen = seen.__cause__ or seen.__context__
    with contextlib.suppress(Exception):  # the caller raises `error`
        distributed.destroy_process_group(group)


def _is_group(value: object) -> bool:
    return isinstance(value, distributed.ProcessGroup)


def trains(schedule: Any) -> bool:
    """Return whether the running step of a schedule has a backward; `schedule.eval` has none."""
    return bool(schedule._has_backward)


def check_microbatches(schedule: Any, check: Callable[[Any, Any], None]) -> None:
    """Call `check` with all microbatches' arguments before a step runs or sends anything."""
    run = schedule._step_microbatches

    def checked(args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        check(args, kwargs)
        return run(args, kwargs, *rest, **options)

    schedule._step_microbatches = checked


def report_loss(schedule: Any, doing: Callable[[str], None]) -> None:
    """Make a schedule call `doing` before and after each loss, also while torch infers shapes."""
    compute = schedule._loss_fn
    if compute is None:
        return

    def compute_and_report(*args: Any, **kwargs: Any) -> Any:
        doing(f"loss of microbatch {len(schedule._internal_losses)}")
        made = compute(*args, **kwargs)
        doing("")
        return made

    schedule._loss_fn = compute_and_report


@contextlib.contextmanager
def without_loss(schedule: Any) -> Iterator[None]:
    """Run a block in which a schedule computes no loss; otherwise `eval` would compute it too."""
    kept, schedule._loss_fn = schedule._loss_fn, None
    try:
        yield
    finally:
        schedule._loss_fn = kept


def _nothing() -> None:
    """Do nothing: if a backward is not split, no gradients are left for its second part."""


class _Zeros(TorchDispatchMode):  # type: ignore[misc]
    """Fills new memory with zeros, because operators such as index_put may not write all of it."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        return made.zero_() if function.overloadpacket in _EMPTY else made


_EMPTY = {
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
}


class Stage(PipelineStage):  # type: ignore[misc]
    """A `PipelineStage` that infers shapes without changing buffers, and reports its activity.

    Unlike torch's stages, two of these stages on one rank pass no gradients in `schedule.eval`.
    """

    def __init__(
        self,
        module: Any,
        *args: Any,
        doing: Callable[[str], None],
        fill: Callable[[tuple[Any, ...]], None],
        **options: Any,
    ) -> None:
        super().__init__(module, *args, **options)
        self._doing, self._fill = doing, fill

    def _compute_outputs(self, *args: Any, module: Any, **kwargs: Any) -> Any:
        self._doing("inference of shapes")
        if self.is_first:
            args = tuple(each.clone() for each in args)
        else:
            self._fill(args)
        copies = {name: value.detach().clone() for name, value in module.named_buffers()}
        with _Zeros():
            made = torch.func.functional_call(module, copies, args, kwargs)
        # If a stage has a `dw_builder`, torch does not split the backward of the stage.
        outputs = made if isinstance(made, tuple) else (made,)
        is_whole = not self.is_first and not is_divisible(outputs, args, module.parameters())
        self.dw_builder = (lambda: _nothing) if is_whole else None
        self._doing("")
        return made

    def _compute_input_grads(self, *args: Any, **kwargs: Any) -> Any:
        self._doing("inference of shapes of gradients")
        made = super()._compute_input_grads(*args, **kwargs)
        self._doing("")
        return made

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run a microbatch forward."""
        self._doing(f"forward of microbatch {fwd_chunk_id}")
        made = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._doing("")
        return made

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run a microbatch backward."""
        self._doing(f"backward of microbatch {bwd_chunk_id}")
        made = super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._doing("")
        return made

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run the rest of a microbatch's backward: the gradients of the parameters."""
        self._doing(f"backward of weights of microbatch {bwd_chunk_id}")
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._doing("")

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """Return the gradients for the previous stage, which is on the same rank."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Store the gradients from the next stage, which is on the same rank."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)
