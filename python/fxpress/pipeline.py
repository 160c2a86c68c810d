"""Run a program in stages on `torch.distributed`: plan, save, load, schedule."""

from fxpress._torch.probes import room

with room("pipeline"):
    from fxpress._pipeline.errors import PipelineError
    from fxpress._pipeline.load import LoadedStage, load_stage
    from fxpress._pipeline.schedule import build_schedule, placement
    from fxpress._stages.errors import StageError
    from fxpress._stages.save import save_stages

__all__ = [
    "LoadedStage",
    "PipelineError",
    "StageError",
    "build_schedule",
    "load_stage",
    "placement",
    "save_stages",
]
