"""Definitions of models with spins as virtual atoms, with and without the types of these."""

from collections.abc import Mapping
from typing import Any

from mdops.errors import UnsupportedModelError
from mdops.models import registry
from mdops.models.spin import NativeSpin, Spin, is_native

_PROTECTION = 0.01  # A, for a descriptor without one: the virtual atom of a zero spin lies on its atom


def with_virtual_types(model: Mapping[str, Any]) -> dict[str, Any]:
    """The section `model` of an input with a section `spin`, with the types of virtual atoms and what follows from
    them, as DeePMD-kit has it; one of spins as vectors with a truth value for each type; any other as it is, and one
    that has these types.

    Raises ConfigError for a section that does not fit the types, UnsupportedModelError for one whose scheme is not that
    of the descriptor."""
    if not _is_well_formed(model):
        return dict(model)
    elements, section = model.get("type_map"), model.get("spin")
    if isinstance(section, Mapping) and model.get("type", "standard") == "standard":
        _require_scheme(model.get("descriptor", {}), section)
    if isinstance(section, Mapping) and isinstance(elements, list) and is_native(section):
        return {**model, "spin": NativeSpin.of(section, elements, "model.spin").to_tree()}
    if (
        not isinstance(section, Mapping)
        or not isinstance(elements, list)
        or model.get("type", "standard") != "standard"
    ):
        return dict(model)
    half = len(elements) // 2
    if elements[half:] == [f"{element}_spin" for element in elements[:half]]:
        return dict(model)
    spin = Spin.of(section, elements, "model.spin")
    n, descriptor = spin.ntypes, dict(model.get("descriptor", {}))
    placeholders = [n + t for t, has in enumerate(spin.use_spin) if not has]
    absent = [[one, other] for one in placeholders for other in range(2 * n)]
    absent += [list(pair) for pair in model.get("pair_exclude_types") or []]
    descriptor |= {"exclude_types": absent, "env_protection": descriptor.get("env_protection") or _PROTECTION}
    if _has_places_by_type(descriptor, n):
        descriptor["sel"] = 2 * descriptor["sel"]
    return {
        **model,
        "type_map": [*elements, *(f"{element}_spin" for element in elements)],
        "spin": spin.to_tree(),
        "descriptor": descriptor,
        "pair_exclude_types": absent,
        "atom_exclude_types": sorted({*range(n, 2 * n), *(model.get("atom_exclude_types") or [])}),
    }


def _is_well_formed(model: Mapping[str, Any]) -> bool:
    """Whether values read here have the right types; `mdops.options.parse` reports others."""
    descriptor, elements = model.get("descriptor", {}), model.get("type_map")
    pairs, silent = (model.get(f"{of}_exclude_types") or [] for of in ("pair", "atom"))
    return (
        isinstance(descriptor, Mapping)
        and isinstance(descriptor.get("type", ""), str)
        and (not isinstance(elements, list) or all(isinstance(name, str) for name in elements))
        and isinstance(pairs, list)
        and all(isinstance(pair, list) for pair in pairs)
        and isinstance(silent, list)
        and all(isinstance(kind, int) for kind in silent)
    )


def _require_scheme(descriptor: Mapping[str, Any], section: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError unless spins are vectors exactly if the descriptor takes vectors."""
    name = descriptor.get("type", registry.DEFAULT_DESCRIPTOR)
    kind = registry.kinds("descriptor").get(name)
    if kind is not None and hasattr(kind.Options, "use_spin") != is_native(section):
        other = "no spins as vectors" if is_native(section) else "spins as vectors alone"
        raise UnsupportedModelError(f"model.spin: {name} takes {other} (the scheme 'native')")


def without_virtual_types(model: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `with_virtual_types`, as in an input."""
    section, types = model.get("spin"), model["type_map"]
    if not section or is_native(section):
        return dict(model)
    n, descriptor = len(types) // 2, dict(model["descriptor"])
    descriptor.pop("exclude_types", None)
    if _has_places_by_type(descriptor, 2 * n) and descriptor["sel"][:n] == descriptor["sel"][n:]:
        descriptor["sel"] = descriptor["sel"][:n]
    pairs = [pair for pair in model.get("pair_exclude_types", []) if max(pair) < n]
    silent = [t for t in model.get("atom_exclude_types", []) if t < n]
    rest = {k: v for k, v in model.items() if k not in ("pair_exclude_types", "atom_exclude_types")}
    more = {"pair_exclude_types": pairs, "atom_exclude_types": silent}
    return {**rest, "type_map": types[:n], "descriptor": descriptor, **{k: v for k, v in more.items() if v}}


def _has_places_by_type(descriptor: Mapping[str, Any], types: int) -> bool:
    """Whether its `sel` has a number for each of so many types: neighbours of each type have their own places."""
    kind = registry.kinds("descriptor").get(descriptor.get("type", registry.DEFAULT_DESCRIPTOR))
    sel = descriptor.get("sel")
    return kind is not None and not kind.mixed and isinstance(sel, list) and len(sel) == types
