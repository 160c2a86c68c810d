"""Weights at URLs equal the weights of files, are read by ranges, and raise errors if wrong."""

from __future__ import annotations

import http.server
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

import fxpress
from fxpress import pipeline
from fxpress import state as states
from fxpress.checkpoint import ArchiveReader, ArchiveWriter
from tests.checkpoint.test_ranks import big_state
from tests.support.checkpoints import (
    HEADERS,
    assert_same,
    blank,
    distributed,
    load,
    local,
    local_bytes,
    save,
    state_of_all_kinds,
    tied_program,
)
from tests.support.ranks import run_ranks
from tests.support.stores import SCHEME, Store

slow = pytest.mark.slow("starts processes")
KINDS = ["model.pt2", "beside.pt2", "stages", "saved", "state.pt2", "alone.safetensors"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    program = tied_program()
    fxpress.save(program, folder / "model.pt2")
    fxpress.save(program, folder / "beside.pt2", weights="safetensors")
    pipeline.save_stages(program, folder / "stages", 2)
    save(state_of_all_kinds(), ArchiveWriter(folder / "saved", file_bytes=300))
    states.write(state_of_all_kinds(), folder / "state.pt2")
    (saved,) = folder.glob("beside*.safetensors")
    (folder / "alone.safetensors").write_bytes(saved.read_bytes())
    return folder


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    Store.empty()
    yield
    Store.empty()


def put(written: Path, name: str) -> str:
    """Store the bytes for a protocol, and return their URL."""
    if name == "beside.pt2":
        for each in written.glob("beside*.safetensors"):
            Store.put(each, f"bucket/{each.name}")
    return Store.put(written / name, f"bucket/{name}")


def contents(name: str) -> dict[str, Tensor]:
    if name in ("saved", "state.pt2"):
        return {key: value.contiguous() for key, value in state_of_all_kinds().items()}
    return dict(tied_program().state_dict)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_equal(name: str, check: bool, written: Path) -> None:
    url = put(written, name)
    assert_same(load(blank(contents(name)), url, check=check), contents(name))
    assert ArchiveReader(url).checkpoint_id == url


@pytest.mark.parametrize("name", KINDS)
def test_what_is_read_for_one_tensor(name: str, written: Path) -> None:
    url = put(written, name)
    wanted = contents(name)
    (first, *_) = sorted(wanted)
    Store.forget()
    assert_same(load(blank({first: wanted[first]}), url), {first: wanted[first]})
    whole = [each for each in Store.ranges if each[2] - each[1] == len(Store.objects[each[0]])]
    large = 2**16  # smaller files are read with their directory at once
    assert all(len(Store.objects[path]) <= large or path.endswith(".json") for path, *_ in whole)
    assert Store.read() <= 2 * 2**16 + 2 * wanted[first].nbytes


def test_memory_and_a_file_of_this_machine(written: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("stages", "model.pt2"):
        memory.put(str(written / name), f"/bucket/{name}", recursive=True)
        for url in (f"memory://bucket/{name}", f"file://{written / name}"):
            assert_same(load(blank(contents(name)), url), contents(name))
    memory.rm("/bucket", recursive=True)
    memory.put(str(written / "model.pt2"), "/model.pt2")
    assert_same(load(blank(contents("model.pt2")), "memory://model.pt2"), contents("model.pt2"))
    memory.rm("/model.pt2")


def reads(path: Path, name: str, state: Any) -> tuple[int, int]:
    """Load DTensors from a store of this rank; return bytes read and bytes of the shards."""
    url = Store.put(path, f"bucket/{path.name}")
    made = distributed(blank(state()), name)
    Store.forget()
    dcp.load(made, storage_reader=ArchiveReader(url))
    read = Store.read()
    assert_same(local(made), local(distributed(state(), name)))
    return read, local_bytes(made)


@slow
@pytest.mark.parametrize("name", ["rows", "replicated", "grid"])
@pytest.mark.parametrize("kind", ["state.pt2", "saved"])
def test_each_rank_reads_its_shards(kind: str, name: str, tmp_path: Path) -> None:
    if kind == "saved":
        save(big_state(), ArchiveWriter(tmp_path / kind, file_bytes=1_000_000))
    else:
        states.write(big_state(), tmp_path / kind)
    for read, shards in run_ranks(4, reads, tmp_path / kind, name, big_state):
        # A gap below 16 KiB is read too, so that rows are whole in a grid.
        assert read <= (2 if name == "grid" else 1.05) * shards + HEADERS


def wide_state() -> dict[str, Tensor]:
    """Rows of 80 KiB: the gaps between a rank's parts of them are above 16 KiB."""
    torch.manual_seed(6)
    return {"wide": torch.randn(12, 20480), "bias": torch.randn(20480)}


@slow
def test_columns_of_long_rows(tmp_path: Path) -> None:
    states.write(wide_state(), tmp_path / "state.pt2")
    for read, shards in run_ranks(4, reads, tmp_path / "state.pt2", "columns", wide_state):
        assert read <= 1.05 * shards + HEADERS


def loads(path: Path, change: Any) -> str:
    """Load from a store of this rank, which is not the others'; return the text of the error."""
    url = Store.put(path, "bucket/a.pt2")
    if torch.distributed.get_rank() == 1:
        change(path)
    state = {"a": torch.zeros(4)}
    try:
        dcp.load(state, storage_reader=ArchiveReader(url))
    except CheckpointException as error:
        assert not state["a"].any()
        return str(error)
    return ""


def another(path: Path) -> None:
    states.write({"a": torch.full((4,), 2.0)}, path.with_name("b.pt2"))
    Store.put(path.with_name("b.pt2"), "bucket/a.pt2")


def gone(_: Path) -> None:
    Store.objects.clear()


def damaged(_: Path) -> None:
    Store.objects["bucket/a.pt2"] = b"PK\3\4 and nothing else"


@slow
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (another, "the ranks [1] read another checkpoint than rank 0"),
        (gone, "No such file or directory"),
        (damaged, f"{SCHEME}://bucket/a.pt2: the file is not a zip archive, or is damaged"),
    ],
)
def test_a_rank_with_another_file(change: Any, text: str, tmp_path: Path) -> None:
    states.write({"a": torch.ones(4)}, tmp_path / "a.pt2")
    found = run_ranks(2, loads, tmp_path / "a.pt2", change)
    assert found[0] == found[1]
    assert text in found[0]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("change", ["short", "long", "empty", "other"])
def test_a_request_that_goes_wrong(name: str, change: str, written: Path) -> None:
    """If an entire tensor is read, its checksum is compared."""
    url = put(written, name)
    wanted = contents(name)

    changed = {
        "short": lambda data: data[:-1],
        "long": lambda data: data + b"\0",
        "empty": lambda data: b"",
        "other": lambda data: bytes(byte ^ 0xFF for byte in data),
    }[change]

    Store.forget()
    load(blank(wanted), url)
    failed = wrong = 0
    for which in range(len(Store.ranges)):
        Store.forget()
        Store.answer = lambda _, data, number, at=which: changed(data) if number == at else data
        try:
            load(blank(wanted), url)
        except CheckpointException:
            failed += 1
        wrong += which < len(Store.ranges)  # threads may need fewer requests than before
    # Other bytes of safetensors files without checksums, or of views, are not seen.
    assert failed == wrong or change == "other"
    assert failed


@pytest.mark.parametrize("name", ["model.pt2", "saved"])
def test_a_file_that_changes(name: str, written: Path) -> None:
    url = put(written, name)
    wanted = contents(name)
    load(blank(wanted), url)
    for which in range(0, len(Store.ranges), 3):
        put(written, name)
        Store.forget()

        def answer(path: str, data: bytes, number: int, which: int = which) -> bytes:
            if number == which:
                Store.objects[path] = Store.objects[path] + b"\0"
            return data

        Store.answer = answer
        with pytest.raises(CheckpointException) as caught:
            load(blank(wanted), url)
        assert "has changed while it was read" in str(caught.value)


def test_damaged_directories(written: Path) -> None:
    """A byte, anywhere in the directory or in a header: the same weights, or an error."""
    url = put(written, "state.pt2")
    wanted = contents("state.pt2")
    data = Store.objects["bucket/state.pt2"]
    chance = random.Random(0)
    failed = 0
    begin = data.index(b"PK\1\2")
    for _ in range(100):
        changed = bytearray(data)
        changed[chance.randrange(begin, len(data))] ^= 1 << chance.randrange(8)
        Store.objects["bucket/state.pt2"] = bytes(changed)
        try:
            found = load(blank(wanted), url)
        except CheckpointException:
            failed += 1
        else:
            assert_same(found, wanted)
    assert failed > 20


def test_what_is_not_there() -> None:
    for name, text in (
        ("folder", "the folder does not contain a checkpoint"),
        ("a.pt2", "No such file or directory"),
        ("model.safetensors", "No such file or directory"),
    ):
        with pytest.raises(CheckpointException, match=text):
            load({"a": torch.zeros(1)}, f"{SCHEME}://bucket/{name}")


def test_a_folder_of_torch() -> None:
    Store.objects["bucket/saved/.metadata"] = b""
    with pytest.raises(CheckpointException, match="is a checkpoint of torch"):
        load({"a": torch.zeros(1)}, f"{SCHEME}://bucket/saved")


def test_secrets_are_not_shown() -> None:
    with pytest.raises(CheckpointException) as caught:
        load({"a": torch.zeros(1)}, f"{SCHEME}://user:secret@bucket/a.pt2?signature=secret")
    assert "secret" not in str(caught.value)
    assert (
        repr(ArchiveReader(f"{SCHEME}://u:secret@b/a.pt2"))
        == f"ArchiveReader('{SCHEME}://b/a.pt2')"
    )


SECRET = "us3r:pa55word@bucket/a.pt2?sig=s3cr%2Bet&X-Amz-Signature=deadbeef#fr4gment"
SECRETS = ("us3r", "pa55word", "s3cr", "deadbeef", "fr4gment")


def chain_of(error: BaseException | None) -> str:
    """The texts of an exception, of its causes and of its contexts."""
    if error is None:
        return ""
    return f"{error!r}{error}{chain_of(error.__cause__)}{chain_of(error.__context__)}"


@pytest.mark.parametrize(
    "text", ["no {} here", "no URL('{}')", "denied: {} \x1b[2J", "{}".format(SECRET.split("?")[1])]
)
def test_secrets_in_texts_of_libraries_are_not_shown(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{SCHEME}://{SECRET}"

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(text.format(url))

    monkeypatch.setattr(Store, "info", refuse)
    with pytest.raises(OSError, match="PermissionError") as caught:
        ArchiveReader(url).read_metadata()
    shown = chain_of(caught.value)
    assert not [each for each in SECRETS if each in shown]
    assert f"{SCHEME}://bucket/a.pt2" in shown
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_shown"), [("bucket a1b busy", True), ("not b", False), ("a=b", False)]
)
def test_short_values_hide_only_words(
    text: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(text)

    monkeypatch.setattr(Store, "info", refuse)
    with pytest.raises(OSError, match="PermissionError") as caught:
        ArchiveReader(f"{SCHEME}://bucket/x.pt2?a=b").read_metadata()
    assert (text in str(caught.value)) == is_shown


def test_secrets_with_spaces_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError):
        ArchiveReader(f"{SCHEME}://bucket/none.pt2").read_metadata()
    with caplog.at_level(logging.DEBUG, "fsspec"):
        for url in (
            "u s:s3cr et@b/a b?x=1",
            "b/a b?sig=s3cr et 's3cr et'",
            "b/a https://s3cr et@c/d",
        ):
            logging.getLogger("fsspec").debug("Fetch https://%s : 0-1", url)
    assert "https://b/a b" in caplog.text
    assert not [each for each in ("s3cr", "et@", "et '") if each in caplog.text]


@pytest.mark.parametrize("failures", [2, 9])
def test_reads_are_repeated(failures: int, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that breaks is tried again, with longer and longer pauses, and not for ever."""
    url = put(written, "model.pt2")
    pauses: list[float] = []
    monkeypatch.setattr("fxpress._files.remote.urls.time.sleep", pauses.append)
    asked = Store.info

    def breaking(self: Store, path: str, **options: Any) -> dict[str, Any]:
        if len(pauses) < failures:
            raise ConnectionResetError("reset by peer")
        return asked(self, path, **options)

    monkeypatch.setattr(Store, "info", breaking)
    if failures == 2:
        ArchiveReader(url).read_metadata()
    else:
        with pytest.raises(OSError, match="reset by peer"):
            ArchiveReader(url).read_metadata()
    assert pauses == sorted(pauses)
    assert len(pauses) == min(failures, 3)


Answer = Callable[[http.server.BaseHTTPRequestHandler, int], None]


@pytest.fixture
def served() -> Iterator[Callable[[Answer], str]]:
    """Start servers of this machine, and return their URLs, with secrets."""
    pytest.importorskip("aiohttp", reason="no aiohttp")
    running: list[http.server.ThreadingHTTPServer] = []

    def serve(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                server.number += 1
                answer(self, server.number)

            do_HEAD = do_GET

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            number = 0

            def handle_error(self, *_: Any) -> None:
                pass

        server = Server(("127.0.0.1", 0), Handler)
        running.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://{SECRET.replace('bucket', f'127.0.0.1:{server.server_port}')}"

    yield serve
    for server in running:
        server.shutdown()
        server.server_close()


def begin(handler: http.server.BaseHTTPRequestHandler, status: int, size: int | None) -> bool:
    """Send the head of an answer; return whether the body is wanted."""
    handler.send_response(status)
    if size is not None:
        handler.send_header("Content-Length", str(size))
    handler.end_headers()
    return handler.command == "GET"


@pytest.mark.parametrize("status", [206, 200])
def test_http_that_never_ends(status: int, served: Callable[[Answer], str]) -> None:
    sent = 0

    def answer(handler: http.server.BaseHTTPRequestHandler, _: int) -> None:
        nonlocal sent
        handler.close_connection = True
        if handler.command == "HEAD":
            begin(handler, 200, 5000)
            return
        begin(handler, status, None)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            sent += handler.wfile.write(bytes(1 << 16))

    with pytest.raises((OSError, fxpress.ArchiveError)):
        ArchiveReader(served(answer)).read_metadata()
    assert sent < 1 << 24  # what the sockets of both sides hold
    url = served(lambda handler, _: begin(handler, 200, 1 << 40) and None)
    with pytest.raises(OSError, match="too large"):
        ArchiveReader(url.replace("a.pt2", "a.json")).read_metadata()


@pytest.mark.parametrize("status", [401, 403, 404, 410, 500, 503])
def test_http_statuses(
    status: int, served: Callable[[Answer], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The message has the status and no secret; a missing file is a FileNotFoundError."""
    caplog.set_level(logging.DEBUG)
    url = served(lambda handler, _: begin(handler, status, 0) and None)
    with pytest.raises(OSError, match=f"HTTP status {status} ") as caught:
        ArchiveReader(url).read_metadata()
    assert isinstance(caught.value, FileNotFoundError) == (status in (404, 410))
    shown = chain_of(caught.value) + caplog.text
    assert not [each for each in SECRETS if each in shown]


def test_http_that_fails_twice(served: Callable[[Answer], str], written: Path) -> None:
    data = (written / "model.pt2").read_bytes()

    def answer(handler: http.server.BaseHTTPRequestHandler, number: int) -> None:
        asked = handler.headers.get("Range")
        if number in (1, 2, 3, 6, 9):
            begin(handler, 503, 0)
        elif asked is None:
            begin(handler, 200, len(data))
        else:
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            begin(handler, 206, last + 1 - first)
            handler.wfile.write(data[first : last + 1])

    wanted = contents("model.pt2")
    assert_same(load(blank(wanted), served(answer)), wanted)


class Own(torch.Tensor):
    """A tensor of a separate class, which is pickled."""


def test_a_tensor_that_is_pickled(tmp_path: Path) -> None:
    states.write({"a": torch.ones(3).as_subclass(Own)}, tmp_path / "a.pt2")
    url = Store.put(tmp_path / "a.pt2", "bucket/a.pt2")
    with pytest.raises(CheckpointException, match="allow_pickle"):
        load({"a": torch.zeros(3)}, url)
    assert_same(load({"a": torch.zeros(3)}, url, allow_pickle=True), {"a": torch.ones(3)})
