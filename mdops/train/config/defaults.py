"""mdops' defaults for a training input (training.md, "What a training does by default")."""

from collections.abc import Mapping
from typing import Any

from mdops.models import registry

# For missing sections. A section that is given has DeePMD-kit's defaults for its missing keys.
LEARNING_RATE = {"type": "cosine", "start_lr": 5e-3, "stop_lr": 1e-6, "warmup_ratio": 0.01}
# This learning rate needs a small adam_beta2, averages of the weights, and smooth embedding nets.
OPTIMIZER = {"type": "Adam", "adam_beta2": 0.99}
TRAINING: dict[str, Any] = {"enable_ema": True, "smoothing": 3e-3}
# The total energy and its derivatives are trained: without virials, pressures are wrong. Atomic energies are not: each
# program divides the energy among the atoms in its own way, and training on it makes total energies and forces worse.
LOSS = {
    "type": "ener",
    "start_pref_e": 0.02,
    "limit_pref_e": 1,
    "start_pref_f": 1000,
    "limit_pref_f": 1,
    "start_pref_v": 0.02,
    "limit_pref_v": 1,
    "skip_absent": True,
}
_OF_MOMENTS = {"start_pref_fr": 1000, "limit_pref_fr": 1, "start_pref_fm": 1000, "limit_pref_fm": 1}
SPIN_LOSS = {
    **{name: value for name, value in LOSS.items() if not name.endswith("_f")},
    **_OF_MOMENTS,
    "type": "ener_spin",
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
    """A training input with mdops' sections for missing ones; OPTIMIZER and TRAINING only without `learning_rate`. LKF
    gets no TRAINING, and no virials in the loss, which it does not train on."""
    result, optimizer = dict(tree), tree.get("optimizer")
    filters = isinstance(optimizer, Mapping) and optimizer.get("type") == "LKF"
    model = tree.get("model", {})
    if isinstance(model, Mapping) and model.get("type", "standard") == "standard":
        result["model"] = {**MODEL, **model}
    if "loss" not in tree:
        result["loss"] = _loss(result["model"]) if "model" in result else LOSS
        if filters:
            result["loss"] = {
                name: value for name, value in result["loss"].items() if not name.endswith("_v")
            }
    training = tree.get("training")
    if isinstance(training, Mapping):
        result["training"] = _with_validation(training)
    if "learning_rate" not in tree:
        result = {"learning_rate": LEARNING_RATE, "optimizer": OPTIMIZER, **result}
        if isinstance(training, Mapping) and not filters:
            result["training"] = {**TRAINING, **result["training"]}
    return result


def _loss(model: Any) -> Mapping[str, Any]:
    """The section `loss` for the section `model` of an input."""
    if isinstance(model, Mapping) and isinstance(model.get("spin"), Mapping):
        return SPIN_LOSS
    fitting = model.get("fitting_net") if isinstance(model, Mapping) else None
    name = fitting.get("type", "ener") if isinstance(fitting, Mapping) else "ener"
    kind = registry.kinds("fitting").get(name) if isinstance(name, str) else None
    return LOSS if kind is None or not kind.LOSS else kind.LOSS


_LEFT_OUT = 10  # one of this many frames is for validation


def data_input(
    systems: list[str],
    elements: list[str],
    *,
    validation: list[str] | None = None,
    names: Mapping[str, str] | None = None,
    cutoff: float | None = None,
    steps: int | None = None,
) -> dict[str, Any]:
    """A training input for data, with mdops' defaults for all else.

    Args:
        systems, elements: the data, and the type map.
        validation: data to validate with; by default every tenth frame of the systems.
        names: see `training_data.names`. cutoff: A. steps: of the training.
    """
    data: dict[str, Any] = {"systems": systems, **({"names": dict(names)} if names else {})}
    training: dict[str, Any] = {"training_data": data}
    if validation:
        training["validation_data"] = {**data, "systems": validation}
    else:
        training["training_data"] = {**data, "leave_out": _LEFT_OUT}
    if steps is not None:
        training["numb_steps"] = steps
    model: dict[str, Any] = {"type_map": elements}
    if cutoff is not None:
        model["descriptor"] = {**MODEL["descriptor"], "rcut": cutoff}
    return {"model": model, "training": training}


def _with_validation(training: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section with the left-out frames as validation data, unless it names other validation data."""
    data = training.get("training_data")
    if "validation_data" in training or not isinstance(data, Mapping) or not data.get("leave_out"):
        return training
    own = {name: data[name] for name in ("systems", "names", "leave_out") if name in data}
    return {**training, "validation_data": {**own, "left_out": True}}
