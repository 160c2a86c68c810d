"""The configuration of Model Explorer, with what its own leaves out of the page's address."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, unquote

from model_explorer.config import ModelExplorerConfig


class Config(ModelExplorerConfig):  # type: ignore[misc]
    """A configuration that may open two graphs side by side.

    Attributes:
        panes: name of the model and id of the graph of each pane; empty: the page decides.
    """

    def __init__(self) -> None:
        super().__init__()
        self.panes: list[tuple[str, str]] = []

    def to_url_param_value(self) -> str:
        """Return what the page's address says of the models, as Model Explorer calls it."""
        data: dict[str, Any] = json.loads(unquote(super().to_url_param_value()))
        if self.panes:
            data["uiState"] = {"paneStates": [self._pane(*pane) for pane in self.panes]}
            data["sync"] = {"mode": "match_node_id"}
        return quote(json.dumps(data))

    def _pane(self, model: str, graph: str) -> dict[str, Any]:
        return {
            "deepestExpandedGroupNodeIds": [],
            "selectedNodeId": "",
            "selectedGraphId": graph,
            "selectedCollectionLabel": model,
            "widthFraction": 1 / len(self.panes),
        }
