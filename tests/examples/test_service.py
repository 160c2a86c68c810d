"""The service of `examples/safe_loader.py` over HTTP, with files of programs and hostile ones."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from tests.fuzz.hostile import hostile_files
from tests.support.command_line import dynamic_program

pytest.importorskip("fastapi", reason="no FastAPI")
pytest.importorskip("uvicorn", reason="no uvicorn")
pytest.importorskip("click", reason="no click")
pytestmark = pytest.mark.slow("a server, and a process for each upload")

SERVICE = Path(__file__).parents[2] / "examples" / "safe_loader.py"
MOST_BYTES = 1 << 20
LOOPBACK = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, SERVICE, str(port)], env={**os.environ, "MOST_BYTES": str(MOST_BYTES)}
    )
    try:
        until = time.monotonic() + 60
        while not is_open(port):
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        yield port
        assert server.poll() is None  # nothing has ended it
    finally:
        server.terminate()
        server.wait(30)


def is_open(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), 1).close()
    except OSError:
        return False
    return True


def put(port: int, body: Any, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    try:
        connection.request("PUT", "/inspect", body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return dynamic_program()


@pytest.fixture(scope="module")
def path(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "model.pt2"
    torch.export.save(program, path)
    return path


def test_a_program_is_told(port: int, program: ExportedProgram, path: Path) -> None:
    status, told = put(port, path.read_bytes())
    assert status == 200
    (found,) = told["programs"]
    assert told["bytes"] == path.stat().st_size
    assert {weight["name"] for weight in found["weights"]} == set(program.state_dict)
    assert [value["name"] for value in found["inputs"]] == ["x", "flag", "bias"]
    assert str(path.parent) not in json.dumps(told)


@pytest.mark.parametrize("body", [b"", b"no zip file", b"PK\x03\x04" + bytes(100)])
def test_other_files_are_refused(port: int, body: bytes) -> None:
    status, told = put(port, body)
    assert status == 422
    assert told["detail"].startswith("fxpress: upload: ")


def test_every_damage_is_an_answer(port: int, path: Path) -> None:
    whole = path.read_bytes()
    for place in range(0, len(whole), len(whole) // 12):
        damaged = bytearray(whole)
        damaged[place : place + 64] = os.urandom(len(damaged[place : place + 64]))
        assert put(port, bytes(damaged))[0] in (200, 422)
        assert put(port, whole[:place])[0] == 422


def test_hostile_files_are_answered(port: int) -> None:
    """Texts that would run code are returned as texts or refused; the server continues."""
    files = [content for content in hostile_files().values() if len(content) < MOST_BYTES]
    for content in files[:: max(1, len(files) // 15)]:
        assert put(port, content)[0] in (200, 422)


def test_the_body_ends_at_the_limit_whatever_length_is_named(port: int) -> None:
    """Of a body without a length, the service reads little more than the limit."""
    sent = 0
    with socket.create_connection((LOOPBACK, port), 60) as client:
        client.sendall(b"PUT /inspect HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n")
        answer = b""
        while not answer and sent < 64 * MOST_BYTES:
            client.settimeout(60)
            try:
                client.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                sent += 1 << 16
            except OSError:  # the server has answered, and closed
                pass
            client.settimeout(0.001)
            try:
                answer = client.recv(1 << 16)
            except TimeoutError:
                continue
    assert answer.startswith(b"HTTP/1.1 413")
    assert sent < 16 * MOST_BYTES


def test_too_large_a_file(port: int) -> None:
    status, told = put(port, bytes(MOST_BYTES + 1))
    assert (status, told["detail"]) == (413, f"more than {MOST_BYTES} bytes")


def test_a_small_file_that_unpacks_to_much(port: int, path: Path, tmp_path: Path) -> None:
    """A text of lists, which would take gigabytes as objects, is refused before they are made."""
    bomb = tmp_path / "bomb.pt2"
    with (
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as edited,
    ):
        for name in archive.namelist():
            is_text = name.endswith("models/model.json")
            edited.writestr(name, b"[" + b"[]," * (40 << 20) if is_text else archive.read(name))
    assert bomb.stat().st_size < MOST_BYTES
    status, told = put(port, bomb.read_bytes())
    assert status == 422
    assert "needs too much memory" in told["detail"]
