"""Whether a model that was trained before is the model that a training input describes."""

from collections.abc import Mapping, Sequence
from typing import Any

from mdops.errors import ConfigError
from mdops.train.config.sections import ModelConfig, saved_precision

Tree = Mapping[str, Any]

_DESCRIPTOR = (
    *("rcut", "rcut_smth", "neuron", "axis_neuron", "activation_function", "resnet_dt", "type_one_side"),
    *("env_protection", "set_davg_zero"),
)
_FITTING = ("neuron", "activation_function", "resnet_dt", "numb_fparam", "numb_aparam", "default_fparam")


def require_types(tree: Tree, model: ModelConfig, name: str) -> None:
    """Raises ConfigError, which names them, if the input has elements that the model `name` lacks."""
    unknown = [element for element in model.type_map if element not in tree["type_map"]]
    if unknown:
        raise ConfigError(
            f"model.type_map: has {', '.join(unknown)}, and {name} is a model of {', '.join(tree['type_map'])}; "
            "a training can begin with a model of these and more elements, in any order, and not with one of fewer"
        )


def require_same(tree: Tree, model: ModelConfig, name: str) -> None:
    """Raises ConfigError, which names every difference, if the input describes another model than `name`.

    What belongs to types is compared by element, for those of the input. A `sel` that is to be found and
    a precision that is not given differ from nothing.
    """
    there, here = _of_tree(tree, model.type_map), _of_input(model)
    different = [
        f"{key} is {_text(value)} in the input and {_text(there[key])} in the model"
        for key, value in here.items()
        if value != there[key]
    ]
    if different:
        raise ConfigError(
            f"{name} is another model than the input's: {'; '.join(different)} (--use-pretrain-script takes "
            "all of these from the model)"
        )


def _of_tree(tree: Tree, elements: Sequence[str]) -> dict[str, Any]:
    """The options of a serialised model by their keys in the input, of these elements alone."""
    descriptor, fitting, types = tree["descriptor"], tree["fitting"], tree["type_map"]
    sel = dict(zip(types, descriptor["sel"], strict=True))
    return {
        "model.descriptor.sel": {element: sel[element] for element in elements},
        "model.descriptor.precision": descriptor["precision"],
        "model.descriptor.exclude_types": _pairs(descriptor["exclude_types"], types, elements),
        **{f"model.descriptor.{name}": _plain(descriptor.get(name)) for name in _DESCRIPTOR},
        "model.fitting_net.precision": fitting["precision"],
        "model.fitting_net.atom_ener": _energies(fitting.get("atom_ener"), types, elements),
        **{f"model.fitting_net.{name}": _plain(fitting.get(name)) for name in _FITTING},
        "model.pair_exclude_types": _pairs(tree["pair_exclude_types"], types, elements),
        "model.atom_exclude_types": _elements(tree["atom_exclude_types"], types, elements),
    }


def _of_input(model: ModelConfig) -> dict[str, Any]:
    """The same of an input, without what it leaves open."""
    descriptor, fitting, types = model.descriptor, model.fitting_net, model.type_map
    found: dict[str, Any] = {
        "model.descriptor.exclude_types": _pairs(descriptor.exclude_types, types, types),
        **{f"model.descriptor.{name}": _plain(getattr(descriptor, name)) for name in _DESCRIPTOR},
        "model.fitting_net.atom_ener": _energies(fitting.atom_ener, types, types),
        **{f"model.fitting_net.{name}": _plain(getattr(fitting, name)) for name in _FITTING},
        "model.pair_exclude_types": _pairs(model.pair_exclude_types, types, types),
        "model.atom_exclude_types": _elements(model.atom_exclude_types, types, types),
    }
    if not isinstance(descriptor.sel, str):
        found["model.descriptor.sel"] = dict(zip(types, descriptor.sel, strict=True))
    for name, part in (("descriptor", descriptor), ("fitting_net", fitting)):
        if part.precision != "default":
            found[f"model.{name}.precision"] = saved_precision(part.precision)
    return found


def _plain(value: Any) -> Any:
    """Zero for what is absent or off: DeePMD-kit writes the same option as None, False or 0."""
    return list(value) if isinstance(value, list | tuple) else value or 0


def _pairs(pairs: Any, types: Sequence[str], elements: Sequence[str]) -> list[tuple[str, ...]]:
    """Pairs of types by element, each once."""
    named = {tuple(sorted(types[t] for t in pair)) for pair in pairs or []}
    return sorted(pair for pair in named if set(pair) <= set(elements))


def _elements(kinds: Any, types: Sequence[str], elements: Sequence[str]) -> list[str]:
    return sorted({types[t] for t in kinds or []} & set(elements))


def _energies(energies: Any, types: Sequence[str], elements: Sequence[str]) -> dict[str, float]:
    """The energies in vacuum that are given, by element."""
    pairs = zip(types, energies or [], strict=False)
    return {element: float(e) for element, e in pairs if e is not None and element in elements}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "none"
    return repr(value)
