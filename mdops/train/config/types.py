"""Gives an input without a type map the types of its data."""

from collections.abc import Mapping
from typing import Any

from mdops.data.dataset import elements_of
from mdops.errors import ConfigError, InputError


def with_type_map(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A training input with `model.type_map`. If it has none, it gets that of its parts, or else the types of the data.

    Types of systems without type_map.raw are named "0", "1", ...; there are at least as many as numbers in `sel`.

    Raises ConfigError if the data does not tell the types.
    """
    model = tree.get("model")
    if not isinstance(model, Mapping) or model.get("type_map") is not None:
        return tree
    types = _of_parts(model) or _of_data(tree)
    if types is None:
        return tree  # the check of this section reports what is missing
    descriptor = model.get("descriptor")
    sel = descriptor.get("sel") if isinstance(descriptor, Mapping) else None
    if types[0].isdigit() and isinstance(sel, list):
        types = [str(k) for k in range(max(len(types), len(sel)))]
    return {**tree, "model": {**model, "type_map": types}}


def _of_parts(model: Mapping[str, Any]) -> list[str] | None:
    parts = model.get("models")
    if not isinstance(parts, list):
        return None
    found = [part.get("type_map") for part in parts if isinstance(part, Mapping)]
    return next((types for types in found if types), None)


def _of_data(tree: Mapping[str, Any]) -> list[str] | None:
    training = tree.get("training")
    if not isinstance(training, Mapping):
        return None
    systems: list[str] = []
    for section in (training.get("training_data"), training.get("validation_data")):
        given = section.get("systems") if isinstance(section, Mapping) else None
        systems += [given] if isinstance(given, str) else given or []
    if not systems:
        return None
    try:
        return elements_of(systems)
    except (InputError, TypeError) as error:
        raise ConfigError(
            f"{error} (the input has no model.type_map, so the types come from the data)"
        ) from None
