"""What `check_reuse` reports for instances that would be wrong."""

from __future__ import annotations

import operator
import runpy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.comptime import comptime

import fxpress
from fxpress import InternalError, functional_export
from fxpress._graphs.tracking.reuse import calls
from fxpress._graphs.tracking.reuse.template import Step, Template
from fxpress._torch.reuse import SeenSize
from fxpress.functional_export import check_reuse
from tests.tracking.test_reuse import Model, x

pytestmark = pytest.mark.slow("captures each model with torch, with instances and with the check")

STATE: dict[str, Any] = {}


def checked(model: nn.Module) -> str:
    """Return the difference that the check of a capture reports."""
    torch._dynamo.reset()
    with fxpress.installed(), check_reuse(), pytest.raises(InternalError) as caught:
        functional_export._dynamo_graph_capture_for_export(model)(x())
    message = str(caught.value)
    path, _, what = message.partition(" would be wrong: ")
    assert path.startswith("repeating the trace of an earlier call for ")
    assert path.endswith("._modules['layers']._modules['2']")
    return what


# Calls that are traced otherwise, by code that Dynamo runs and does not see


def edit_third(context: Any) -> None:
    """Edit the node of the third call, which is the first that could be instantiated."""
    STATE["calls"] += 1
    if STATE["calls"] == 3:
        STATE["edit"](list(context.graph().nodes)[-1])


class Edited(nn.Module):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        doubled = self.lin(x) * 2
        comptime(edit_third)
        return doubled + 1


def new_target(node: Any) -> None:
    node.target = operator.sub


def new_args(node: Any) -> None:
    node.args = (node.args[0], 3)


def new_value(node: Any) -> None:
    node.meta["example_value"] = node.meta["example_value"].unsqueeze(0)


def new_name(node: Any) -> None:
    node._rename("other")


def new_meta(node: Any) -> None:
    node.meta["other"] = 1


def without_stack(node: Any) -> None:
    node.meta["nn_module_stack"] = {}


def new_functions(node: Any) -> None:
    node.meta["source_fn_stack"] = [("other", operator.sub)]


def new_trace(node: Any) -> None:
    node.meta["stack_trace"] = "elsewhere"


EDITS: dict[Callable[[Any], None], str] = {
    new_target: "doubled_2: the target is <built-in function sub>, not <built-in function mul>",
    new_args: "doubled_2: the args are (linear_2, 3), not (linear_2, 2)",
    new_value: "doubled_2: the value is FakeTensor(..., size=(1, 2, 4)",
    new_name: "tracing did more: a name was given to a node of another call",
    new_meta: "tracing did more: the meta of node doubled_2 has other",
    without_stack: "doubled_2: nn_module_stack is [], not [",
    new_functions: "doubled_2: source_fn_stack is [('other', ",
    new_trace: "doubled_2: the stack trace is 'elsewhere', not '",
}


@pytest.mark.parametrize(("edit", "message"), EDITS.items())
def test_a_call_that_is_traced_otherwise(edit: Callable[[Any], None], message: str) -> None:
    STATE.update(calls=0, edit=edit)
    assert checked(Model(Edited)).startswith(message)


# Templates that are wrong


def of_kind(template: Template, kind: str) -> list[Step]:
    return [step for step in template.steps if step.kind == kind]


def another_input(template: Template) -> None:
    first, second = of_kind(template, "input")
    first.number, second.number = second.number, first.number


def another_node(template: Template) -> None:
    of_kind(template, "name")[0].node = of_kind(template, "input")[0].node


def another_candidate(template: Template) -> None:
    of_kind(template, "node")[0].candidate = "other"


def other_guards(template: Template) -> None:
    template.guards = template.guards[::-1]


def fewer_guards(template: Template) -> None:
    template.guards = template.guards[:-1]


def fewer_steps(template: Template) -> None:
    template.steps = template.steps[:-1]


def fewer_modules(template: Template) -> None:
    template.entered = template.entered[:-1]


def fewer_variables(template: Template) -> None:
    template.built = []


def no_code(template: Template) -> None:
    template.codes = [*template.codes, None]


def more_sizes(template: Template) -> None:
    template.sizes = [*template.sizes, (SeenSize(None, "", 3, 3), template.call.source)]


SPOILT: dict[Callable[[Template], None], str] = {
    another_input: ": the input is L[",
    another_node: ": the trace renames this node, not ",
    another_candidate: "linear_2: made from node linear, not node other",
    other_guards: "the guards: (",
    fewer_guards: "the guards: ",
    fewer_steps: "the number of steps: ",
    fewer_modules: "the called modules: ",
    fewer_variables: "the tracked modules: [] expected, ",
    no_code: "the traced code objects: ",
    more_sizes: "the recorded sizes: ",
}


class Plain(nn.Module):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        doubled = self.lin(x) * 2
        return doubled + 1


@pytest.mark.parametrize(("spoil", "message"), SPOILT.items())
def test_a_template_that_is_wrong(
    spoil: Callable[[Template], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_template = calls._find_template

    def spoilt(*args: Any) -> Any:
        template, reason = find_template(*args)
        if template is not None and type(template.call.module) is Plain:
            spoil(template)
        return template, reason

    monkeypatch.setattr(calls, "_find_template", spoilt)
    assert message in checked(Model(Plain))


def test_the_environment_turns_checks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPRESS_CHECK_REUSE", "1")
    assert runpy.run_module("fxpress._graphs.tracking.reuse.settings")["mode"]() == "check"
