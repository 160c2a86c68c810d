"""Texts of objects in a notebook and in `help`."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import typing
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export

import fxpress
from fxpress import checkpoint, pipeline
from fxpress._distributed.stages.manifest import read_manifest
from fxpress._tools.inspect.summary import summarize

MARKUP = "<img src=x onerror=alert(1)>&\x1b[31m"


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    return export(model, (torch.ones(2, 4),))


class _Cells(HTMLParser):
    """Collects the tags and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page_of(value: Any) -> _Cells:
    page = _Cells(value._repr_html_())
    assert {*page.tags} <= {"div", "table", "tr", "th", "td"}
    assert "\x1b" not in "".join(page.texts)
    return page


def test_profiles(program: ExportedProgram, tmp_path: Path) -> None:
    with fxpress.profile() as profile:
        assert repr(profile) == "<Profile: 0 calls, 0 phases>"
        fxpress.save(program, tmp_path / "model.pt2")
    events = profile.events
    phases = sum(not event.is_operation for event in events)
    assert repr(profile) == f"<Profile: 1 call, {phases} phases>"
    texts = page_of(profile).texts
    assert {"calls", "wall", "save"} <= {*texts}
    assert all(any(event.name in text for text in texts) for event in events)
    events[0].name, events[0].error = MARKUP, MARKUP
    assert any("onerror" in text for text in page_of(profile).texts)


def test_plans_and_times(program: ExportedProgram) -> None:
    plan = pipeline.plan(program, 2)
    texts = page_of(plan).texts
    assert f"2 stages of {plan.operations} operations by parameters" in texts
    assert {f"{each:,}" for each in plan.memory} <= {*texts}
    times = pipeline.OperationTimes("a" * 64, (3_000_000, 5, 1_000_000_000))
    assert repr(times) == "<OperationTimes: 3 operations, 1 s, program aaaaaaaaaaaa>"
    assert page_of(times).texts[-6:] == ["2", "1 s", "0", "3 ms", "1", "0.005 us"]
    assert any("<img" in each for each in page_of(pipeline.OperationTimes(MARKUP, (1,))).texts)


def test_differences(program: ExportedProgram) -> None:
    found = fxpress.Difference(MARKUP, MARKUP, {"a": "</td><script>"}, (MARKUP, None))
    texts = page_of(found).texts
    assert sum("onerror" in each for each in texts) == 3
    assert "{'a': '</td><script>'}" in texts
    found = dataclasses.replace(found, module=MARKUP)
    all_texts = page_of(type(fxpress.diff(program, program))([found])).texts
    assert sum("onerror" in each for each in all_texts) == 3
    assert page_of(fxpress.diff(program, program)).texts[0] == "no differences"


def test_summaries_manifests_and_readers(program: ExportedProgram, tmp_path: Path) -> None:
    fxpress.save(program, tmp_path / "model.pt2")
    summary = summarize(tmp_path / "model.pt2")
    texts = page_of(summary).texts
    weights = sum(each.numel() for each in program.state_dict.values())
    assert {"model", "input: float32[2, 4]", "3", f"{weights}"} <= {*texts}
    summary.programs[0].name = MARKUP
    assert any("onerror" in text for text in page_of(summary).texts)
    pipeline.save_stages(program, tmp_path / "stages", 2)
    manifest = read_manifest((tmp_path / "stages" / "manifest.json").read_bytes())
    digest = fxpress.graph_hash(program)[:12]
    assert repr(manifest) == (
        f"<Manifest: 2 stages, 160 B of weights, torch {torch.__version__}, program {digest}>"
    )
    path = str(tmp_path / "model.pt2")
    assert repr(checkpoint.ArchiveReader(path)) == f"ArchiveReader({path!r})"
    reader = checkpoint.ArchiveReader(path, model="a", check=True, allow_pickle=True)
    assert repr(reader) == f"ArchiveReader({path!r}, model='a', check=True, allow_pickle=True)"


def functions() -> Iterator[tuple[str, Any]]:
    """Yield the public functions of modules that replace no module of torch."""
    for module in (fxpress, fxpress.archive, fxpress.state, fxpress.checkpoint, fxpress.pipeline):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) and not name.startswith("_"):
                yield f"{module.__name__}.{name}", value


FUNCTIONS = dict(functions())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_shows_no_private_aliases(name: str) -> None:
    """A name of a type in a signature is a class, not an alias, which nobody can look up."""
    function = FUNCTIONS[name]
    module = inspect.getmodule(inspect.unwrap(function))
    for parameter in inspect.signature(function).parameters.values():
        for word in re.findall(r"\w+", str(parameter.annotation)):
            value = vars(module).get(word)
            is_known = value is None or isinstance(value, type) or hasattr(typing, word)
            assert is_known or not word[:1].isupper(), (name, word)


def test_help() -> None:
    text = pydoc.plain(pydoc.render_doc(fxpress.save))
    assert "Literal['inline', 'safetensors', 'none']" in text
    assert "Literal['whole', 'in_place']" in text
    assert "'Progress'" not in text
    assert (
        typing.get_type_hints(fxpress.load)["progress"]
        == typing.get_type_hints(fxpress.save)["progress"]
    )
