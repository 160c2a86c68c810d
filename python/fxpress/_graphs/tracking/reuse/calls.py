"""Handle a call of a module: repeat the trace of an equal earlier call, or trace the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxpress._base.errors import InternalError
from fxpress._graphs.tracking.reuse.compare import difference
from fxpress._graphs.tracking.reuse.instantiate import instantiate
from fxpress._graphs.tracking.reuse.journal import begin_once, journal_of
from fxpress._graphs.tracking.reuse.recording import Call, Recording
from fxpress._graphs.tracking.reuse.settings import mode
from fxpress._graphs.tracking.reuse.structure import NotReusable
from fxpress._graphs.tracking.reuse.template import Template, template_of
from fxpress._torch.reuse import Translator, VariableTracker, is_plain_trace, traces_all

Trace = Callable[[], VariableTracker]
_MOST = 4  # how many Recordings with equal keys are kept


def call(
    variable: Any,
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    trace: Trace,
) -> VariableTracker:
    """Return the variable of a module call's result: repeat an equal call, or run `trace`."""
    reuse_mode = mode()
    if reuse_mode == "trace" or traces_all(tx):
        begin_once(tx.output)
        return trace()
    if not variable.source or not is_plain_trace(tx):
        return trace()
    journal = journal_of(tx.output)
    with journal:
        if journal.census.is_single(variable.value):
            journal.report.add(variable, None, "no other module is equivalent")
            start = len(journal.built)
            result = trace()
            journal.note_known(start)
            return result
        try:
            new = Call(variable, tx, args, kwargs, journal)
        except NotReusable as error:
            journal.report.add(variable, None, str(error))
            return trace()
        recordings = journal.recordings.setdefault(new.key, [])
        template, reason = _find_template(recordings, new)
        if template is None:
            journal.report.add(variable, None, reason)
        else:
            journal.report.add(variable, template.call.variable, "")
            if reuse_mode == "instantiate":
                return instantiate(template, new)
        recording = Recording(new)
        result = trace()
        recording.finish(result)
        if template is not None:
            found = difference(template, recording)
            if found is not None:
                raise InternalError(
                    f"repeating the trace of an earlier call for {new.path.name} would be wrong: "
                    f"{found}"
                )
        recordings[:] = [*(each for each in recordings if not each.reason), recording][-_MOST:]
        return result


def _find_template(recordings: list[Recording], new: Call) -> tuple[Template | None, str]:
    """Return (template of a recording that `new` can repeat, ""), or (None, why there is none)."""
    reason = "no earlier call is equivalent"
    for recording in recordings:
        try:
            template = template_of(recording)
            template.check(new)
        except NotReusable as error:
            reason = str(error)
        else:
            return template, ""
    return None, reason
