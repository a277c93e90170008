"""Adds the low-rank adapters (LoRA) of a PyTorch state dict to its weights."""

from collections.abc import Mapping

import numpy as np

# The names of two factors and of the weights that their product is added to, and the product for einsum.
_BY_DEGREE = ("A_by_l", "B_by_l", "weight", "lor,lri->lio")
_BY_ORDER = "or,ri->io"


def with_adapters(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights with their adapters added, times `lora_scaling` (1 if absent). The adapters are left out."""
    found = dict(weights)
    for name in weights:
        place, _, last = name.rpartition(".")
        if last == "A_by_l":
            _add(found, place, *_BY_DEGREE)
        elif last == "A_m0":
            _add(found, place, "A_m0", "B_m0", "weight_m0", _BY_ORDER)
        elif place.endswith(".A_m"):
            block = place[: -len(".A_m")]
            _add(found, block, f"A_m.{last}", f"B_m.{last}", f"weight_m.{last}", _BY_ORDER)
    return {name: value for name, value in found.items() if not name.endswith("lora_scaling")}


def _add(
    found: dict[str, np.ndarray], place: str, first: str, second: str, weight: str, product: str
) -> None:
    a, b = found.pop(f"{place}.{first}"), found.pop(f"{place}.{second}", None)
    base = found.get(f"{place}.{weight}")
    if b is not None and base is not None:
        scale = found.get(f"{place}.lora_scaling")
        more = np.einsum(product, b, a) * (1.0 if scale is None else scale)
        found[f"{place}.{weight}"] = base + more
