"""Find which values pass from each stage to the next.

torch's pipelines send from a stage to the next one only. A value that a later stage needs, or that
is a result of the whole, passes through the stages between.
"""

from __future__ import annotations

from fxpress._distributed.pipeline.errors import PipelineError
from fxpress._distributed.stages.manifest import Manifest, Value


def route(manifest: Manifest) -> list[list[Value]]:
    """Return the values that each stage takes from the one before; the first takes none.

    They are in the order in which they are made: inputs of the whole come first.
    """
    made: dict[str, tuple[int, Value]] = {each.name: (0, each) for each in manifest.inputs}
    for number, stage in enumerate(manifest.stages):
        made.update((each.name, (number, each)) for each in stage.outputs)
    last_use: dict[str, int] = {}
    for number, stage in enumerate(manifest.stages):
        last_use.update((each.source[1], number) for each in stage.inputs if each.source)
    end = len(manifest.stages) - 1
    last_use.update((each.source[1], end) for each in manifest.results if each.source)
    taken: list[list[Value]] = [[] for _ in manifest.stages]
    for name, (maker, value) in made.items():
        for number in range(maker + 1, last_use.get(name, 0) + 1):
            if value.type not in ("tensor", "int", "float", "bool"):
                raise PipelineError(
                    f"{name} passes from stage {number - 1} to {number}, and is of type "
                    f"{value.type}: only tensors and numbers can"
                )
            taken[number].append(value)
    return taken
