"""Definitions of models with spins as virtual atoms, with and without the types of these."""

from collections.abc import Mapping
from typing import Any

from mdops.errors import UnsupportedModelError
from mdops.models import registry
from mdops.models.spin import NativeSpin, Spin, is_native


def with_virtual_types(model: Mapping[str, Any]) -> dict[str, Any]:
    """The section `model` of an input with a section `spin`, with the types of virtual atoms and what follows from
    them, as DeePMD-kit has it; one of spins as vectors with a truth value for each type; any other as it is, and one
    that has these types.

    Raises ConfigError for a section that does not fit the types, UnsupportedModelError for one whose scheme is not that
    of the descriptor."""
    if not _is_well_formed(model):
        return dict(model)
    elements, section, name = model.get("type_map"), model.get("spin"), model.get("type", "standard")
    if isinstance(section, Mapping) and name == "standard":
        _require_scheme(model.get("descriptor", {}), section)
    if isinstance(section, Mapping) and isinstance(elements, list) and is_native(section):
        return {**model, "spin": NativeSpin.of(section, elements, "model.spin").to_tree()}
    kind = registry.kinds("model").get(name)
    if (
        not isinstance(section, Mapping)
        or not isinstance(elements, list)
        or kind is None
        or not hasattr(kind.Options, "spin")
    ):
        return dict(model)
    half = len(elements) // 2
    if elements[half:] == [f"{element}_spin" for element in elements[:half]]:
        return dict(model)
    spin = Spin.of(section, elements, "model.spin")
    n = spin.ntypes
    placeholders = [n + t for t, has in enumerate(spin.use_spin) if not has]
    absent = [[one, other] for one in placeholders for other in range(2 * n)]
    absent += [list(pair) for pair in kind.Options.absent_pairs_of(model)]
    descriptor = kind.Options.with_virtual_atoms(model.get("descriptor", {}), n)
    return {
        **model,
        "type_map": [*elements, *(f"{element}_spin" for element in elements)],
        "spin": spin.to_tree(),
        "descriptor": {**descriptor, "exclude_types": absent},
        "pair_exclude_types": absent,
        "atom_exclude_types": sorted({*range(n, 2 * n), *(model.get("atom_exclude_types") or [])}),
    }


def _is_well_formed(model: Mapping[str, Any]) -> bool:
    """Whether values read here have the right types; `mdops.options.parse` reports others."""
    descriptor, elements = model.get("descriptor", {}), model.get("type_map")
    if not isinstance(descriptor, Mapping) or not isinstance(model.get("type", ""), str):
        return False
    silent, pairs = model.get("atom_exclude_types") or [], model.get("pair_exclude_types") or []
    own = descriptor.get("exclude_types") or []
    return (
        isinstance(descriptor.get("type", ""), str)
        and (not isinstance(elements, list) or all(isinstance(name, str) for name in elements))
        and all(isinstance(of, list) and all(isinstance(pair, list) for pair in of) for of in (pairs, own))
        and isinstance(silent, list)
        and all(isinstance(kind, int) for kind in silent)
    )


def _require_scheme(descriptor: Mapping[str, Any], section: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError unless spins are vectors exactly if the descriptor takes vectors."""
    name = descriptor.get("type", registry.DEFAULT_DESCRIPTOR)
    kind = registry.kinds("descriptor").get(name)
    if kind is not None and hasattr(kind.Options, "use_spin") != is_native(section):
        other = "no spins as vectors" if is_native(section) else "spins as vectors alone"
        raise UnsupportedModelError(
            f"model.spin: {name} in a model of type standard takes {other} (the scheme 'native')"
        )


def without_virtual_types(model: Mapping[str, Any], options: Any = None) -> dict[str, Any]:
    """The reverse of `with_virtual_types`, as in an input; `options`: the class of its options, if not by its type."""
    section, types = model.get("spin"), model["type_map"]
    if not section or is_native(section):
        return dict(model)
    n = len(types) // 2
    options = options or registry.find("model", model.get("type", "standard")).Options
    descriptor = options.without_virtual_atoms(model["descriptor"], n)
    descriptor.pop("exclude_types", None)
    pairs = [pair for pair in model.get("pair_exclude_types", []) if max(pair) < n]
    silent = [t for t in model.get("atom_exclude_types", []) if t < n]
    rest = {k: v for k, v in model.items() if k not in ("pair_exclude_types", "atom_exclude_types")}
    more = {"pair_exclude_types": pairs, "atom_exclude_types": silent}
    return {**rest, "type_map": types[:n], "descriptor": descriptor, **{k: v for k, v in more.items() if v}}
