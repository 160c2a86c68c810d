"""Run operations with torch and with fxpress, compare the results, and print both times."""

import io
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx.passes.split_module import split_module as torch_split

import fxpress
from fxpress import decompose, export, split_module, unflatten


def compare(name: str, theirs: Callable[[], Any], ours: Callable[[], Any]) -> Any:
    results, times = [], []
    for call in (theirs, ours):
        start = time.perf_counter()
        results.append(call())
        times.append(time.perf_counter() - start)
    expected, made = (getattr(each, "code", None) or str(each) for each in results)
    assert expected == made, f"{name}: the results differ"
    print(f"{name:<22} {1e3 * times[0]:8.1f} ms {1e3 * times[1]:8.1f} ms")
    return results[1]


@torch.no_grad()
def main(layers: int = 16) -> None:
    torch.set_num_threads(1)  # threads do not speed up such a small model
    layer = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    x, file = torch.randn(2, 8, 32), io.BytesIO()

    def exported() -> torch.export.ExportedProgram:
        return torch.export.export(model, (x,))

    def faster() -> torch.export.ExportedProgram:
        with fxpress.installed():
            return exported()

    exported(), faster()  # run once, so that one-time work such as imports is not measured
    program = compare("export", exported, faster)
    fxpress.save(program, file)
    data = bytearray(file.getvalue())
    compare("load", lambda: torch.export.load(io.BytesIO(data)), lambda: fxpress.load(data))
    compare("decompose", program.run_decompositions, lambda: decompose.run_decompositions(program))
    flat = compare("module", program.module, lambda: export.module(program))
    place = {node: i * 4 // len(flat.graph.nodes) for i, node in enumerate(flat.graph.nodes)}.get
    split = split_module.split_module
    compare("split", lambda: torch_split(flat, None, place), lambda: split(flat, None, place))
    trees = torch.export.unflatten(program), unflatten.unflatten(program)
    compare("run", lambda: trees[0](x), lambda: trees[1](x))
    print("fxpress made what torch made")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
