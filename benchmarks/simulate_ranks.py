"""Plan a program of many nodes and large weights, and load each of its stages, one after another.

The functions of `save_stages` write the stages; weights are holes in sparse files, which need
little disk space. One process measures the work of each rank, one after another, but no
communication between ranks. `--nodes 1000000 --gigabytes 1000 --stages 1024` gives a program of a
terabyte.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import json
import shutil
import statistics
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

import worker
from fxpress import pipeline
from fxpress._distributed.stages.build import build
from fxpress._distributed.stages.cut import cut
from fxpress._distributed.stages.documents import sealed
from fxpress._distributed.stages.manifest import digest_of_records, manifest_of, state_of_stages
from fxpress._distributed.stages.save import MANIFEST, STATE, program_name
from fxpress._files.archive.contents import records_of
from fxpress._files.archive.package import _write_program
from fxpress._files.format import names
from fxpress.archive import PT2ArchiveReader

CALLS = 10  # calls in a layer, which also has one weight
BATCH = 8


class HoleyArchive:
    """Replaces fxpress's archive writer: large records are holes in the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._entries: list[tuple[bytes, int, int, int]] = []  # name, begin, size, checksum
        self._names: list[str] = []

    def write_memory(self, parts: list[Any]) -> None:
        """Write zeros for records, whatever the tensors contain."""
        for part in parts:
            self._begin(part.name, part.whole, _checksum_of_zeros(part.whole))
            self._file.seek(part.whole, 1)

    def write_bytes(self, name: str, data: bytes) -> None:
        self._begin(name, len(data), zlib.crc32(data))
        self._file.write(data)

    def write_string(self, name: str, text: str) -> None:
        self.write_bytes(name, text.encode())

    def count_prefix(self, prefix: str) -> int:
        return sum(each.startswith(prefix) for each in self._names)

    def _begin(self, name: str, size: int, checksum: int) -> None:
        """Write the header of a record, so that its data begins at a multiple of 64 bytes."""
        self._names.append(name)
        encoded, begin = f"stage/{name}".encode(), self._file.tell()
        padding = -(begin + 30 + len(encoded) + 4) % 64
        fields = (b"PK\3\4", 20, 0, 0, 0, 33, checksum, size, size, len(encoded), padding + 4)
        self._file.write(struct.pack("<4sHHHHHIIIHH", *fields) + encoded)
        self._file.write(struct.pack("<HH", 0x4246, padding) + bytes(padding))
        self._entries.append((encoded, begin, size, checksum))

    def complete(self) -> None:
        self.write_string(names.ARCHIVE_FORMAT_PATH, names.ARCHIVE_FORMAT_VALUE)
        self.write_string(names.ARCHIVE_VERSION_PATH, names.ARCHIVE_VERSION_VALUE)
        start, count = self._file.tell(), len(self._entries)
        for name, begin, size, checksum in self._entries:
            fields = (b"PK\1\2", 20, 20, 0, 0, 0, 33, checksum, size, size, len(name), 0, 0, 0, 0)
            self._file.write(struct.pack("<4sHHHHHHIIIHHHHHII", *fields, 0, begin) + name)
        size = self._file.tell() - start
        self._file.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, size, start, 0))
        self._file.close()


@functools.cache
def _checksum_of_zeros(size: int) -> int:
    return zlib.crc32(bytes(size))


def program_of(nodes: int, gigabytes: float) -> ExportedProgram:
    """Return a chain of layers, each a matrix product and elementwise calls, with meta weights."""
    from torch.export import graph_signature as sig
    from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
    from torch.utils import _pytree as pytree

    layers = max(1, nodes // (CALLS + 1))
    width = max(1, int((gigabytes * 1e9 / layers / 4) ** 0.5))
    mode, aten = torch._subclasses.FakeTensorMode(), torch.ops.aten
    with mode:
        value, matrix = torch.empty(BATCH, width), torch.empty(width, width)
    graph = torch.fx.Graph()
    state = {
        f"layers.{i}.weight": torch.nn.Parameter(torch.empty(width, width, device="meta"))
        for i in range(layers)
    }

    def placeholder(name: str, value: Any) -> torch.fx.Node:
        node = graph.placeholder(name)
        node.meta["val"] = value
        return node

    weights = [placeholder(f"p_layers_{i}_weight", matrix) for i in range(layers)]
    x = result = placeholder("x", value)
    for i, weight in enumerate(weights):
        stack = {
            "L__self__": ("", "model.Model"),
            f"L__self__layers.{i}": (f"layers.{i}", "model.Layer"),
        }
        for k in range(CALLS):
            target, arguments = (
                (aten.mm.default, (result, weight)) if k == 0 else (aten.relu.default, (result,))
            )
            result = graph.call_function(target, arguments)
            result.meta = {"val": value, "nn_module_stack": stack}
    graph.output((result,))
    argument = sig.TensorArgument
    specs = [
        sig.InputSpec(sig.InputKind.PARAMETER, argument(node.name), name)
        for node, name in zip(weights, state, strict=True)
    ]
    specs.append(sig.InputSpec(sig.InputKind.USER_INPUT, argument("x"), None))
    outputs = [sig.OutputSpec(sig.OutputKind.USER_OUTPUT, argument(result.name), None)]
    call = ModuleCallSignature(
        *([argument(x.name)], [argument(result.name)]),
        *(pytree.tree_structure(((0,), {})), pytree.tree_structure(0)),
    )
    paths = ["", "layers", *(f"layers.{i}" for i in range(layers))]
    entries = [ModuleCallEntry(path, call if path == "" else None) for path in paths]
    signature = sig.ExportGraphSignature(specs, outputs)
    return ExportedProgram(torch.nn.Module(), graph, signature, state, {}, entries)


@contextmanager
def _timed(figures: dict[str, Any], name: str) -> Iterator[None]:
    start, cpu = time.perf_counter(), time.process_time()
    yield
    figures[name] = {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    print(f"{name}: {figures[name]['cpu']:.1f} s of processor time", file=sys.stderr, flush=True)


def save(folder: Path, nodes: int, gigabytes: float, stages: int) -> dict[str, Any]:
    """Plan a program, and write its stages; return the seconds."""
    figures: dict[str, Any] = {}
    gc.disable()  # the program has no garbage
    with _timed(figures, "build"):
        program = program_of(nodes, gigabytes)
    figures["nodes"] = len(program.graph.nodes)
    with _timed(figures, "plan"):
        plan = pipeline.plan(program, stages)
    with _timed(figures, "cut"):
        whole = cut(program, plan.stage_of(program))
    with _timed(figures, "write"):
        files = [
            _write(folder / f"{program_name(stage.number)}.pt2", program, whole, stage)
            for stage in whole.stages
        ]
    with _timed(figures, "manifest"):
        manifest = manifest_of(program, whole, plan, files) | {"picture": None}
        (folder / STATE).write_text(json.dumps(state_of_stages(program, whole)) + "\n")
        (folder / MANIFEST).write_text(json.dumps(sealed(manifest)))
    figures["peak"] = _status("VmHWM")
    return figures


def _write(path: Path, program: ExportedProgram, whole: Any, stage: Any) -> dict[str, Any]:
    made = build(program, whole.ends, stage)
    for name, value in made.state_dict.items():  # memory that is never accessed
        made.state_dict[name] = torch.nn.Parameter(torch.empty(value.shape))
    archive: Any = HoleyArchive(path)
    _write_program(archive, names.MODEL, made, None, 2, None)
    archive.complete()
    with PT2ArchiveReader(path) as reader:
        digest = digest_of_records(reader, records_of(reader, names.MODEL))
    size = path.stat().st_size
    return {"file": path.name, "bytes": size, "sha256": "not computed", "records": digest}


def load(folder: Path, stages: int) -> list[dict[str, float]]:
    """Load each stage, with its weights mapped; return the cost for each rank."""
    torch.set_num_threads(1)
    pipeline.load_stage(folder, 0, mmap=True)  # for late imports
    gc.collect()
    gc.freeze()
    found = []
    for number in range(stages):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        memory, read = _status("VmRSS"), _bytes_read()
        start, cpu = time.perf_counter(), time.process_time()
        stage = pipeline.load_stage(folder, number, mmap=True)
        found.append(
            {
                "wall": time.perf_counter() - start,
                "cpu": time.process_time() - cpu,
                "peak": _status("VmHWM") - memory,
                "read": _bytes_read() - read,
                "weights": stage.module.facts.bytes,
            }
        )
        del stage
        if number % 64 == 0:
            print(f"stage {number}: {found[-1]['cpu']:.2f} s", file=sys.stderr, flush=True)
    return found


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--gigabytes", type=float, default=100.0)
    parser.add_argument("--stages", type=int, default=128)
    parser.add_argument("--worker", choices=("save", "load"), help="for processes of this script")
    parser.add_argument("folder", type=Path, help="to make; it is removed at the end")
    given = parser.parse_args()
    if given.worker == "save":
        print(json.dumps(save(given.folder, given.nodes, given.gigabytes, given.stages)))
        return
    if given.worker == "load":
        print(json.dumps(load(given.folder, given.stages)))
        return
    given.folder.mkdir()
    try:
        options = ("--nodes", str(given.nodes), "--gigabytes", str(given.gigabytes))
        rest = ("--stages", str(given.stages), str(given.folder))
        saved = worker.run("simulate_ranks.py", "save", *options, *rest)
        manifest = (given.folder / MANIFEST).stat().st_size
        loaded = worker.run("simulate_ranks.py", "load", *rest)
    finally:
        shutil.rmtree(given.folder)
    _report(saved, loaded, manifest)


def _report(saved: dict[str, Any], loaded: list[dict[str, float]], manifest: int) -> None:
    print(f"{saved['nodes']:,} nodes, {len(loaded):,} stages, peak {saved['peak'] / 2**30:.1f} GiB")
    for name in ("build", "plan", "cut", "write", "manifest"):
        print(f"{name}: {saved[name]['cpu']:.1f} s of processor time, {saved[name]['wall']:.1f} s")
    print(f"manifest: {manifest / 1e6:.1f} MB")
    print(f"weights: {sum(each['weights'] for each in loaded) / 1e12:.3f} TB")
    of: Callable[[str], list[float]] = lambda key: [each[key] for each in loaded]  # noqa: E731
    for key, unit in (("cpu", 1.0), ("wall", 1.0), ("peak", 1e6), ("read", 1e6)):
        values = [each / unit for each in of(key)]
        print(f"{key} of a rank: median {statistics.median(values):.3f}, most {max(values):.3f}")


if __name__ == "__main__":
    main()
