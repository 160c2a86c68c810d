"""End Python while a daemon thread is in a call of fxpress.

`python -m tests.support.exits FOLDER` forks a process for each of PLACES. The process ends normally
while its thread is at the place. For each process, a line has the place, exit status and output.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import fx

import fxpress
from fxpress import _native, serialize, state
from fxpress._graphs import engine
from fxpress.decompose import run_decompositions
from fxpress.export import module
from fxpress.split_module import split_module, split_module_simple
from fxpress.unflatten import unflatten
from tests.support.hostile import Key, Meta, Moment, arguments, exported, traced

_inside = threading.Event()


def stay(*_: Any, **__: Any) -> NoReturn:
    """Stand in for user code that never returns and sometimes releases the GIL."""
    _inside.set()
    while True:
        time.sleep(1e-4)


def _loop(call: Callable[[], object]) -> NoReturn:
    """Repeat a call forever: for calls that release the GIL, and do not run code of the user."""
    call()
    _inside.set()
    while True:
        call()


class _Written(io.BytesIO):
    def write(self, _: Any) -> NoReturn:
        stay()


class _Source:
    """A source of an archive; its method `read` never returns."""

    size = 1 << 20
    read = stay


def _read_file() -> object:
    saved = io.BytesIO()
    fxpress.save(exported(), saved)
    file: Any = type("File", (), {"read": stay, "readinto": stay})()
    file.seek, file.tell, file.seekable = saved.seek, saved.tell, lambda: True
    return fxpress.load(file)


class _Repr:
    def __repr__(self) -> str:
        stay()


def _with_hook() -> object:
    made = unflatten(exported())
    made.inner.register_forward_pre_hook(stay)
    return made(*arguments())


def _with_metas(make: Callable[[], Any], call: Callable[[Any], object]) -> object:
    subject = make()
    moment = Moment(0, stay)
    moment.armed = True
    for node in subject.graph.nodes:
        node.meta = Meta(node.meta)
        node.meta.moment = moment
    return call(subject)


def _with_names(call: Callable[[Any], object]) -> object:
    subject = exported()
    for node in subject.graph.nodes:
        node.name = Key(node.name)
        node.name.moment = Moment(0, stay)
        node.name.moment.armed = True
    return call(subject)


def _code_of_argument() -> object:
    subject = traced()
    node = next(each for each in subject.graph.nodes if each.op == "call_function")
    node._args = (*node.args, _Repr())  # type: ignore[assignment]
    subject.recompile()
    return subject.code


def _large() -> list[torch.Tensor]:
    return [torch.ones(1 << 24) for _ in range(4)]


def _run_operators() -> NoReturn:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(20):
        x = graph.call_function(torch.ops.aten.mm.default, (x, x))
    graph.output(None)  # type: ignore[arg-type]  # torch may abort where it drops a tensor
    root, value = torch.nn.Module(), torch.zeros(256, 256)
    _loop(lambda: engine.run(root, graph, (value,)))


def _read_archive(path: str) -> NoReturn:
    state.write({"w": _large()[0]}, path)
    _loop(lambda: state.read(path))


PLACES: dict[str, Callable[[str], object]] = {
    "a hook of an unflattened module": lambda _: _with_hook(),
    "a callback of split_module": lambda _: split_module(traced(), None, stay),
    "a mapping for split_module_simple": lambda _: split_module_simple(
        traced(), type("Mapping", (), {"__getitem__": stay})()
    ),
    "a meta that split_module copies": lambda _: _with_metas(
        traced, lambda made: split_module(made, None, lambda _: 0)
    ),
    "a meta that unflatten copies": lambda _: _with_metas(exported, unflatten),
    "a meta that module() copies": lambda _: _with_metas(exported, module),
    "a name that is saved": lambda _: _with_names(serialize.serialize),
    "a name that is hashed": lambda _: _with_names(fxpress.graph_hash),
    "an argument whose code is written": lambda _: _code_of_argument(),
    "the progress of clone": lambda _: state.clone(_large(), progress=stay),
    "the progress of save": lambda path: fxpress.save(exported(), path, progress=stay),
    "the progress of a decomposition": lambda _: run_decompositions(exported(), progress=stay),
    "a file object that is written": lambda _: fxpress.save(exported(), _Written()),
    "a file object that is read": lambda _: _read_file(),
    "the source of an archive": lambda _: _native.ArchiveReader(_Source(), 0),
    "operators without the GIL": lambda _: _run_operators(),
    "a clone without the GIL": lambda _: _loop(functools.partial(state.clone, _large())),
    "a file that is read without the GIL": _read_archive,
    "a hash without the GIL": lambda _: _loop(lambda: fxpress.graph_hash(exported())),
}


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    exported()
    running = {}
    for number, (place, enter) in enumerate(PLACES.items()):
        output = folder / f"{number}.txt"
        child = os.fork()
        if child == 0:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            path = str(folder / f"{number}.pt2")
            threading.Thread(target=enter, args=(path,), daemon=True).start()
            if not _inside.wait(100):
                print("the thread has not come to its place")
            time.sleep(0.05)
            return
        running[child] = (place, output)
    for _ in range(len(running)):
        child, status = os.wait()
        place, output = running[child]
        print((place, os.waitstatus_to_exitcode(status), output.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
