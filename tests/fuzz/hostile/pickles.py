"""Pickles with code, pickles that are larger than they look, and zip files within the zip file."""

from __future__ import annotations

import functools
import io
import json
import pickle
import struct
import tarfile
import zlib
from typing import Any

from tests.fuzz.hostile.cases import (
    CONSTANTS,
    SAMPLES,
    WEIGHTS,
    add,
    documents_of,
    hostile,
    records_of,
    written,
)
from tests.fuzz.hostile.zips import deflated, directory, entry, local
from tests.support.records import read_records, write_records
from tests.support.sentinel import MODULE


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def _call(module: str, name: str, argument: bytes) -> bytes:
    return _global(module, name) + argument + pickle.TUPLE1 + pickle.REDUCE


def _storage(module: str, kind: str, record: str, device: str, count: bytes) -> bytes:
    """The persistent id of a tensor's bytes, as torch.save writes it."""
    head = b"(" + _text("storage") + _global(module, kind)
    return head + _text(record) + _text(device) + count + b"tQ"


_CODE = f"__import__('{MODULE}').hit()"
_PICKLES = {
    "eval": _call("builtins", "eval", _text(_CODE)),
    "system": _call("os", "system", _text(f"echo {MODULE}")),
    "import": _call("importlib", "import_module", _text(MODULE)),
    "module": _global(MODULE, "Hit"),
    "getattr": _global("builtins", "getattr"),
    "load": _call("torch", "load", _text("/dev/zero")),
    "load-of-another-pickle": _call("pickle", "loads", _text("cos\nsystem\n")),
    "library": _call("torch.ops", "load_library", _text(f"/tmp/{MODULE}.so")),
    "dlopen": _call("ctypes", "CDLL", _text(f"/tmp/{MODULE}.so")),
    "script": _call("torch._C", "_pickle_load_obj", _text("x")),
    "attribute-of-a-permitted-class": _global("torch._utils", "_rebuild_tensor_v2.__globals__"),
    "state-of-a-class": b"".join(
        [
            *(_global("collections", "OrderedDict"), b")", pickle.REDUCE, b"}"),
            *(_text("__class__"), _global("torch", "Size"), b"sb"),
        ]
    ),
    "dictionary-of-a-parameter": b"".join(
        [
            *(_global("torch.nn.parameter", "Parameter"), b")", pickle.NEWOBJ, b"}"),
            *(_text("__dict__"), b"}sb"),
        ]
    ),
    "state-of-a-tensor": _global("torch", "Tensor") + b")" + pickle.NEWOBJ + b"(Ntb",
    "storage-that-is-not-there": _storage("torch", "FloatStorage", "9", "cpu", b"K\x01"),
    "storage-of-any-class": _storage("os", "system", "0", "cpu", b"K\x01"),
    "storage-on-a-strange-device": _storage("torch", "FloatStorage", "0", _CODE, b"K\x01"),
    "extension-code": pickle.EXT1 + b"\x01",
    "memo-that-is-not-there": pickle.BINGET + b"\x09",
    "large-memo": b"Nr\xff\xff\xff\x7f",
    "persistent-number": b"K\x01Q",
    "no-mark": b"t",
    "empty-stack": b"",
    "long-integer": pickle.LONG4 + struct.pack("<i", 2**31 - 1),
    "large-integer": pickle.LONG4 + struct.pack("<i", 100_000) + b"\x7f" * 100_000,
    "integer-of-many-digits": b"I" + b"9" * 100_000 + b"\n",
    "text-beyond-the-end": b"X\xff\xff\xff\x7fab",
    "long-text-beyond-the-end": pickle.BINUNICODE8 + struct.pack("<Q", 2**62) + b"ab",
    "frame-beyond-the-end": pickle.FRAME + struct.pack("<Q", 2**62) + b"N",
    "bytearray-beyond-the-end": pickle.BYTEARRAY8 + struct.pack("<Q", 2**62) + b"ab",
    "deep-list": b"]" * 100_000 + b"a" * 99_999,
    "deep-tuple": b")" + b"\x85" * 100_000,
    "float": b"F1e9999999999\n",
}
_HEAD = b"\x80\x02"
_EVAL = _HEAD + _PICKLES["eval"] + b"."


def _tensors(content: bytes) -> bytes:
    """The example inputs as torch.save writes them, with another pickle."""
    inner = read_records(records_of("keys")[SAMPLES])
    name = next(each for each in inner if each.endswith("data.pkl"))
    return write_records(inner | {name: content})


def _examples(content: bytes) -> bytes:
    return written("keys", {SAMPLES: _tensors(content)})


for _name, _parts in _PICKLES.items():
    _content = _HEAD + _parts + b"."
    # Example inputs that would have to be unpickled are left out with a warning.
    _wanted = "refused" if _name in ("deep-list", "deep-tuple") else "loads"
    add(f"pickles-examples-{_name}", functools.partial(_examples, _content), _wanted)
    add(
        f"pickles-bare-{_name}",
        functools.partial(written, "keys", {SAMPLES: _content}),
        "loads",
    )


def _doubled(depth: int, pair: bytes) -> bytes:
    """An object that has itself twice, and so on: 2 ** depth paths through few objects."""
    body = b"]q\0"
    for i in range(depth):
        body = body + b"(h" + bytes([i]) + b"h" + bytes([i]) + pair + b"q" + bytes([i + 1])
    return body


for _name, _pair in {"lists": b"l", "tuples": b"t"}.items():
    for _depth in (24, 100):
        _content = _HEAD + b"(" + _doubled(_depth, _pair) + b"}t" + b"."
        _make = functools.partial(_examples, _content)
        add(f"pickles-doubled-{_name}-{_depth}", _make, "either")


@hostile("either")
def list_that_contains_itself() -> bytes:
    return _examples(_HEAD + b"(]q\0h\0ah\0\x85}t.")


@hostile("either")
def dictionary_that_contains_itself() -> bytes:
    return _examples(_HEAD + b"(}q\0K\x01h\0sh\0\x85}t.")


@hostile("either")
def dictionary_doubled() -> bytes:
    body = b"}q\0"
    for i in range(60):
        old, new = bytes([i]), bytes([i + 1])
        body += b"}(K\x01h" + old + b"K\x02h" + old + b"uq" + new
    return _examples(_HEAD + b"(" + body + b"\x85}t.")


def _inner_zip(count: int, size: int) -> bytes:
    """A file of torch.save whose tensors have the bytes of one small deflated record each."""
    stored, whole = deflated(size), 1 + size // 258 * 258
    tensors = b""
    for i in range(count):
        number = b"J" + struct.pack("<i", whole)
        storage = _storage("torch", "ByteStorage", str(i), "cpu", number)
        hooks = _global("collections", "OrderedDict") + b")R"
        tensors += _global("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + b"K\0"
        tensors += number + b"\x85K\x01\x85\x89" + hooks + b"tR"
    content = _HEAD + b"((" + tensors + b"t}t."
    records, entries = b"", []
    for name, data in {"archive/data.pkl": content, "archive/version": b"3\n"}.items():
        crc, at = zlib.crc32(data), len(records)
        entries.append(entry(name.encode(), at, crc, len(data), len(data)))
        records += local(name.encode(), crc, len(data), len(data)) + data
    crc = zlib.crc32(bytes(whole))
    at = len(records)
    records += local(b"archive/data/0", crc, len(stored), whole, 8) + stored
    for i in range(count):
        name = f"archive/data/{i}".encode()
        entries.append(entry(name, at, crc, len(stored), whole, 8))
    return directory(records, entries)


@hostile("either")
def inner_zip_that_expands() -> bytes:
    return written("keys", {SAMPLES: _inner_zip(1, 1 << 26)})


@hostile("either")
def inner_zip_whose_records_overlap() -> bytes:
    """A few kB that are 4 GB of tensors."""
    return written("keys", {SAMPLES: _inner_zip(1024, 1 << 22)})


@hostile("either")
def inner_zip_of_weights() -> bytes:
    """The same as weights of the format of older versions."""
    return written("keys", {"archive/data/weights/model.pt": _inner_zip(1024, 1 << 22)})


@hostile("either")
def inner_zip_of_constants() -> bytes:
    return written("keys", {"archive/data/constants/model.pt": _inner_zip(1024, 1 << 22)})


@hostile("either")
def inner_zip_with_a_hostile_byte_order() -> bytes:
    inner = read_records(records_of("keys")[SAMPLES])
    return written("keys", {SAMPLES: write_records(inner | {"archive/byteorder": _CODE.encode()})})


@hostile("either")
def inner_archive_of_torchscript() -> bytes:
    """torch.load hands archives with this record to torch.jit.load."""
    inner = read_records(records_of("keys")[SAMPLES])
    code = {"archive/constants.pkl": b"\x80\x02).", "archive/code/__torch__.py": _CODE.encode()}
    return written("keys", {SAMPLES: write_records(inner | code)})


@hostile("either")
def tar_of_tensors() -> bytes:
    """The format of torch 0.1: a tar file with pickles."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            info = tarfile.TarInfo(name)
            content = _EVAL
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return written("keys", {SAMPLES: buffer.getvalue()})


def _object(record: str, content: bytes) -> bytes:
    """A constant that is an object of a class: script objects and opaque ones are pickles."""
    documents = documents_of("keys")
    entry_of = {"path_name": record, "is_param": False, "use_pickle": True, "tensor_meta": None}
    documents[CONSTANTS]["config"]["_custom_obj_0"] = entry_of
    return written("keys", documents | {f"archive/data/constants/{record}": content})


for _record in ("custom_obj_0", "opaque_obj_0", "tensor_0", "weight_0", "../weights/x", "x"):
    _make = functools.partial(_object, _record, _EVAL)
    _message = f"{_record}.*allow_pickle" if "obj" in _record else ""
    add(f"pickles-object-{_record.replace('/', '-')}", _make, "refused", message=_message)


@hostile("refused", "layers", message="weight_0.*allow_pickle")
def weights_that_are_pickled() -> bytes:
    documents = documents_of("layers")
    config = documents[WEIGHTS]["config"]
    first = next(iter(config.values()))
    first["use_pickle"] = True
    return written("layers", documents | {f"archive/data/weights/{first['path_name']}": _EVAL})


@hostile("refused", "layers")
def weights_of_older_versions() -> bytes:
    return written("layers", {"archive/data/weights/model.pt": _EVAL})


@hostile("refused", "layers")
def constants_of_older_versions() -> bytes:
    return written("layers", {"archive/data/constants/model.pt": _EVAL})


@hostile("refused")
def old_format_with_pickles() -> bytes:
    program = json.dumps(documents_of("keys")["archive/models/model.json"]).encode()
    return write_records(
        {
            "version": b"8.20",
            "serialized_exported_program.json": program,
            "serialized_state_dict.json": _EVAL,
            "serialized_constants.json": _EVAL,
            "serialized_example_inputs.pt": _EVAL,
        }
    )


def _fake_tensor(meta: bytes) -> bytes:
    module, name = "torch._export.serde.serialize", "_reconstruct_fake_tensor"
    body = b"C" + bytes([len(meta)]) if len(meta) < 256 else b"B" + struct.pack("<I", len(meta))
    return _HEAD + b"((" + _global(module, name) + b"(" + body + meta + b"\x89tRt}t."


@hostile("either")
def fake_tensor_of_no_json() -> bytes:
    return _examples(_fake_tensor(b"{"))


@hostile("either")
def fake_tensor_with_a_large_size() -> bytes:
    size = {"as_int": 2**62}
    meta = {
        "dtype": 7,
        "sizes": [size, size],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [size, {"as_int": 1}],
        "storage_offset": {"as_int": 2**62},
        "layout": 7,
    }
    return _examples(_fake_tensor(json.dumps(meta).encode()))


def _beside(place: Any) -> bytes:
    """A program with weights in a sidecar file."""
    text = place if isinstance(place, bytes) else json.dumps(place).encode()
    return written("layers", {"archive/data/weights/model_weights_file.txt": text})


_PLACES: dict[str, Any] = {
    "in-another-folder": {"file": "../x.safetensors", "number": "0"},
    "absolute": {"file": "/etc/passwd", "number": "0"},
    "code": {"file": _CODE, "number": "0"},
    "nul": {"file": "x\0.safetensors", "number": "0"},
    "number": {"file": 1, "number": []},
    "no-json": b"{",
    "deep": b"[" * 100_000,
    "list": [],
}
for _name, _place in _PLACES.items():
    add(f"pickles-weights-file-{_name}", functools.partial(_beside, _place), "refused", "layers")
