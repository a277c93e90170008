"""What mdops trains with where the input does not say (docs/training.md, "What a training does by default")."""

from collections.abc import Mapping
from typing import Any

# In the place of whole sections: one that is there has DeePMD-kit's defaults for its keys.
SECTIONS: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "cosine", "start_lr": 2e-3, "stop_lr": 1e-6, "warmup_ratio": 0.01},
    "optimizer": {"type": "Adam", "adam_beta2": 0.99},
}
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
    """A training input with mdops' own sections where it has none.

    Without `learning_rate` the weights are averaged, too: that high rate is for the average, not for the weights
    of the last step.
    """
    result = {**SECTIONS, **tree}
    if isinstance(tree.get("model"), Mapping):
        result["model"] = {**MODEL, **tree["model"]}
    if "learning_rate" not in tree and isinstance(tree.get("training"), Mapping):
        result["training"] = {"enable_ema": True, **tree["training"]}
    return result
