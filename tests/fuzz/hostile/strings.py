"""Payloads in the strings of a program that become names, keys and source text."""

from __future__ import annotations

import functools
from typing import Any

from tests.fuzz.hostile.cases import MODEL, add, documents_of, edited, hostile, written
from tests.support.payloads import DOUBLE, SHAPES, SINGLE, slots, with_payload

_GRAPH = f".{MODEL}.graph_module"
_CALL = f"{_GRAPH}.module_call_graph[]"
# What is hostile -> program, label of the string, shapes of payloads, what must come of it.
_STRINGS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "argument-names": (
        "keys",
        f"{_CALL}.signature.forward_arg_names[]",
        ("expression", "default", "annotation", "end of a signature", "line in a body"),
        "refused",
    ),
    "argument-names-of-one-input": (
        "layers",
        f"{_CALL}.signature.forward_arg_names[]",
        ("argument", "comment", "decorator", "default"),
        "refused",
    ),
    "parameter-names": (
        "layers",
        f"{_GRAPH}.signature.input_specs[].parameter.parameter_name",
        ("single quote", "double quote", "call with key", "line in a body", "attributes"),
        "refused",
    ),
    "buffer-names": (
        "layers",
        f"{_GRAPH}.signature.input_specs[].buffer.buffer_name",
        ("single quote", "quoted key", "backslash"),
        "refused",
    ),
    "constant-names": (
        "layers",
        f"{_GRAPH}.signature.input_specs[].tensor_constant.tensor_constant_name",
        ("single quote", "line in a body"),
        "refused",
    ),
    "names-of-inputs": (
        "keys",
        f"{_GRAPH}.graph.inputs[].as_tensor.name",
        ("expression", "default", "line in a body"),
        "refused",
    ),
    "names-of-nodes": (
        "layers",
        f"{_GRAPH}.graph.nodes[].name",
        ("expression", "statement", "end of a signature"),
        "refused",
    ),
    "names-of-results": (
        "layers",
        f"{_GRAPH}.graph.nodes[].outputs[].as_tensor.name",
        ("expression", "line in a body"),
        "refused",
    ),
    "names-of-arguments": (
        "labels",
        f"{_GRAPH}.graph.nodes[].inputs[].name",
        ("default", "expression"),
        "refused",
    ),
    "operators": (
        "layers",
        f"{_GRAPH}.graph.nodes[].target",
        ("expression", "call", "attributes", "attribute of a module", "module"),
        "refused",
    ),
    "verifiers": (
        "keys",
        f".{MODEL}.verifiers[]",
        ("expression", "attribute of a module"),
        "refused",
    ),
    "devices": (
        "keys",
        f"{_GRAPH}.graph.tensor_values{{}}.device.type",
        ("expression", "line"),
        "refused",
    ),
    "paths-of-modules": (
        "layers",
        f"{_CALL}.fqn",
        ("expression", "single quote", "attributes", "line in a body"),
        "either",
    ),
    "classes-of-trees": (
        "containers",
        f"{_CALL}.signature.in_spec json[].type",
        ("expression", "attribute of a module", "class of a module"),
        "refused",
    ),
    "stack-traces": (
        "layers",
        f"{_GRAPH}.graph.nodes[].metadata.stack_trace",
        ("line in a body", "carriage return", "triple quote"),
        "either",
    ),
    "stacks-of-modules": (
        "layers",
        f"{_GRAPH}.graph.nodes[].metadata.nn_module_stack part",
        ("expression", "attribute of a module", "single quote", "line in a body"),
        "either",
    ),
    "traced-functions": (
        "layers",
        f"{_GRAPH}.graph.nodes[].metadata.torch_fn",
        ("attribute of a module", "line in a body"),
        "either",
    ),
    "source-functions": (
        "branches",
        f"{_GRAPH}.graph.nodes[].metadata.source_fn_stack",
        ("attribute of a module", "class of a module"),
        "either",
    ),
    "origins-of-nodes": (
        "branches",
        f"{_GRAPH}.graph.nodes[].metadata.from_node json[].pass_name",
        ("line in a body", "single quote"),
        "either",
    ),
    "custom-metadata": (
        "labels",
        f"{_GRAPH}.graph.nodes[].metadata.custom json.a key",
        ("line in a body", "double quote"),
        "loads",
    ),
    "texts": (
        "labels",
        f"{_GRAPH}.graph.nodes[].inputs[].arg.as_string",
        ("single quote", "double quote", "backslash", "line in a body", "triple quote"),
        "either",
    ),
    "constant-inputs": (
        "guarded",
        f"{_GRAPH}.signature.input_specs[].constant_input.value.as_string",
        ("single quote", "call with key", "backslash", "line of two spaces"),
        "either",
    ),
    "inputs-that-are-constants": (
        "guarded",
        f"{_GRAPH}.graph.inputs[].as_string",
        ("single quote", "call with key", "backslash", "line of two spaces"),
        "either",
    ),
    "guards": (
        "guarded",
        f".{MODEL}.guards_code[]",
        ("expression", "guard", "operand", "index", "line of two spaces", "double quote"),
        "refused",
    ),
    "versions-of-torch": ("keys", f".{MODEL}.torch_version", ("expression", "line"), "either"),
}


def _with(seed: str, label: str, shape: str) -> bytes:
    documents = documents_of(seed)
    found = [i for i, slot in enumerate(slots(documents)) if slot.label == label]
    if not found:
        raise KeyError(label)
    return written(seed, with_payload(documents, found[:1], SHAPES[shape]))


for _name, (_seed, _label, _shapes, _wanted) in _STRINGS.items():
    for _shape in _shapes:
        _make = functools.partial(_with, _seed, _label, _shape)
        add(f"strings-{_name}-{_shape.replace(' ', '-')}", _make, _wanted, _seed)


def _every(seed: str, old: str, new: str) -> bytes:
    """The same text in every location of a file, so that references still match."""
    documents = documents_of(seed)
    found = [i for i, slot in enumerate(slots(documents)) if slot.text == old]
    return written(seed, with_payload(documents, found, lambda _: new))


_NAMES = {
    "keys-of-inputs": ("keys", "a b", f"']+[{DOUBLE}]+['", "either"),
    "keys-of-inputs-in-double-quotes": ("keys", "b-c", f'"]+[{SINGLE}]+["', "either"),
    "keys-of-inputs-with-lines": ("keys", "x.y", f"\n  {SINGLE}\n  #", "either"),
    "keys-of-results": ("keys", 'quote"d', f'"); {SINGLE} #', "loads"),
    "keyword-arguments-of-modules": ("layers", "factor", f"factor={DOUBLE}", "refused"),
    "keyword-arguments": ("keys", "scale", f"scale={SINGLE}", "refused"),
    "inputs-everywhere": ("guarded", "x", f"x={SINGLE}", "refused"),
    "parameters-everywhere": ("layers", "block.first.weight", f"block.x'+{DOUBLE}+'", "refused"),
    "buffers-everywhere": ("layers", "block.first.count", f'block."+{SINGLE}+"', "refused"),
    "parameters-that-are-attributes": ("layers", "block.first.weight", "__class__", "refused"),
    "parameters-that-are-methods": ("layers", "block.first.weight", "forward", "either"),
    "parameters-deep-in-attributes": (
        *("layers", "block.first.weight", "block.__init__.__globals__.weight", "refused"),
    ),
    "buffers-in-tables": ("layers", "block.first.count", "block._modules.count", "either"),
    "nodes-that-are-keywords": ("layers", "mul", "lambda", "either"),
    "nodes-that-are-builtins": ("layers", "mul", "__import__", "either"),
    "nodes-that-are-self": ("layers", "mul", "self", "either"),
    "nodes-that-are-torch": ("layers", "mul", "torch", "either"),
    "empty-names": ("layers", "mul", "", "refused"),
    "names-with-nul": ("layers", "mul", "mul\0", "refused"),
    "names-that-normalize-to-others": ("layers", "mul", "\uff4dul", "either"),
    "names-with-surrogates": ("layers", "mul", "mul\ud800", "refused"),
    "names-with-line-separators": ("layers", "mul", "mul\u2028x", "refused"),
    "modules-everywhere": ("layers", "block.first", f"block.x'+{DOUBLE}+'", "either"),
}
for _name, (_seed, _old, _new, _wanted) in _NAMES.items():
    add(f"strings-{_name}", functools.partial(_every, _seed, _old, _new), _wanted, _seed)


GUARDS_BY_NAME = {
    "lambda": "(lambda: 1)()",
    "comprehension": "[x for x in ()] == []",
    "walrus": "(x := 1) == 1",
    "attributes": "L['x'].__class__.__base__.__subclasses__() == []",
    "methods": "L['x'].storage().data_ptr() == 0",
    "data-of-the-input": "L['x'].sum() == 0",
    "f-string": f"f'{{{DOUBLE}}}' == ''",
    "format": "'{0.__class__}'.format(L['x']) == ''",
    "percent": "'%s' % (L['x'],) == ''",
    "names": "torch.save == 1",
    "functions": "open('x') == 1",
    "math": "math.__loader__ == 1",
    "keywords": "L['x'].size(**{}) == 1",
    "star": "L['x'].size(*[0]) == 1",
    "slices": "L['x'].size()[::-1] == 1",
    "await": "await L['x']",
    "yield": "(yield)",
    "statement": "import os",
    "two-lines": "L['x'].size()[0] == 9\nimport os",
    "comment": "L['x'].size()[0] == 9 # x\n",
    "conditional": f"1 if L['x'].size()[0] else {SINGLE}",
    "unknown-input": "L['nobody'].size()[0] == 9",
    "power-of-a-floor": "9 ** math.floor(1e9) == L['x'].size()[0]",
    "power-of-an-int": "9 ** int(1e9) == L['x'].size()[0]",
    "power-of-an-exponential": "9 ** math.floor(math.exp(64)) == L['x'].size()[0]",
    "power-of-a-sum": f"{'9' * 40} ** ({'+'.join(['64'] * 15000)}) == L['x'].size()[0]",
    "shift-by-an-int": "1 << int(1e12) == L['x'].size()[0]",
    "large-power": "L['x'].size()[0] ** 1000000000 == 9",
    "large-shift": "1 << 100000000000 == L['x'].size()[0]",
    "tower": "9 ** 9 ** 9 ** 9 == L['x'].size()[0]",
    "long": " + ".join(["L['x'].size()[0]"] * 20000) + " == 1",
    "repeated-text": "'x' * 100000000000 == L['x']",
    "deep": "(" * 3000 + "1" + ")" * 3000,
    "minus": "-" * 100000 + "1",
    "key-in-quotes": "L['x\\'] or (' + \"x']\"",
    "digits": f"L['x'].size()[0] == {'9' * 5000}",
    "nul": "L['x'].size()[0] == 9\0",
    "empty": "",
}


def _guarded_by(text: Any) -> bytes:
    return edited("guarded", lambda stored: stored["guards_code"].append(text))


for _name, _text in GUARDS_BY_NAME.items():
    # An input that nobody has is a NameError of Python when the guard is checked.
    _wanted = "either" if _name == "unknown-input" else "refused"
    add(f"strings-guard-{_name}", functools.partial(_guarded_by, _text), _wanted, "guarded")


@hostile("either", "guarded")
def many_guards() -> bytes:
    return edited(
        "guarded", lambda stored: stored.update(guards_code=["L['x'].size()[0] == 9"] * 50000)
    )


@hostile("refused", "containers")
def default_factories_that_are_functions() -> bytes:
    documents = documents_of("containers")
    old = '"default_factory_module": "builtins", "default_factory_name": "list"'
    new = '"default_factory_module": "os", "default_factory_name": "system"'

    def edit(stored: Any) -> None:
        signature = stored["graph_module"]["module_call_graph"][0]["signature"]
        assert old in signature["in_spec"]
        signature["in_spec"] = signature["in_spec"].replace(old, new)

    edit(documents[MODEL])
    return written("containers", documents)
