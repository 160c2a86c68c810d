"""What is raised for stages that cannot be loaded or run."""

from __future__ import annotations

from fxpress._errors import Error


class PipelineError(Error):
    """Stages cannot be loaded, do not belong together, or one of them has failed."""

    __module__ = "fxpress.pipeline"
