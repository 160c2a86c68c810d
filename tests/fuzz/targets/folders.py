"""Folders of stages, checkpoints, files at URLs, and the command line: read, or refused.

An input is an archive whose records are the files of a folder. Files that are archives or JSON
themselves stay so, most of the time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import fxpress
from fxpress import pipeline
from fxpress._tools.cli import app
from fxpress.checkpoint import ArchiveReader, ArchiveWriter
from tests.fuzz.targets import files, memory, timed
from tests.support import sentinel
from tests.support.checkpoints import tied_program
from tests.support.records import read_records, write_records
from tests.support.stores import Store

_MOST_ELEMENTS = 1 << 20  # of a tensor that is loaded
_OVERHEAD = 3  # seconds of the readers, of which there are several, for a file without contents
_COMMANDS = (("inspect", "--weights"), ("inspect", "--json"), ("verify",), ("hash",))


def _state() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.int16)}


def _save_dcp(folder: Path) -> None:
    dcp.save({**_state(), "steps": [1, {"n": 2}]}, checkpoint_id=folder, no_dist=True)


def _save_index(folder: Path) -> None:
    writer = ArchiveWriter(folder, file_bytes=40)
    dcp.save({**_state(), "steps": 3}, storage_writer=writer, no_dist=True)


def _save_stages(folder: Path) -> None:
    pipeline.save_stages(tied_program(), folder, 2)


def _save_program(folder: Path) -> None:
    folder.mkdir()
    fxpress.save(tied_program(), folder / "model.pt2", weights="safetensors")


@functools.cache
def _seeds() -> tuple[bytes, ...]:
    made = []
    for save in (_save_dcp, _save_index, _save_stages, _save_program):
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "a"
            save(folder)
            made.append(write_records({p.name: p.read_bytes() for p in sorted(folder.iterdir())}))
    return tuple(made)


def seeds() -> list[bytes]:
    return list(_seeds())


def _mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes of which a few have changed, were left out, or occur twice."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 1:
                del changed[at : at + rng.choice((1, 4, 40))]
            case 2:
                changed[at:at] = changed[at : at + rng.choice((1, 8, 60))]
            case _:
                changed[at : at + 8] = rng.choice((2**31, 2**40, 2**62)).to_bytes(8, "little")
    return bytes(changed)


def _mutated_file(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes of a file whose JSON, or whose records, have changed."""
    if rng.random() < 0.1:
        return _mutated_bytes(data, rng)
    if data.startswith(b"PK\3\4"):
        return files.mutate(data, len(data) * 2, rng.randrange(1 << 30))
    begin = 8 if data[8:9] == b"{" else 0  # the header of a safetensors file
    size = int.from_bytes(data[:8], "little") if begin else len(data)
    try:
        value = json.loads(data[begin : begin + size])
        files.change(value, rng)
    except (ValueError, TypeError, IndexError, RecursionError):
        return _mutated_bytes(data, rng)
    text = json.dumps(value).encode()
    if not begin:
        return text
    return len(text).to_bytes(8, "little") + text + data[begin + size :]


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Return a folder in which a file or two have changed."""
    rng = random.Random(seed)
    try:
        records = dict(read_records(data))
        assert records
    except Exception:
        records = dict(read_records(rng.choice(seeds())))
    for _ in range(rng.randint(1, 2)):
        name, other = rng.choice(list(records)), rng.choice(list(records))
        if rng.random() < 0.05:
            records[name] = records[other]
        else:
            records[name] = _mutated_file(records[name], rng)
    return write_records(records)[:max_size]


def _load_weights(path: Path | str) -> None:
    """Load the tensors of a checkpoint or a program into new ones."""
    described = ArchiveReader(path).read_metadata().state_dict_metadata
    state = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in described.items()
        if hasattr(each, "size") and each.size.numel() <= _MOST_ELEMENTS
    }
    try:
        dcp.load(state, storage_reader=ArchiveReader(path), no_dist=True)
    except CheckpointException as failed:
        for error, _ in failed.failures.values():
            if not isinstance(error, (fxpress.Error, OSError)) or _is_internal(error):
                raise error from None


def _is_internal(error: BaseException) -> bool:
    return isinstance(error, fxpress.InternalError)


def _run(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = app.run(list(arguments))
    assert status in (0, 1, 2), status


def _readers(folder: Path, names: Mapping[str, bytes]) -> list[Callable[[], Any]]:
    """Return the functions that read a folder, or the program in it."""
    program = folder / "model.pt2"
    at = program if program.name in names else folder
    readers: list[Callable[[], Any]] = [lambda: _load_weights(at)]
    if at is program or "manifest.json" in names:
        url = Store.put(folder, "bucket/a") + ("/model.pt2" if at is program else "")
        readers.append(lambda: _load_weights(url))
    if "manifest.json" in names:
        readers.append(lambda: pipeline.load_stage(folder, 0))
    readers += [functools.partial(_run, name, str(at), *rest) for name, *rest in _COMMANDS]
    return readers


def _read(call: Callable[[], Any]) -> None:
    try:
        call()
    except (fxpress.Error, OSError) as error:
        if _is_internal(error):
            raise


def read(data: bytes) -> None:
    """Run one input of the fuzzer."""
    try:
        records = dict(read_records(data))
    except Exception:
        return  # not a folder
    if not records or any("/" in name or name in ("", ".", "..") for name in records):
        return
    folder = Path(tempfile.mkdtemp(dir="/dev/shm")) / "a"
    folder.mkdir()
    try:
        for name, each in records.items():
            (folder / name).write_bytes(each)
        with sentinel.listening() as heard:
            for reader in _readers(folder, records):
                with memory.at_most(memory.promised(len(data))):
                    call = functools.partial(_read, reader)
                    timed.check(call, _OVERHEAD + timed.promised(len(data)))
            assert not heard, heard[0]
    finally:
        Store.empty()
        shutil.rmtree(folder.parent)
