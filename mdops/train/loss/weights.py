"""The weights of a loss' terms, which change with the learning rate, and the keys that give them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from mdops.options import Options, key

T = TypeVar("T", bound=type[Options])


class Prefactor(NamedTuple):
    """The weight of a term: limit + (start - limit) * rate / (rate at the start)."""

    start: float
    limit: float

    @property
    def counts(self) -> bool:
        """Whether the term counts, as in DeePMD-kit: if neither is zero."""
        return self.start != 0 and self.limit != 0

    def at(self, fraction: Any) -> Any:
        """The weight at this fraction (a number or a tensor) of the initial learning rate."""
        return self.limit + (self.start - self.limit) * fraction


class Weight(NamedTuple):
    """The defaults of the keys of a term's weight, and the meaning of the term."""

    start: float
    limit: float
    of: str
    unit: str = ""


def weighted(terms: Mapping[str, Weight]) -> Callable[[T], T]:
    """Gives options the keys `start_pref_<term>` and `limit_pref_<term>`, before their own."""

    def give(kind: T) -> T:
        own = kind.__annotations__
        kind.__annotations__ = {}
        for term, weight in terms.items():
            ends = "at the start", "at the end (in the limit of rate zero)"
            for end, when, value in zip(Prefactor._fields, ends, weight, strict=False):
                name = f"{end}_pref_{term}"
                kind.__annotations__[name] = float
                setattr(kind, name, key(value, f"weight of {weight.of} {when}", unit=weight.unit, low=0))
        kind.__annotations__ |= own
        return kind

    return give


def weights_of(options: Options, terms: Iterable[str]) -> dict[str, Prefactor]:
    """Those in the options of terms."""
    ends = Prefactor._fields
    return {term: Prefactor(*(getattr(options, f"{end}_pref_{term}") for end in ends)) for term in terms}


def weight_keys(*terms: str) -> list[str]:
    """The keys of the weights of terms."""
    return [f"loss.{end}_pref_{term}" for term in terms for end in Prefactor._fields]
