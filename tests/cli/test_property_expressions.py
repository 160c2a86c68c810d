"""Expressions at random: where `verify` finds a fault, a load refuses."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fxpress
from fxpress import archive
from fxpress._files.serde.expressions import parse
from fxpress.serialize import SerializeError
from tests.cli.test_expressions_without_sympy import refusal
from tests.support.expressions import texts, with_number
from tests.support.found import find_faults
from tests.support.generated import examples

_HINTS = (None, {"as_int": 9}, {"as_int": 4}, {"as_bool": True})
_ROLES = ("sizes", "strides", "storage_offset", "int")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
@examples(600)
@given(texts())
def test_what_is_refused_is_refused_by_a_load(text: str) -> None:
    if refusal(text) is not None:
        with pytest.raises(SerializeError):
            parse(text, {})


@pytest.mark.filterwarnings("ignore")
@examples(150)
@given(st.sampled_from(_ROLES), texts(), st.sampled_from(_HINTS))
def test_a_fault_is_one_of_a_load(
    tmp_path_factory: pytest.TempPathFactory, role: str, text: str, hint: object
) -> None:
    data = with_number(role, text, hint)
    path = tmp_path_factory.getbasetemp() / "file.pt2"
    path.write_bytes(data)
    if find_faults(Path(path)):
        with pytest.raises(fxpress.Error):
            archive.load(io.BytesIO(data))
