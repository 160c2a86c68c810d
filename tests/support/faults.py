"""A program that saves many times; each time, one system call fails, or a signal kills the process.
`faults.c` has to be preloaded. Prints a JSON object of counts."""

from __future__ import annotations

import copy
import ctypes
import errno
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from fxpress import archive

COUNT, KILL, FAIL, SHORT = range(1, 5)
MODES = {"kill": KILL, "fail": FAIL, "short": SHORT}
ERRORS = (errno.EIO, errno.ENOSPC)


class Sweep:
    """Saves with faults, over an old file or into an empty folder, as a scenario states."""

    def __init__(self, faults: Any, source: str, folder: Path, scenario: dict[str, Any]) -> None:
        self._faults = faults
        self._folder = folder
        self._path = folder / "model.pt2"
        self._old, self._new = scenario["old"], scenario["new"]
        self._names = ["model", "other"][: scenario.get("programs", 1)]
        program = archive.load(source)
        self._programs = []
        for value in (1.0, 2.0, 3.0):
            made = copy.deepcopy(program)
            with torch.no_grad():
                made.state_dict["weight"].fill_(value)
            self._programs.append(dict.fromkeys(self._names, made))
        self._template = folder.with_name("template")
        folder.mkdir()
        if self._old is not None:
            self._save(0, self._old)
        shutil.copytree(folder, self._template, symlinks=True)

    def _save(self, which: int, weights: str) -> None:
        programs = self._programs[which]
        extra = {"value": str(which + 1.0)}
        archive.package_pt2(
            self._path, exported_programs=programs, extra_files=extra, weights=weights
        )

    def _begin(self, what: int, number: int = 0, error: int = 0) -> None:
        self._faults.faults_begin(os.fsencode(self._folder), what, number, error)

    def count(self) -> list[str]:
        """Return the system calls of a save."""
        self._reset()
        self._begin(COUNT)
        self._save(1, self._new)
        self._faults.faults_end()
        calls: list[str] = self._faults.faults_trace().decode().splitlines()
        return calls

    def _reset(self) -> None:
        shutil.rmtree(self._folder)
        shutil.copytree(self._template, self._folder, symlinks=True)

    def _value(self) -> float | None:
        """Return the value that identifies the saved program; None if there is no file."""
        if not self._path.exists():
            return None
        contents = archive.load_pt2(self._path, load_weights=False)
        value = float(contents.extra_files["value"])
        if value == 1.0 or self._new != "none":
            programs = archive.load_pt2(self._path).exported_programs
            assert sorted(programs) == self._names
            for program in programs.values():
                assert float(program.state_dict["weight"].detach()[0]) == value
        return value

    def _check(self, expected: set[float | None], where: str) -> float | None:
        found = self._value()
        assert found in expected, (where, found)
        self._save(2, self._new)
        assert self._value() == 3.0, where
        weights = len(self._names) if self._new == "safetensors" else 0
        left = sorted(os.listdir(self._folder))
        beside = [name for name in left if name.endswith(".safetensors")]
        assert (len(beside), len(left)) == (weights, weights + 1), (where, left)
        return found

    def run(self, mode: str, number: int, error: int, where: str) -> str:
        """Return which file a save with a fault leaves, "old" or "new", and whether it raised."""
        self._reset()
        before = None if self._old is None else 1.0
        raised = self._killed(number) if mode == "kill" else self._failed(mode, number, error)
        expected = {before, 2.0} if raised else {2.0}
        found = self._check(expected, f"{mode} {number}: {where}")
        return ("new" if found == 2.0 else "old") + (" raised" if raised else "")

    def _killed(self, number: int) -> bool:
        child = os.fork()
        if child == 0:
            self._begin(KILL, number)
            self._save(1, self._new)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == signal.SIGKILL, status
        return True

    def _failed(self, mode: str, number: int, error: int) -> bool:
        raised = None
        self._begin(MODES[mode], number, error)
        try:
            self._save(1, self._new)
        except OSError as e:
            raised = e
        finally:
            self._faults.faults_end()
        if raised is not None:  # fxpress reports a failed `access` as EACCES
            assert raised.errno in (error, errno.EACCES), raised
            assert ".fxpress-tmp" not in str(raised), raised
        return raised is not None


def main() -> None:
    """Arguments: the library, a program, a folder, the scenario as JSON, N: test each Nth call."""
    library, source, folder, scenario, step = sys.argv[1:]
    logging.disable(logging.WARNING)
    faults = ctypes.CDLL(library)
    faults.faults_trace.restype = ctypes.c_char_p
    about = json.loads(scenario)
    sweep = Sweep(faults, source, Path(folder), about)
    sweep.count()  # the first save imports modules, which needs other system calls
    calls = sweep.count()
    counts: dict[str, int] = {}
    for mode in about["modes"]:
        for number, call in list(enumerate(calls, 1))[:: int(step)]:
            if mode == "short" and not call.startswith("write"):
                continue
            for error in ERRORS if mode == "fail" else ERRORS[:1]:
                result = f"{mode}: {sweep.run(mode, number, error, call)}"
                counts[result] = counts.get(result, 0) + 1
    print(json.dumps({"calls": calls, "counts": counts}))


if __name__ == "__main__":
    main()
