"""Real architectures whose layers are alike: captured as by torch, most layers stamped."""

from __future__ import annotations

import pytest
import torch

from tests.support.exported import architectures, transformer_configs
from tests.tracking.test_reuse import report_of

pytestmark = pytest.mark.slow("captures each model with torch, with stamps and with the check")

LAYERS = 4


@pytest.mark.parametrize("name", architectures())
def test_architecture(name: str) -> None:
    import transformers as hf

    torch.manual_seed(0)
    config = transformer_configs()[name]
    config.num_hidden_layers = LAYERS
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1] * LAYERS
    auto = hf.AutoModel if name == "bert" else hf.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="sdpa").eval()
    report = report_of(model, torch.randint(0, 64, (2, 8)))
    if name != "gemma":  # its layers have an object each that counts by identity
        kinds = {call.kind for call in report.stamped}
        assert any(kind.endswith(("Layer", "Block")) for kind in kinds), str(report)
