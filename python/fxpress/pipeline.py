"""Run a program in stages on `torch.distributed`: plan, save, load, schedule."""

from fxpress._torch.probes import room

with room("pipeline"):
    from fxpress._pipeline.errors import PipelineError
    from fxpress._pipeline.load import LoadedStage, load_stage, load_stages
    from fxpress._pipeline.pipe import to_pipe
    from fxpress._pipeline.placement import placement
    from fxpress._pipeline.schedule import build_schedule
    from fxpress._stages.errors import StageError
    from fxpress._stages.plan import check, plan
    from fxpress._stages.planned import Plan, Shared
    from fxpress._stages.profile import Profile, profile
    from fxpress._stages.save import save_stages

__all__ = [
    "LoadedStage",
    "PipelineError",
    "Plan",
    "Profile",
    "Shared",
    "StageError",
    "build_schedule",
    "check",
    "load_stage",
    "load_stages",
    "placement",
    "plan",
    "profile",
    "save_stages",
    "to_pipe",
]
