"""Whether a trained model is the one that a training input describes."""

from typing import Any

from mdops.errors import ConfigError
from mdops.models import AtomicModel
from mdops.options import differences


def require_types(model: AtomicModel, options: Any, name: str) -> None:
    """Raises ConfigError, which names them, if the input has elements that the model `name` lacks."""
    unknown = [element for element in options.type_map if element not in model.type_map]
    if unknown:
        raise ConfigError(
            f"model.type_map: has {', '.join(unknown)}, and {name} is a model of {', '.join(model.type_map)}; "
            "a training can begin with a model of these and more elements, in any order, and not with one of fewer"
        )


def require_same(model: AtomicModel, options: Any, name: str, *, descriptor_alone: bool = False) -> None:
    """Raises ConfigError, which names every difference, if the input describes another model than `name`.

    Values of types are compared by element, for those of the input; `descriptor_alone`: without fittings.
    """
    found = differences(options, model.options, "model", options.type_map, model.type_map)
    different = [
        f"{key} is {_text(own)} in the input and {_text(theirs)} in the model"
        for key, own, theirs in found
        if not (descriptor_alone and key.startswith("model.fitting_net"))
    ]
    if different:
        raise ConfigError(
            f"{name} is another model than the input's: {'; '.join(different)} (--use-pretrain-script takes "
            "all of these from the model)"
        )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "none"
    return repr(value)
