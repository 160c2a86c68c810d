"""Run a program in stages on `torch.distributed`: plan, save, load, schedule."""

from fxpress._torch.probes import component

with component("pipeline"):
    from fxpress._distributed.errors import PipelineError, StageError
    from fxpress._distributed.pipeline.load import LoadedStage, load_stage, load_stages
    from fxpress._distributed.pipeline.pipe import to_pipe
    from fxpress._distributed.pipeline.placement import placement
    from fxpress._distributed.pipeline.schedule import build_schedule
    from fxpress._distributed.stages.plan import check, plan
    from fxpress._distributed.stages.planned import Plan, Shared
    from fxpress._distributed.stages.profile import OperationTimes, measure_times
    from fxpress._distributed.stages.save import save_stages

__all__ = [
    "LoadedStage",
    "OperationTimes",
    "PipelineError",
    "Plan",
    "Shared",
    "StageError",
    "build_schedule",
    "check",
    "load_stage",
    "load_stages",
    "measure_times",
    "placement",
    "plan",
    "save_stages",
    "to_pipe",
]
