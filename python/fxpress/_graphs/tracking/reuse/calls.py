"""Instantiate the template of an equal call, or trace the call of a module."""

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
_MOST = 4  # recordings kept for one description


def call(
    variable: Any,
    tx: Translator,
    args: list[VariableTracker],
    kwargs: dict[str, VariableTracker],
    trace: Trace,
) -> VariableTracker:
    """Return the result of a module's call: instantiated from an equal traced call, or traced."""
    how = mode()
    if how == "trace" or traces_all(tx):
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
            made = Call(variable, tx, args, kwargs, journal)
        except NotReusable as reason:
            journal.report.add(variable, None, str(reason))
            return trace()
        known = journal.recordings.setdefault(made.key, [])
        template, why = _fitting(known, made)
        if template is None:
            journal.report.add(variable, None, why)
        else:
            journal.report.add(variable, template.call.variable, "")
            if how == "instantiate":
                return instantiate(template, made)
        recording = Recording(made)
        result = trace()
        recording.finish(result)
        if template is not None:
            found = difference(template, recording)
            if found is not None:
                raise InternalError(f"an instance of {made.path.name} would be wrong: {found}")
        known[:] = [*(each for each in known if not each.reason), recording][-_MOST:]
        return result


def _fitting(known: list[Recording], made: Call) -> tuple[Template | None, str]:
    """Return the template of a recorded call that the call can repeat, or None and the reason."""
    why = "no call before was like it"
    for recording in known:
        try:
            template = template_of(recording)
            template.check(made)
        except NotReusable as error:
            why = str(error)
        else:
            return template, ""
    return None, why
