"""Commands on a file of n bytes use at most 10 n + 256 MB of memory, for any unpacked size."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from fxpress._files.format.fields import objects_of
from tests.support.sampled import turns

PROMISED = 256 << 20  # and ten times the file
VIEW = "view {0} --json {0}.json"
READ_CONFIGS = ("inspect {0}", "verify {0}", "hash --state {0}")
COMMANDS = (*READ_CONFIGS, "inspect {0} --node linear", VIEW)
MODEL, CONFIG = "models/model.json", "model_weights_config.json"
# Not getrusage: its figure begins with that of the process that starts this one.
_PEAK = """
import sys
from pathlib import Path
from fxpress._tools.cli import app
status = app.run(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
kilobytes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
print(status, int(kilobytes[0]) << 10, file=sys.stderr)
"""


def peak_of(*arguments: str) -> tuple[int, int, str]:
    """Run a command; return its status, its peak of memory in bytes, and its output."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *arguments], capture_output=True, text=True, check=True
    )
    *said, last = done.stderr.splitlines()
    status, peak = map(int, last.split())
    return status, peak, done.stdout + "\n".join(said)


def repeated(part: bytes, megabytes: int = 110) -> bytes:
    return part * ((megabytes << 20) // len(part))


def distinct_keys() -> bytes:
    return b"{" + b",".join(b'"%x":1' % n for n in range(6 << 20)) + b"}"


def graph_of(nodes: Iterable[bytes], tensors: bytes = b"") -> bytes:
    signature = b'{"input_specs": [], "output_specs": []}'
    graph = b'{"inputs": [], "outputs": [], "tensor_values": {%b}, ' % tensors
    graph += b'"nodes": [' + b",".join(nodes) + b"]}"
    return b'{"graph_module": {"signature": ' + signature + b', "graph": ' + graph + b"}}"


def node(inputs: bytes = b"", outputs: bytes = b"", stack: bytes = b"") -> bytes:
    metadata = b'{"nn_module_stack":"%b"}' % stack if stack else b"{}"
    fields = (inputs, outputs, metadata)
    return b'{"target":"a","inputs":[%b],"outputs":[%b],"metadata":%b}' % fields


def small_nodes(count: int) -> bytes:
    return graph_of([node()] * count)


def small_layers(count: int) -> bytes:
    return graph_of(node(stack=b"k,%x,c" % number) for number in range(count))


def small_results(count: int) -> bytes:
    return graph_of([node(outputs=b",".join([b'{"as_tensor":{"name":"a"}}'] * 2 * count))])


def small_arguments(count: int) -> bytes:
    taken = b",".join([b'{"name":"","arg":{"as_tensor":{"name":"a"}}}'] * count)
    return graph_of([node(outputs=b'{"as_tensor":{"name":"a"}}'), node(inputs=taken)])


def constants(count: int) -> bytes:
    return graph_of([node(b",".join(b'{"name":"b","arg":{"c":%d}}' % n for n in range(count)))])


def names(count: int) -> bytes:
    return graph_of([], b",".join(b'"%x":0' % number for number in range(count)))


TEXTS: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"[" + repeated(b"[],") + b"[]]",
    "objects": lambda: b"[" + repeated(b"{},") + b"{}]",
    "texts": lambda: b"[" + repeated(b'"ab",') + b"1]",
    "lists of one": lambda: b"[" + repeated(b'["ab"],') + b"1]",
    "objects of one": lambda: b"[" + repeated(b'{"a":"bc"},') + b"1]",
    "distinct keys": distinct_keys,
    "metadata": lambda: b'{"config": {}, "metadata": ' + distinct_keys() + b"}",
    "escapes": lambda: b'{"' + repeated(b'\\"') + b'": 1}',
    "wide characters": lambda: b'{"\xf0\x9f\x98\x80' + repeated(b"a", 60) + b'": 1}',
    "wide escapes": lambda: b'{"a": "\\ud83d\\ude00' + repeated(b"a", 60) + b'"}',
}

# Of some of them there is memory enough for the text, and not for what is made of it.
GRAPHS: dict[str, Callable[[], bytes]] = {
    "nodes": lambda: small_nodes(2 << 20),
    "fewer nodes": lambda: small_nodes(120_000),
    "layers": lambda: small_layers(100_000),
    "results": lambda: small_results(1 << 20),
    "fewer results": lambda: small_results(120_000),
    "arguments": lambda: small_arguments(2 << 20),
    "fewer arguments": lambda: small_arguments(250_000),
    "constants": lambda: constants(200_000),
    "names": lambda: names(2 << 20),
}


@pytest.fixture(scope="module")
def least(path: Path) -> dict[str, int]:
    """Return the memory that each command needs for a small file."""
    return {command: peak_of(*command.format(path).split())[1] for command in COMMANDS}


def write_bomb(file: Path, source: Path, end: str, text: bytes) -> None:
    """Write a file like another, with another text in a record."""
    with (
        zipfile.ZipFile(source) as archive,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for name in archive.namelist():
            made.writestr(name, text if name.endswith(end) else archive.read(name))


@pytest.mark.slow("processes, and texts of 110 MB")
@pytest.mark.parametrize(
    ("text", "end", "command"),
    [
        *((text, MODEL, command) for text, command in turns([*TEXTS], COMMANDS, 2)),
        *((text, CONFIG, command) for text, command in turns([*TEXTS], READ_CONFIGS)),
    ],
)
def test_peak(
    text: str, end: str, command: str, path: Path, least: dict[str, int], tmp_path: Path
) -> None:
    file = tmp_path / "bomb.pt2"
    write_bomb(file, path, end, TEXTS[text]())
    status, peak, said = peak_of(*command.format(file).split())
    assert status in (1, 2), said
    assert "Traceback" not in said
    assert peak - least[command] <= PROMISED + 10 * file.stat().st_size


@pytest.mark.slow("processes, and texts of 45 MB")
@pytest.mark.parametrize("end", [MODEL, "archive_version"])
def test_peak_of_texts_that_are_shown(
    end: str, path: Path, least: dict[str, int], tmp_path: Path
) -> None:
    """A version that has no character which a terminal can show."""
    file = tmp_path / "bomb.pt2"
    version = "\u200b" * (7 << 20)
    text = graph_of([])[:-1] + b', "torch_version": ' + json.dumps(version).encode() + b"}"
    write_bomb(file, path, end, text if end == MODEL else bytes(45 << 20))
    status, peak, said = peak_of("inspect", str(file))
    assert status in (0, 2), said
    assert peak - least["inspect {0}"] <= PROMISED + 10 * file.stat().st_size


@pytest.mark.slow("processes, and texts of 110 MB")
@pytest.mark.parametrize("text", GRAPHS)
def test_peak_of_a_view(text: str, path: Path, least: dict[str, int], tmp_path: Path) -> None:
    file = tmp_path / "bomb.pt2"
    write_bomb(file, path, MODEL, GRAPHS[text]())
    status, peak, said = peak_of(*VIEW.format(file).split())
    assert status in (0, 2), said
    assert "Traceback" not in said
    assert peak - least[VIEW] <= PROMISED + 10 * file.stat().st_size


@pytest.mark.parametrize(
    ("first", "width"), [("a", 1), ("\xe9", 1), ("\u03b1", 4), ("\U0001f600", 8)]
)
def test_estimate_counts_bytes_of_characters(first: str, width: int) -> None:
    """A str has as many bytes for each character as for its widest one."""
    value = {"a": first + "b" * 1000}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        made = sys.getsizeof(json.loads(text)["a"])
        assert objects_of(text.encode(), 1 << 40) >= made
        assert objects_of(text.encode(), 1 << 40) >= width * 1000


def test_estimate_counts_keys_once() -> None:
    """Keys are counted only if the limit is near; then each distinct key counts once."""
    text = b"[" + repeated(b'{"a\\"b": "c", "d": "e"},', 1) + b"1]"
    far = objects_of(text, 1 << 40)
    near = objects_of(text, far - 1)
    assert far - near == 120 * (text.count(b":") - 2)
    assert objects_of(text, 0) > 0
