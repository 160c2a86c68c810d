"""The programs in `examples/` run, and check their results themselves."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {  # what each prints when its result is the model's
    "demo": r"^(\w+ +[\d.]+ ms +[\d.]+ ms\n){6}fxpress made what torch made$",
    "compare_exports": r"refactored: the same program\nslipped:\n  .*: 4\.0 → 16\.0$",
    "piecewise_compilation": r"the pieces compute what the model computes$",
    "pipeline": r"(stage [01] has the weights of the whole model\n?){2}$",
    "save_and_load": r"the loaded program computes what the model computes$",
}
pytestmark = pytest.mark.slow("processes that import torch")


RUN = {"pipeline": ["-m", "torch.distributed.run", "--nproc-per-node", "2"]}  # torchrun


def output_of(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *RUN.get(name, []), EXAMPLES / f"{name}.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_example_is_short_and_tested() -> None:
    sources = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert set(sources) == {*SAYS, "swap_submodule", "safe_loader"}
    assert all(len(source.splitlines()) < 60 for source in sources.values())


@pytest.mark.parametrize("name", SAYS)
def test_program(name: str, tmp_path: Path) -> None:
    if name == "save_and_load" and importlib.util.find_spec("transformers") is None:
        pytest.skip("no transformers")
    assert re.search(SAYS[name], output_of(name, tmp_path))


def test_quantized_layers_take_a_quarter_and_compute_nearly_the_same(tmp_path: Path) -> None:
    said = output_of("swap_submodule", tmp_path)
    sizes = re.search(r"4 layers swapped: ([\d,]+) bytes are ([\d,]+) now", said)
    error = re.search(r"relative error (\d\.\d+)", said)
    assert sizes is not None
    assert error is not None
    before, after = (int(size.replace(",", "")) for size in sizes.groups())
    # Two layers of 64 x 128, one of 64 x 256, one of 256 x 10; a scale for each row.
    weights, rows = 2 * 64 * 128 + 64 * 256 + 256 * 10, 128 + 64 + 256 + 10
    assert before - after == 3 * weights - 4 * rows
    assert float(error[1]) < 1 / 127
