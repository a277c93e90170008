"""What mdops trains with where the input does not say (docs/training.md, "What a training does by default")."""

from collections.abc import Mapping
from typing import Any

# In the place of whole sections: one that is there has DeePMD-kit's defaults for its keys.
SECTIONS: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "cosine", "start_lr": 5e-3, "stop_lr": 1e-6, "warmup_ratio": 0.01},
    "optimizer": {"type": "Adam", "adam_beta2": 0.99},
}
# With the learning rate: at such a rate weights need averaging, and the embedding nets have to be kept smooth.
TRAINING: dict[str, Any] = {"enable_ema": True, "smoothing": 3e-3}
MODEL: dict[str, dict[str, Any]] = {
    "descriptor": {
        "type": "se_e2_a",
        "sel": "auto",
        "rcut": 6.0,
        "rcut_smth": 0.5,
        "neuron": [25, 50, 100],
        "axis_neuron": 16,
        "type_one_side": True,
    },
    "fitting_net": {"neuron": [240, 240, 240]},
}


def completed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A training input with mdops' own sections where it has none; `TRAINING` goes with `learning_rate`."""
    result = {**SECTIONS, **tree}
    model = tree.get("model")
    if isinstance(model, Mapping) and model.get("type", "standard") == "standard":
        result["model"] = {**MODEL, **model}
    if "learning_rate" not in tree and isinstance(tree.get("training"), Mapping):
        result["training"] = {**TRAINING, **tree["training"]}
    return result
