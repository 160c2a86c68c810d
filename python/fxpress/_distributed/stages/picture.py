"""Draw the stages of a program."""

from __future__ import annotations

from torch.export import ExportedProgram

from fxpress._base.errors import NoRendererError
from fxpress._distributed.stages.ends import state_of
from fxpress._graphs.partition.callback import SplitCallback
from fxpress._graphs.partition.draw import draw
from fxpress._graphs.split.split_module import split_module


def picture_of(program: ExportedProgram, stage_of: SplitCallback) -> str | None:
    """Return the stages and the values between them as an SVG file; None where nothing draws it."""
    split = split_module(program.graph_module, None, stage_of, keep_original_order=True)
    try:
        return draw(
            split,
            format="svg",
            signature=program.graph_signature,
            state_dict=state_of(program),
        )
    except (ImportError, NoRendererError):
        return None
