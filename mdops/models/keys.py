"""Keys that options of several kinds have."""

from dataclasses import dataclass
from typing import Any

from mdops.options import PRECISIONS, Of, key


@dataclass(kw_only=True)
class AdapterOptions:
    """Low-rank adapters, which a training adds to weights that it keeps."""

    rank: int = key(doc="rank of the trained matrices that are added to the weights", low=1)
    alpha: float | None = key(None, "they are multiplied by alpha / rank; by default by 1", above=0)


def places_key(neighbors: str) -> Any:
    """A key for the number of an atom's slots for neighbours of any type."""
    meaning = f'largest number of {neighbors}; "auto:f" is f times the number in the data'
    return key("auto", meaning, low=1, implied=..., absent=..., saved=int)


def sel_key(kinds: str, of: Of) -> Any:
    """A key for the numbers of slots for each of some kinds."""
    meaning = f'largest number of neighbours of {kinds}; "auto:f" is f times the number in the data'
    return key("auto", meaning, low=0, of=of, implied=..., absent=..., saved=int | list[int])


def excluded_pairs_key() -> Any:
    return key([], "pairs of types that are not neighbours of each other", of="pairs")


def seed_key(**more: Any) -> Any:
    meaning = "seed of the random weights; default: the training's seed"
    return key(None, meaning, low=0, of="training", **more)


def input_mode_key(**more: Any) -> Any:
    """A key for how types enter an embedding net."""
    meaning = (
        '"concat": types are additional inputs of the net; "strip": types have a separate net, by'
        " which the net is multiplied"
    )
    return key("concat", meaning, choices=("concat", "strip"), **more)


def precision_key(default: str = "default", **more: Any) -> Any:
    meaning = "precision in which the weights are saved"
    meaning += "; default float64" if default == "default" else ""
    return key(default, meaning, choices=PRECISIONS, **more)


def switch_key(default: float, of: str, **bound: Any) -> Any:
    meaning = f"distance at which the switch of {of} begins to fall"
    return key(default, meaning, unit="A", implied=..., absent=..., **bound)


def residual_key(default: float) -> Any:
    return key(default, "initial value or standard deviation of trained weights", low=0, of="training")


def residual_init_key(default: str) -> Any:
    meaning = "trained weights begin with equal or with random values"
    return key(default, meaning, choices=("const", "norm"), of="training")
