"""The kinds of models, descriptors and fittings that there are, by their names in model files and training inputs."""

from collections.abc import Mapping
from typing import Any, TypeVar

from mdops.errors import UnsupportedModelError
from mdops.models.contract import AtomicModel, Descriptor
from mdops.options import Options

K = TypeVar("K", bound=type)

_SORTS = ("model", "descriptor", "fitting")
_KINDS: dict[str, dict[str, Any]] = {sort: {} for sort in _SORTS}


def register(kind: K) -> K:
    """Makes a kind known by the names of its options; a decorator of its class. The last of a name counts."""
    for name in dict.fromkeys((kind.Options.KIND, *kind.Options.NAMES)):
        _KINDS[_sort(kind)][name] = kind
    return kind


def _sort(kind: type) -> str:
    return (
        "model"
        if issubclass(kind, AtomicModel)
        else "descriptor"
        if issubclass(kind, Descriptor)
        else "fitting"
    )


def kinds(sort: str) -> Mapping[str, Any]:
    """The classes of a sort ("model", "descriptor" or "fitting") by all their names."""
    return _KINDS[sort]


def options(sort: str) -> dict[str, type[Options]]:
    """Their options."""
    return {name: kind.Options for name, kind in _KINDS[sort].items()}


def find(sort: str, name: Any) -> Any:
    """The class of that name. Raises UnsupportedModelError, which tells what there is."""
    if name not in _KINDS[sort]:
        known = ", ".join(dict.fromkeys(kind.Options.KIND for kind in _KINDS[sort].values()))
        what = f"a {name} model" if sort == "model" else f"the {sort} {name}"
        raise UnsupportedModelError(f"{what} is not supported; supported are {known}")
    return _KINDS[sort][name]


def model_name(section: Mapping[str, Any], name: str) -> str:
    """The kind of model that the section `model` of a training input means: its `type`, unless another key tells."""
    for kind in dict.fromkeys(_KINDS["model"].values()):
        if name == "standard" and section.get(getattr(kind.Options, "MARK", None)) is not None:
            return kind.Options.NAMES[0]
    return name
