"""Load a stage."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from fxpress._base.observing.progress import Progress, check_progress
from fxpress._distributed.errors import PipelineError, described
from fxpress._distributed.pipeline import arguments
from fxpress._distributed.pipeline.agreement import Answer, agree, broadcast_failure, name_of
from fxpress._distributed.pipeline.module import StageModule
from fxpress._distributed.pipeline.parallel import check_crossing, check_keys, fill, parallelize
from fxpress._distributed.pipeline.placement import placement
from fxpress._distributed.pipeline.source import Source, changes_named
from fxpress._distributed.stages.manifest import Manifest
from fxpress._files.archive.load_options import Options
from fxpress._files.format.torch_facts import allowed_names
from fxpress._files.serde.gate import check_input_keys
from fxpress._files.serde.limits import Budget, Limits
from fxpress._files.serde.treespecs import load_treespec
from fxpress._torch.decompose import pytree
from fxpress._torch.watching import operation


class LoadedStage:
    """A stage of a program, ready to run; `load_stage` returns it. torch has no such class.

    Attributes:
        module: an `nn.Module` that computes the tensors for the next stage from the tensors of the
            previous stage. Its parameters and buffers have their names in the original program.
        number: the number of the stage, from 0.
        count: the number of all stages.
        shared: name of a parameter or buffer in several stages -> the numbers of these stages.

    Example:
        >>> from fxpress import pipeline
        >>> manifest = pipeline.save_stages(program, "of_two", 2)
        >>> pipeline.load_stage("of_two", 1)
        <stage 1 of 2, of_two>
    """

    def __init__(
        self,
        source: Source,
        number: int,
        module: StageModule,
        state: Container[str],
        limits: Limits | None,
    ) -> None:
        self.module: nn.Module = module
        self.number, self.count = number, len(source.manifest.stages)
        self.shared = _shared(source.manifest, number, state)
        self.source = source
        # Maps a name in the tensor-parallel plan to whether the stage has a module of this name.
        self.plan_keys: dict[str, bool] = {}
        self._limits, self._out_spec = limits, None

    def __repr__(self) -> str:
        return f"<stage {self.number} of {self.count}, {self.source.name}>"

    def results(self, given: Any) -> Any:
        """Build the program's result from the outputs of the last stage.

        Args:
            given: the outputs of the last stage's module, or the result of a schedule.

        Raises:
            PipelineError: this is not the last stage.
            fxpress.SerializeError: a class of the results is not registered in this process.
        """
        if self.number + 1 != self.count:
            raise PipelineError(
                f"stage {self.number} does not return results, only stage {self.count - 1} does"
            )
        if self._out_spec is None:
            text = self.source.manifest.out_spec
            self._out_spec = load_treespec(text, Budget(self._limits, len(text)))
        values = given if isinstance(given, (tuple, list)) else (given,)
        module: Any = self.module
        by_name = dict(zip((each.name for each in module.gives), values, strict=True))
        leaves = [
            by_name[each.source[1]] if each.source else each.constant
            for each in self.source.manifest.results
        ]
        return pytree.tree_unflatten(leaves, self._out_spec)


@operation("pipeline.load_stage", lambda made, *_, **__: {"bytes": made.module.facts.bytes})
def load_stage(
    path: str | bytes | os.PathLike[str],
    stage: int,
    *,
    device: torch.device | str | None = None,
    mmap: bool = False,
    load_weights: bool = True,
    mesh: DeviceMesh | None = None,
    plan: dict[str, ParallelStyle] | None = None,
    check_guards: bool = True,
    allow_operators: Iterable[str] = (),
    limits: Limits | None = None,
    progress: Progress = None,
) -> LoadedStage:
    """Load one stage of a program; read only the stage's records from the file.

    No code in the file is run. Records are compared with their checksums (except weights with
    `mmap`) and with the manifest, so a file that was changed later is refused.

    Args:
        path: a folder or an archive that `save_stages` has written; or its URL, such as
            `s3://bucket/stages`, if fsspec supports the protocol. A URL that ends in ".pt2" is an
            archive; only the byte ranges that the stage needs are read.
        stage: the number of the stage, from 0.
        device: the device for all tensors; None: the devices that they were saved from.
        mmap: read weights from the file when they are used; see `fxpress.load`. Weights at a
            URL are read at once.
        load_weights: if False, parameters and buffers are on the meta device, to be filled from a
            checkpoint; see `fxpress.checkpoint`.
        mesh: a one-dimensional mesh of devices, over which the modules of the stage are cut. A rank
            reads only its shard of each weight.
        plan: with `mesh`, a plan for torch's `parallelize_module`, with names of modules of the
            original model. A name may belong to a module in another stage. `build_schedule` raises
            PipelineError for a name that no stage has; torch only warns.
        check_guards: check the inputs by the guards of the program, as `ExportedProgram.module`
            does, and not only by ranges of sizes. A failing guard raises AssertionError: the traced
            branch is not valid for these inputs. The first stage that has all inputs of a guard
            checks it. Stage 0 gets all inputs, and checks the guards that no other stage can check.
        allow_operators: operators or namespaces that the stage may call; see `fxpress.load`.
        limits: the limits on the cost of reading; None: the defaults.
        progress: how to report progress, in bytes: True, False or a function of (done, total,
            what); None: a bar on a terminal, after two seconds, when tqdm is installed.

    Raises:
        OSError: a file cannot be read.
        PipelineError: the stages do not exist, the files do not belong together, or a file changes
            while it is read. With `plan`: torch cannot apply the plan, the mesh does not divide the
            size of a weight, or the plan cuts two names of one weight differently, or cuts a value
            that another stage uses.
        fxpress.ArchiveError, fxpress.LimitError, fxpress.SerializeError: the file is damaged.
        fxpress.UnsupportedError: the stage contains a feature that fxpress cannot read, or no
            installed package reads from the URL.
        TypeError: the device is neither a device nor a name.
        ValueError: only one of `mesh` and `plan` is passed, the mesh has more than one dimension, a
            value of the plan is not a style, or torch has no such device.

    Stands in for `torch.distributed.pipelining.pipeline`, which traces and splits on each rank.

    Example:
        >>> from fxpress import pipeline
        >>> manifest = pipeline.save_stages(program, "stages", 2)
        >>> first, last = (pipeline.load_stage("stages", each) for each in range(2))
        >>> result = last.results(last.module(*first.module(x)))
        >>> torch.equal(result, program.module()(x))
        True
    """
    source = path if isinstance(path, Source) else Source(path, limits)
    arguments.check_device(device)
    check_progress(progress)
    arguments.check_mesh(mesh, plan)
    manifest = source.manifest
    arguments.check_stage(stage, len(manifest.stages), source.name)
    budget = Budget(limits, len(manifest.in_spec))
    in_spec = load_treespec(manifest.in_spec, budget)
    check_input_keys(in_spec)
    loads_weights = load_weights and mesh is None
    allowed = allowed_names(allow_operators)
    options = Options(device, mmap, loads_weights, progress=progress, allowed=allowed)
    program = source.load(stage, options)
    state = {each.target for each in program.graph_signature.input_specs if each.target}
    module = StageModule(program, manifest, stage, in_spec, check_guards)
    loaded = LoadedStage(source, stage, module, state, limits)
    if mesh is not None and plan is not None:
        loaded.plan_keys = parallelize(module, mesh, plan)
        if loaded.count == 1:
            check_keys(loaded.plan_keys)
        if stage + 1 < loaded.count:
            check_crossing(module, stage)
        if load_weights:
            place = torch.device(mesh.device_type if device is None else device)
            with changes_named():
                fill(module, source.reader_of(stage), place)
    return loaded


def load_stages(
    path: str | bytes | os.PathLike[str],
    schedule: str = "1F1B",
    *,
    group: Any = None,
    timeout: float = 300.0,
    **options: Any,
) -> list[LoadedStage]:
    """Return the stages that a schedule runs on this rank, in order.

    Every rank has to call this function, and then `build_schedule`. If loading fails on one rank,
    `build_schedule` raises the same error text on the other ranks.

    Args:
        path: a folder or an archive that `save_stages` has written, or its URL; see `load_stage`.
        schedule: the name of one of torch's schedules, see `placement`.
        group: the process group; None: all ranks.
        timeout: seconds that a failing rank waits for the others.
        options: the options of `load_stage`.

    Raises:
        PipelineError: the stages cannot be loaded on this rank, or another rank has failed; the
            cause is the error that `load_stage` has raised.
        ValueError: torch.distributed is not initialized, this rank is not in the group, or the
            timeout is not a number above 0.

    Stands in for `torch.distributed.pipelining.pipeline`, which traces and splits on each rank.

    Example:
        >>> from torch import distributed
        >>> from fxpress import pipeline
        >>> manifest = pipeline.save_stages(program, "whole", 1)
        >>> distributed.init_process_group(
        ...     "gloo", store=distributed.HashStore(), rank=0, world_size=1
        ... )
        >>> stages = pipeline.load_stages("whole")
        >>> schedule = pipeline.build_schedule("1F1B", stages, n_microbatches=1)
        >>> result = schedule.eval(x)
        >>> distributed.destroy_process_group()
    """
    arguments.check_group(group)
    with broadcast_failure(group, []):
        arguments.check_timeout(timeout)
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    placed: list[list[int]] = [[]] * size
    try:
        source = Source(path, options.get("limits"))
        placed = placement(schedule, size, len(source.manifest.stages))
        return [load_stage(source, number, **options) for number in placed[rank]]
    except Exception as error:
        answer = Answer(stages=placed[rank], error=described(error))
        names = [name_of(each, numbers) for each, numbers in enumerate(placed)]
        agree(answer, group, timeout, names, cause=error)
        raise


def _shared(manifest: Manifest, number: int, own: Container[str]) -> dict[str, tuple[int, ...]]:
    return {
        name: stages
        for names, stages in manifest.shared
        if number in stages
        for name in names
        if name in own
    }
