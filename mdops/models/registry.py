"""The known kinds of models, descriptors and fittings, by their names in model files and training inputs."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from mdops.errors import InputError, UnsupportedModelError
from mdops.models.absent import nearest
from mdops.models.contract import AtomicModel, Descriptor, Fitting, Output
from mdops.models.schema import NODES, Node, keys_of
from mdops.options import MORE_KINDS, Options

K = TypeVar("K", bound=type)

# The kind of sections without type, as in DeePMD-kit.
DEFAULT_DESCRIPTOR, DEFAULT_FITTING = "se_e2_a", "ener"

_SORTS = ("model", "descriptor", "fitting")
_KINDS: dict[str, dict[str, Any]] = {sort: {} for sort in _SORTS}


def register(kind: K) -> K:
    """Registers a kind by the names of its options; a class decorator. The last of a name counts."""
    options: type[Options] = getattr(kind, "Options")  # noqa: B009  (of any of the three sorts)
    filed: tuple[str, ...] = getattr(kind, "FILED", ())
    for name in dict.fromkeys((options.KIND, *options.NAMES, *filed)):
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
    """The classes of a sort ("model", "descriptor" or "fitting") by all their names, those of others included."""
    _load_others()
    return _KINDS[sort]


@lru_cache(maxsize=1)
def _load_others() -> None:
    """Kinds of installed packages (entry points of the group `mdops.kinds`) and of the files and modules that the
    environment variable MDOPS_KINDS names, separated as in PATH. Raises InputError for one that cannot be imported."""
    for entry in entry_points(group="mdops.kinds"):
        _imported(entry.name, entry.load)
    for name in filter(None, os.environ.get("MDOPS_KINDS", "").split(os.pathsep)):
        load_kinds(name)


def load_kinds(name: str) -> None:
    """Imports a Python file, or a module by its name, that registers kinds. Raises InputError if that fails; then
    none are registered."""
    if not name.endswith(".py"):
        _imported(name, lambda: importlib.import_module(name))
        return
    path = Path(name).resolve()
    if any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
        return
    # A unique name: the file's may be that of a module, such as fractions.py.
    own = f"mdops_kinds_{path.stem}_{sha256(os.fsencode(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(own, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError(f"{name}: there is no such Python file")
    module = sys.modules[own] = importlib.util.module_from_spec(spec)
    try:
        _imported(name, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[own]
        raise


def _imported(name: str, load: Callable[[], Any]) -> None:
    before = {sort: dict(known) for sort, known in _KINDS.items()}
    try:
        load()
    except BaseException as error:
        _KINDS.update(before)
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        # The user's file may fail in any way.
        raise InputError(f"kinds of models in {name}: {type(error).__name__}: {error}") from error


def options(sort: str) -> dict[str, type[Options]]:
    """Their options."""
    return {name: kind.Options for name, kind in kinds(sort).items()}


def find(sort: str, name: Any) -> Any:
    """The class of that name. Raises UnsupportedModelError, which lists the kinds."""
    if name not in kinds(sort):
        known = ", ".join(dict.fromkeys(kind.Options.KIND for kind in _KINDS[sort].values()))
        what = f"a {name} model" if sort == "model" else f"the {sort} {name}"
        why = nearest(sort, str(name))
        raise UnsupportedModelError(f"{what} is not supported; supported are {known}{why}{MORE_KINDS}")
    return _KINDS[sort][name]


def outputs_of(model: Options) -> tuple[Output, ...]:
    """The outputs of a model with these options."""
    found: tuple[Output, ...] = find("model", model.KIND).outputs_of(model)
    return found


def definition(sort: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The input's section for a part of that sort with the options of a node
    (`ModelComponent.definition_of_tree`)."""
    bases: dict[str, Any] = {"model": AtomicModel, "descriptor": Descriptor, "fitting": Fitting}
    found: dict[str, Any] = (known(sort, tree) or bases[sort]).definition_of_tree(tree)
    return found


def of_node(node: Mapping[str, Any]) -> Any:
    """The class of a node that is a model, a descriptor or a fitting, as `known`; None of others."""
    sort = str(node.get("@class")).lower()
    return known(sort, node) if sort in _SORTS else None


def known(sort: str, tree: Mapping[str, Any]) -> Any:
    """The class of a node, if it defines their keys (`ModelComponent.NODE`); None otherwise."""
    name = tree.get("type")
    kind = kinds(sort).get(name) if isinstance(name, str) else None
    has_node = (
        kind is not None and name in (kind.Options.KIND, *kind.FILED) and vars(kind).get("NODE") is not None
    )
    return kind if has_node else None


@lru_cache(maxsize=1)
def nodes() -> Mapping[str, Node]:
    """All known nodes, by "@class" and "type" joined by a space, by "@class" alone, or by the key that holds them
    (`ModelComponent.NODES`)."""
    found = dict(NODES)
    for sort in _SORTS:
        for kind in dict.fromkeys(kinds(sort).values()):
            own = vars(kind).get("NODE")
            if own is not None:
                keys = {**keys_of(kind.Options), **own.keys}
                found[f"{sort.capitalize()} {kind.Options.KIND}"] = Node(keys, own.arrays)
                found |= kind.NODES
    return found


def model_name(section: Mapping[str, Any], name: str) -> str:
    """The kind of model of a training input's section `model`: its `type`, unless another key defines it."""
    for kind in dict.fromkeys(_KINDS["model"].values()):
        if name == "standard" and section.get(getattr(kind.Options, "MARK", "")) is not None:
            return kind.Options.NAMES[0]
    return name
