"""Real architectures whose layers are alike: as by torch, most layers instantiated."""

from __future__ import annotations

import functools

import pytest
import torch

import fxpress
from fxpress.functional_export import ReuseReport, check_reuse, reuse_report
from tests.support.architectures import architecture
from tests.support.programs import assert_same_program
from tests.tracking.test_reuse import report_of

pytestmark = pytest.mark.slow("captures each model with torch, with instances and with the check")

LAYERS = 3


# Only parts of their layers are alike. Each layer has an activation, which counts by its identity
# (gemma), an autograd function of its own (bloom), or tensors whose values are known (deberta).
IN_PARTS = ("gemma", "gemma3", "bloom", "deberta")


def assert_layers_are_instantiated(name: str, report: ReuseReport) -> None:
    kinds = {call.kind for call in report.instantiated}
    if name in IN_PARTS:
        assert "Linear" in kinds, str(report)
    else:
        assert any(kind.endswith(("Layer", "Block")) for kind in kinds), str(report)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_architecture(name: str) -> None:
    made = architecture(name, LAYERS)
    assert_layers_are_instantiated(name, report_of(made.model, *made.args))


# The corpus exports the models of `test_architecture`. These are further kinds of models.
EXPORTED = ("gemma3", "t5", "vit", "mixtral", "deberta")
# Names depend on the results that the cache of fake tensors has of symbolic sizes.
DYNAMIC = ("bert", "gpt2", "llama", "mixtral")


@pytest.mark.deep("exports by torch, by us and with the check")
@pytest.mark.parametrize(
    ("name", "dynamic"), [*((n, False) for n in EXPORTED), *((n, True) for n in DYNAMIC)]
)
def test_strict_export(name: str, dynamic: bool) -> None:
    made = architecture(name, LAYERS)
    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=60)}
    export = functools.partial(
        torch.export.export,
        made.model,
        made.args,
        made.kwargs,
        dynamic_shapes=(sizes,) if dynamic else None,
        strict=True,
    )
    theirs = export()
    with fxpress.installed():
        with check_reuse():
            export()
        with check_reuse(False):
            ours = export()
    assert_same_program(ours, theirs)
    report = reuse_report()
    if dynamic:  # a call that missed torch's cache of fake tensors is no template
        assert report.instantiated, str(report)
    else:
        assert_layers_are_instantiated(name, report)
