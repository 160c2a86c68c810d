"""The text that says where in the user's code a node was traced."""

from __future__ import annotations

import sys
import traceback
import types

from fxpress._torch.tracing import STACK_TRACE_ANCHORS, uninteresting_files


class StackTraces:
    """The stack traces of one trace: each text is made once.

    Code objects are told apart by identity, because their hash reads all of their code.
    """

    def __init__(self) -> None:
        self._hidden = uninteresting_files()
        self._texts: dict[tuple[int, ...], str] = {}
        self._shown: dict[int, bool] = {}
        self._kept: list[types.CodeType] = []  # identities stay theirs

    def text(self) -> str:
        """Return the caller's frames called `forward`, from the outermost on; "" for none."""
        known = self._shown
        frames: list[tuple[types.CodeType, int]] = []
        key: list[int] = []
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            shown = known.get(id(code))
            if shown is None:
                shown = self._decide(code)
            if shown:
                frames.append((code, frame.f_lineno))
                key += id(code), frame.f_lineno
            frame = frame.f_back
        text = self._texts.get(tuple(key))
        if text is None:
            text = self._texts[tuple(key)] = self._format(frames[::-1])
        return text

    def _decide(self, code: types.CodeType) -> bool:
        name, file = code.co_name, code.co_filename
        shown = self._shown[id(code)] = file not in self._hidden and (
            name == "forward"
            or file.endswith("torch/__init__.py")
            or (file, name) in STACK_TRACE_ANCHORS
        )
        self._kept.append(code)
        return shown

    @staticmethod
    def _format(frames: list[tuple[types.CodeType, int]]) -> str:
        summaries = [
            traceback.FrameSummary(code.co_filename, line, code.co_name) for code, line in frames
        ]
        return "".join(traceback.StackSummary.from_list(summaries).format()).strip()
