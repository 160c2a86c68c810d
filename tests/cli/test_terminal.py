"""Each command in a terminal: its lines fit, colours are there and not in a pipe."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

import fxpress
from fxpress._tools.cli import app
from tests.support.command_line import run

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLUMNS = 60


def in_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run a command with all of its streams at a terminal of 60 columns; status and output."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "fxpress", *arguments]
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    parts = []
    try:
        while part := os.read(leader, 1 << 16):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    return process.wait(), b"".join(parts).decode()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("inspect {0}", 0),
        ("inspect {0} --node linear", 0),
        ("inspect {0} --node nowhere", 1),
        ("verify {0}", 0),
        ("hash {0}", 0),
        ("diff {0} {0}", 0),
        ("inspect {1}", 2),
    ],
)
def test_in_a_terminal_and_in_a_pipe(command: str, status: int, path: Path) -> None:
    arguments = command.format(path, Path(__file__)).split()
    found, shown = in_a_terminal(*arguments)
    piped = run(*arguments)
    assert (found, piped.returncode) == (status, status)
    assert "\x1b" not in piped.stdout + piped.stderr
    assert "nowhere" not in command or "no node is called 'nowhere'" in piped.stderr
    if arguments[0] == "inspect" and status == 0:
        assert _STYLE.search(shown)
        table = [line for line in _STYLE.sub("", shown).splitlines() if "float" in line]
        assert table
        assert max(map(len, table)) <= COLUMNS
    else:  # lines of text, which the terminal breaks
        assert _STYLE.sub("", shown).split() == (piped.stdout + piped.stderr).split()


@pytest.mark.parametrize(
    ("shell", "line", "current"), [("bash", "{0}", 1), ("zsh", "{0}", 1), ("fish", "", "{0}")]
)
def test_completion_for_shells(
    shell: str, line: str, current: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(what: str, typed: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("_FXPRESS_COMPLETE", f"{shell}_{what}")
        monkeypatch.setenv("COMP_WORDS", f"fxpress {line.format(typed)}")
        monkeypatch.setenv("COMP_CWORD", str(current).format(typed))
        return run()

    script = asked("source", "")
    assert script.returncode == 0
    assert f"_FXPRESS_COMPLETE={shell}_complete" in script.stdout
    completed = asked("complete", "sp")
    assert completed.returncode == 0
    assert "split" in completed.stdout
    assert "inspect" not in completed.stdout


def test_help_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of each command is complete, and states the exit status."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("--help").stdout
    assert "..." not in shown.replace("[ARGS]...", "")
    assert "Exit status: 0 for success, 1 when the answer is no" in shown


@pytest.mark.parametrize("command", ["inspect", "verify", "hash"])
def test_quick_commands_import_little(command: str, path: Path) -> None:
    """Modules that are slow to import are not imported."""
    script = "import sys; from fxpress.__main__ import main; main(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, command, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    slow = {"torch", "sympy", "numpy", "pydantic", "argparse"}
    slow |= set() if command == "inspect" else {"rich"}
    assert not slow & set(done.stdout.splitlines()[-1].split())


def test_debug(path: Path) -> None:
    for arguments in (["inspect", str(Path(__file__))], ["inspect", "nowhere.pt2"]):
        for shown in (run(*arguments), run("--debug", *arguments), run(*arguments, "--debug")):
            assert (shown.returncode, shown.stdout) == (2, "")
            is_debug = "--debug" in shown.args
            assert ("Traceback" in shown.stderr) is is_debug
            assert is_debug or len(shown.stderr.splitlines()) == 1
        status, text = in_a_terminal("--debug", *arguments)
        assert status == 2
        assert "Traceback" in text


def test_unexpected_failures_are_a_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no luck\nat all")

    monkeypatch.setattr("fxpress._tools.cli.inspect.summarize", fail)
    assert app.run(["inspect", str(path)]) == 2
    said = capsys.readouterr().err
    assert said == "fxpress: RuntimeError: no luck (fxpress --debug shows where)\n"


def test_readers_that_go_away(path: Path) -> None:
    command = [sys.executable, "-m", "fxpress", "inspect", "--json", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["inspect", "verify", "hash", "--help"])
def test_closed_streams(command: str, closed: str, path: Path) -> None:
    script = f'exec "$0" -m fxpress {command} "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["inspect", "--debug inspect", "hash", "convert"])
def test_failures_that_nobody_reads(command: str, tmp_path: Path) -> None:
    """The status is that of a failure, and not 1, which means that the answer is no."""
    for redirected in ("2>/dev/full", "2>&1 >/dev/full"):
        script = f'exec "$0" -m fxpress {command} "$1" "$1" {redirected}'
        script = script if command == "convert" else script.replace(' "$1" "$1"', ' "$1"')
        call = ["sh", "-c", script, sys.executable, str(tmp_path / "nowhere.pt2")]
        assert subprocess.run(call, stderr=subprocess.PIPE, check=False).returncode == 2


def test_an_encoding_without_the_characters(tmp_path: Path) -> None:
    """Names that the terminal's encoding lacks are escaped."""
    model = torch.nn.Sequential(OrderedDict({"caf\xe9": torch.nn.Linear(2, 2)}))
    program = torch.export.export(model, (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "caf\xe9.pt2")
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for arguments in (
        ["inspect", "--tree", "9"],
        ["verify"],
        ["hash"],
        ["inspect", "--node", "\xe9"],
    ):
        command = [sys.executable, "-m", "fxpress", *arguments, str(tmp_path / "caf\xe9.pt2")]
        done = subprocess.run(
            command, capture_output=True, env={**os.environ, **plain}, text=True, check=False
        )
        assert done.returncode == (1 if "--node" in arguments else 0), done.stderr
        assert "Error" not in done.stderr
        assert "caf" in done.stdout + done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full of Linux")
def test_a_full_disk_is_a_line(path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fxpress", "inspect", str(path)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "fxpress: No space left on device\n")


def test_version_and_short_help() -> None:
    assert run("--version").stdout == f"fxpress {fxpress.__version__}\n"
    for command in app.app.commands:
        assert run_here(command, "-h") == run_here(command, "--help"), command


def run_here(*arguments: str) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        return app.run([*arguments]), output.getvalue()


def test_long_lines_are_not_broken(tmp_path: Path) -> None:
    """A listing of weights has each weight on a line, without trailing spaces, everywhere."""
    deep = "a" * 70
    model = torch.nn.Sequential(OrderedDict({deep: torch.nn.Linear(2, 2, bias=False)}))
    model.append(torch.nn.Linear(2, 2))
    program = torch.export.export(model, (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "long.pt2")
    arguments = ("inspect", str(tmp_path / "long.pt2"), "--weights")
    for shown in (_STYLE.sub("", in_a_terminal(*arguments)[1]), run(*arguments).stdout):
        lines = shown.splitlines()
        assert all(any(f"{name}  " in line for line in lines) for name in program.state_dict)
        assert all(line == line.rstrip() for line in lines)


def test_progress_is_shown_in_a_terminal(path: Path, tmp_path: Path) -> None:
    """After a second, the work is named; a pipe gets only results."""
    status, shown = in_a_terminal("split", str(path), "--stages", "2", "-o", str(tmp_path / "a"))
    assert status == 0, shown
    assert "importing torch" in shown
    piped = run("split", str(path), "--stages", "2", "-o", str(tmp_path / "b"))
    assert piped.stderr == ""
    assert "importing torch" not in piped.stdout
    assert "\x1b" not in piped.stdout
