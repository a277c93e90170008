"""The invariants of DPA-4C as terms of `mdops.ops.moment_invariants` (docs/explanation/mathematics.md)."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch

from mdops.models.dpa4c import DPA4C
from mdops.models.moment_invariants import gaunt_tensors, independent_products, tensor_basis
from mdops.ops.moment_invariants import Polynomial, Terms, term_gradients


class InvariantTerms(NamedTuple):
    """Arguments of the op: its features are those of the descriptor, after statistics."""

    behind: torch.Tensor
    forth: Terms
    back: Terms
    mixed: int
    made: int


@torch.no_grad()
def invariant_terms(descriptor: DPA4C) -> InvariantTerms:
    """For sums (N, (lmax + 1)^2, C_1), whose first component is not used."""
    d, made_of = descriptor.double_copy(), descriptor.invariants
    width, lmax, channels = d.options.channels, made_of.lmax, made_of.channels
    components = (lmax + 1) ** 2 * channels[1]
    raw = width + components + 2
    mixtures: list[Polynomial] = []
    # The numbers of Y_l and Z_l of component m and channel c: [m][c].
    y: dict[int, list[list[int]]] = {}
    z: dict[int, list[list[int]]] = {}

    def mixed(of: list[list[int]], matrix: np.ndarray) -> list[list[int]]:
        found = []
        for line in of:
            found.append([raw + len(mixtures) + k for k in range(matrix.shape[1])])
            mixtures.extend(
                {(n,): float(f) for n, f in zip(line, column, strict=True)} for column in matrix.T
            )
        return found

    for degree in range(1, lmax + 1):
        lines = range(degree**2, (degree + 1) ** 2)
        x = [[width + line * channels[1] + c for c in range(channels[degree])] for line in lines]
        whole = np.eye(channels[degree])
        y[degree] = z[degree] = x
        if degree <= len(d.invariants.alignment):
            whole = whole + d.invariants.alignment[degree - 1].numpy()
            y[degree] = z[degree] = mixed(x, whole)
        probe = d.invariants.probes[degree - 1]
        if probe is not None:
            z[degree] = mixed(x, whole @ probe.numpy())
    made: list[Polynomial] = []

    def products(terms: Iterable[tuple[tuple[int, ...], float]]) -> int:
        """The index of the product with these terms."""
        made.append(_collected(terms))
        return raw + len(mixtures) + len(made) - 1

    outputs: list[Polynomial] = [{(c,): 1.0} for c in range(width)]
    for degree in range(1, lmax + 1):
        for a, b in itertools.combinations_with_replacement(range(channels[degree]), 2):
            factor = 1.0 if a == b else math.sqrt(2)
            outputs.append(_collected(((line[a], line[b]), factor) for line in y[degree]))
    # T_b v_a, by [b][a][row]: for squares, and for triples of two vectors and a tensor.
    tensors = tensor_basis().reshape(5, 3, 3)
    turned = [
        [
            [
                products(
                    ((z[1][n][a], z[2][m][b]), tensors[m, line, n]) for m, n in _places(tensors[:, line])
                )
                for line in range(3)
            ]
            for a in range(made_of.ranks[0])
        ]
        for b in range(made_of.ranks[1])
    ]
    gaunt = gaunt_tensors(lmax)
    for triple in made_of.triples:
        ranks = [len(z[degree][0]) for degree in triple]
        independent, scales = independent_products(triple, made_of.ranks)
        partial: dict[tuple[int, int], list[int]] = {}  # the sums over two of three, by channels
        for place, scale in zip(independent.tolist(), scales.tolist(), strict=True):
            a, b, c = map(int, np.unravel_index(place, ranks))
            if triple == (1, 1, 2):  # v_a T_c v_b times a factor
                own, factor = turned[c][b], -1 / math.sqrt(5)
            elif triple[0] == 1:  # vectors are many
                if (b, c) not in partial:
                    partial[b, c] = [
                        products(
                            ((z[triple[1]][j][b], z[triple[2]][k][c]), gaunt[triple][i, j, k])
                            for j, k in _places(gaunt[triple][i])
                        )
                        for i in range(3)
                    ]
                own, factor = partial[b, c], 1.0
            else:
                outputs.append(
                    _collected(
                        (
                            tuple(z[n][i][q] for n, i, q in zip(triple, index, (a, b, c), strict=True)),
                            scale * gaunt[triple][index],
                        )
                        for index in _places(gaunt[triple])
                    )
                )
                continue
            outputs.append(_collected(((z[1][i][a], own[i]), scale * factor) for i in range(3)))
    squares = itertools.chain.from_iterable(turned)
    outputs += [{(line, line): 1.0 for line in own} for own in squares]
    outputs += [{(raw - 2,): 1.0}, {(raw - 1,): 1.0}]
    mean, scale = d.mean.numpy(), 1 / d.stddev.numpy()
    scaled = [
        {**{index: f * s for index, f in one.items()}, (): -m * s}
        for one, m, s in zip(outputs, mean, scale, strict=False)
    ]
    behind = (d.type_embedding - d.mean[-width:]) / d.stddev[-width:]
    like = descriptor.mean
    forth, back = [*mixtures, *made, *scaled], term_gradients(mixtures, made, scaled, raw)
    lists = Terms.of(forth, like), Terms.of(back, like)
    return InvariantTerms(behind.to(like), *lists, len(mixtures), len(made))


def _places(values: np.ndarray) -> list[tuple[int, ...]]:
    """The indices of the values that are not zero."""
    return [tuple(map(int, index)) for index in np.argwhere(values)]


def _collected(products: Iterable[tuple[tuple[int, ...], float]]) -> Polynomial:
    found: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for index, factor in products:
        found[tuple(sorted(index))] += factor
    return found
