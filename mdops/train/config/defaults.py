"""What mdops trains with where the input does not say (docs/training.md, "What a training does by default")."""

from collections.abc import Mapping
from typing import Any

# In the place of whole sections: one that is there has DeePMD-kit's defaults for its keys.
LEARNING_RATE = {"type": "cosine", "start_lr": 5e-3, "stop_lr": 1e-6, "warmup_ratio": 0.01}
# With that rate, which needs gradients that are soon forgotten, averages of the weights, and smooth embedding nets.
OPTIMIZER = {"type": "Adam", "adam_beta2": 0.99}
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
    """A training input with mdops' own sections where it has none; those of a training go with `learning_rate`."""
    result = dict(tree)
    model = tree.get("model")
    if isinstance(model, Mapping) and model.get("type", "standard") == "standard":
        result["model"] = {**MODEL, **model}
    if "learning_rate" not in tree:
        result = {"learning_rate": LEARNING_RATE, "optimizer": OPTIMIZER, **result}
        if isinstance(tree.get("training"), Mapping):
            result["training"] = {**TRAINING, **tree["training"]}
    return result
