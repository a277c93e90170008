"""Invariants of sums over neighbours, as polynomials of them."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula

FACTORS = 4  # factors of a term

# Products of numbers, each by its rising indices, and their coefficients.
Polynomial = Mapping[tuple[int, ...], float]


class Terms(NamedTuple):
    """Sums of terms, row by row.

    Attributes:
        numbers: (terms, 4) int32, the indices of a term's factors, and -1 after the last.
        factor: (terms,), the terms' coefficients.
        offsets: (rows + 1,) int32, where each row begins.
    """

    numbers: torch.Tensor
    factor: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of(cls, rows: Sequence[Polynomial], like: torch.Tensor) -> "Terms":
        """The terms of these rows, on the device of `like` and with its dtype. Terms with equally many factors are
        adjacent: GPUs process these together."""
        rows = [dict(sorted(row.items(), key=lambda term: len(term[0]))) for row in rows]
        index = [[*term, *[-1] * (FACTORS - len(term))] for row in rows for term in row]
        factor = [f for row in rows for f in row.values()]
        offsets = [0, *itertools.accumulate(len(row) for row in rows)]
        return cls(
            torch.tensor(index, dtype=torch.int32, device=like.device).view(-1, FACTORS),
            torch.tensor(factor, dtype=torch.float64).to(like),
            torch.tensor(offsets, dtype=torch.int32, device=like.device),
        )


def term_gradients(
    mixtures: Sequence[Polynomial], made: Sequence[Polynomial], features: Sequence[Polynomial], raw: int
) -> list[Polynomial]:
    """The rows of `back` for those of `forth`, with `raw` numbers before the mixtures."""
    known, mixed = raw + len(mixtures) + len(made), raw + len(mixtures)
    found: list[dict[tuple[int, ...], float]] = [{} for _ in range(known)]
    first = known
    for sums in (features, made, mixtures):
        for k, one in enumerate(sums):
            for index, factor in one.items():
                for number, times in Counter(index).items():
                    rest = list(index)
                    rest.remove(number)
                    found[number][(first + k, *rest)] = factor * times
        first += len(sums)
    return [*found[mixed:], *found[raw:mixed], *found[:raw]]


def moment_invariants(
    scalars: torch.Tensor,
    others: torch.Tensor,
    types: torch.Tensor,
    behind: torch.Tensor,
    forth: Terms,
    back: Terms,
    mixed: int,
    made: int,
) -> torch.Tensor:
    """Polynomials of an atom's numbers, for models of DPA-4C's form. Differentiable once, in `scalars` and `others`.

    An atom's numbers are, in order: r, the sums `scalars` over d_0 and `others` over d_1, and d_0 and d_1, with
    d = (m + 1/4)^(1/2) for the two masses m, the last columns of `scalars`; v, `mixed` sums of terms of r and `made`
    sums of terms of r and these; and y, sums of terms of r and v, which are the results. `back` has the derivatives as
    sums of terms, too: by v, first those that are `made`, and then by r. Their terms are of r and v, of the gradients
    by y, which replace y, and of those by v, which follow in the order of `back`.

    Args:
        scalars: (N, C + 2), the masses last; others: (N, K).
        types: (N,) int32, -1 for a virtual atom.
        behind: (ntypes, E), columns after y for atoms of each type; zeros for virtual ones.
        forth, back: of mixed + made + F and mixed + made + C + K + 2 rows.

    Returns:
        (N, F + E).

    Raises:
        RuntimeError: a shape, dtype, device or number does not match, or an index is out of range.
    """
    return call("moment_invariants", scalars, others, types, behind, *forth, *back, mixed, made)


@register_fake("moment_invariants")
def _(scalars: Any, others: Any, types: Any, behind: Any, *args: Any) -> torch.Tensor:
    forth_offsets, mixed, made = args[2], *args[6:]
    features = forth_offsets.shape[0] - 1 - mixed - made
    return scalars.new_empty(scalars.shape[0], features + behind.shape[1])


register_fake_like("moment_invariants_backward", 1, 2)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return tuple(last_derivative("moment_invariants_backward", grads[0], *args))


register_formula("moment_invariants", _formula, (0, 1))
