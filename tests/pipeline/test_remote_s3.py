"""Stages in buckets of S3, on a server of this machine (moto), read by s3fs.

Both bring some fifty packages, so that the extra `test` is without them: `pip install s3fs
'moto[server]'`.
"""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import fxpress
from fxpress import pipeline
from fxpress.checkpoint import ArchiveReader
from tests.pipeline.test_remote import STAGES, saved  # noqa: F401

s3fs = pytest.importorskip("s3fs", reason="no s3fs")
server = pytest.importorskip("moto.server", reason="no moto")


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[str, str, int]]]:
    """Method, path and bytes of the answer of each request."""
    found: list[tuple[str, str, int]] = []
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    application = running._server.app

    def counting(environ: Any, start: Any) -> Any:
        def begin(status: str, headers: Any, *rest: Any) -> Any:
            length = next((int(v) for k, v in headers if k.lower() == "content-length"), 0)
            count = length if environ["REQUEST_METHOD"] == "GET" else 0
            found.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], count))
            return start(status, headers, *rest)

        return application(environ, begin)

    running._server.app = counting
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        yield found
    running.stop()


def found_bytes(state: dict[str, torch.Tensor]) -> int:
    return sum(value.nbytes for value in state.values())


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_equal_and_what_is_read(
    name: str,
    saved: Path,  # noqa: F811
    requests: list[tuple[str, str, int]],
) -> None:
    s3fs.S3FileSystem().put(str(saved / name), f"bucket/{name}", recursive=True)
    manifest = (saved / "stages" / "manifest.json").stat().st_size
    for number in range(STAGES):
        wanted = pipeline.load_stage(saved / name, number).module.state_dict()
        requests.clear()
        found = pipeline.load_stage(f"s3://bucket/{name}", number).module.state_dict()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], value) for key, value in wanted.items())
        own = (saved / "stages" / f"stage_{number}.pt2").stat().st_size
        read = sum(count for *_, count in requests)
        assert found_bytes(found) < read <= 1.05 * own + manifest + 2**16
        assert len(requests) < 20


def test_an_object_that_is_replaced(saved: Path, requests: list[tuple[str, str, int]]) -> None:  # noqa: F811
    """Between the directory and the records: by its ETag."""
    from fxpress._files.archive.remote_archive import RemoteArchive
    from fxpress._files.remote.remote_file import RemoteFile

    system = s3fs.S3FileSystem()
    system.put(str(saved / "stages.pt2"), "bucket/changing.pt2")
    opened = RemoteArchive(RemoteFile("s3://bucket/changing.pt2"))
    data = bytearray((saved / "stages.pt2").read_bytes())
    data[100] ^= 1
    system.pipe("bucket/changing.pt2", bytes(data))
    with pytest.raises((OSError, fxpress.ArchiveError)), opened.loading("stage_0"):
        pass


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_a_reader_of_weights(
    name: str,
    saved: Path,  # noqa: F811
    requests: list[tuple[str, str, int]],
) -> None:
    """Of one stage, of its first rows: what `torch.distributed.checkpoint` reads."""
    s3fs.S3FileSystem().put(str(saved / name), f"bucket/{name}", recursive=True)
    wanted = pipeline.load_stage(saved / "stages", 1).module.state_dict()
    options = {} if name == "stages" else {"model": "stage_1"}
    state = {key: torch.zeros_like(value) for key, value in wanted.items()}
    requests.clear()
    dcp.load(state, storage_reader=ArchiveReader(f"s3://bucket/{name}", **options), no_dist=True)
    assert all(torch.equal(state[key], value) for key, value in wanted.items())
    directories = 2**16 * (STAGES if name == "stages" else 1)
    read = sum(count for *_, count in requests)
    assert found_bytes(state) < read <= found_bytes(state) + directories + 2**15


def test_save(requests: list[tuple[str, str, int]]) -> None:
    from tests.support.pipelines import tied

    for url in ("s3://bucket/saved", "s3://bucket/saved.pt2"):
        pipeline.save_stages(tied(), url, 2)
        assert pipeline.load_stage(url, 1).count == 2
        puts = [path for method, path, _ in requests if method == "PUT"]
        if url.endswith("saved"):
            assert puts[-1].endswith("/manifest.json")


def test_what_is_not_there(requests: list[tuple[str, str, int]]) -> None:
    with pytest.raises(pipeline.PipelineError, match=r"manifest\.json is missing"):
        pipeline.load_stage("s3://bucket/nothing", 0)
    with pytest.raises(OSError):
        pipeline.load_stage("s3://no-such-bucket/nothing.pt2", 0)


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_http(name: str, saved: Path, requests: list[tuple[str, str, int]]) -> None:  # noqa: F811
    """The same server without signatures."""
    system = s3fs.S3FileSystem(s3_additional_kwargs={"ACL": "public-read"})
    system.put(str(saved / name), f"bucket/http/{name}", recursive=True)
    wanted = pipeline.load_stage(saved / name, 1).module.state_dict()
    requests.clear()
    found = pipeline.load_stage(f"{os.environ['AWS_ENDPOINT_URL']}/bucket/http/{name}", 1)
    assert all(torch.equal(found.module.state_dict()[key], v) for key, v in wanted.items())
    assert sum(count for *_, count in requests) < 2 * found_bytes(wanted)


class WithoutRanges(http.server.SimpleHTTPRequestHandler):
    """Sends entire files for every range, and claims to send ranges."""

    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_http_without_ranges(saved: Path) -> None:  # noqa: F811
    handler = functools.partial(WithoutRanges, directory=str(saved))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            for name in ("stages", "stages.pt2"):
                with pytest.raises(OSError, match=r"127\.0\.0\.1"):
                    pipeline.load_stage(f"http://127.0.0.1:{running.server_port}/{name}", 1)
        finally:
            running.shutdown()
            thread.join()
