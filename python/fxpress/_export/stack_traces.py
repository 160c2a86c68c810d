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

    def text(self, *, forward_only: bool) -> str:
        """Return the frames of the caller that a tracer shows, from the outermost on; "" for none.

        Args:
            forward_only: frames that are called `forward` alone are shown; otherwise those within
                the outermost frame of that name.
        """
        if not forward_only:
            return self._format([each for each in _within_forward() if self._is_told(each[0])])
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

    def _is_told(self, code: types.CodeType) -> bool:
        return code.co_filename not in self._hidden

    def _decide(self, code: types.CodeType) -> bool:
        name, file = code.co_name, code.co_filename
        shown = self._shown[id(code)] = self._is_told(code) and (
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


def _within_forward() -> list[tuple[types.CodeType, int]]:
    """Return code and line of the caller's caller's frames within the outermost `forward`."""
    frames = []
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    frames.reverse()
    start = next((i for i, (code, _) in enumerate(frames) if code.co_name == "forward"), None)
    return [] if start is None else frames[start:]
