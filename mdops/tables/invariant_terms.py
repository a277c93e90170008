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
    """Arguments of the op: its features are those that a descriptor gives, after statistics."""

    behind: torch.Tensor
    forth: Terms
    back: Terms
    mixed: int


@torch.no_grad()
def invariant_terms(descriptor: DPA4C) -> InvariantTerms:
    """For sums (N, (lmax + 1)^2, C_1), of which the first component is left out of account."""
    d, made = descriptor.double_copy(), descriptor.invariants
    width, lmax, channels = d.options.channels, made.lmax, made.channels
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
    outputs: list[Polynomial] = [{(c,): 1.0} for c in range(width)]
    for degree in range(1, lmax + 1):
        for a, b in itertools.combinations_with_replacement(range(channels[degree]), 2):
            factor = 1.0 if a == b else math.sqrt(2)
            outputs.append(_collected(((line[a], line[b]), factor) for line in y[degree]))
    gaunt = gaunt_tensors(lmax)
    for triple in made.triples:
        ranks = [len(z[degree][0]) for degree in triple]
        places, scales = independent_products(triple, made.ranks)
        nonzero = [(index, gaunt[triple][index]) for index in zip(*np.nonzero(gaunt[triple]), strict=True)]
        for place, scale in zip(places.tolist(), scales.tolist(), strict=True):
            abc = np.unravel_index(place, ranks)
            outputs.append(
                _collected(
                    (tuple(z[n][i][c] for n, i, c in zip(triple, index, abc, strict=True)), scale * g)
                    for index, g in nonzero
                )
            )
    tensors = tensor_basis().reshape(5, 3, 3)
    for b, a in itertools.product(range(made.ranks[1]), range(made.ranks[0])):
        square: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for line in range(3):
            turned = [
                ((z[2][m][b], z[1][n][a]), tensors[m, line, n])
                for m, n in itertools.product(range(5), range(3))
                if tensors[m, line, n]
            ]
            for (one, f), (other, g) in itertools.product(turned, repeat=2):
                square[tuple(sorted(one + other))] += f * g
        outputs.append(square)
    outputs += [{(raw - 2,): 1.0}, {(raw - 1,): 1.0}]
    mean, scale = d.mean.numpy(), 1 / d.stddev.numpy()
    scaled = [
        {**{index: f * s for index, f in one.items()}, (): -m * s}
        for one, m, s in zip(outputs, mean, scale, strict=False)
    ]
    behind = (d.type_embedding - d.mean[-width:]) / d.stddev[-width:]
    like = descriptor.mean
    forth, back = [*mixtures, *scaled], term_gradients(mixtures, scaled, raw)
    return InvariantTerms(behind.to(like), Terms.of(forth, like), Terms.of(back, like), len(mixtures))


def _collected(products: Iterable[tuple[tuple[int, ...], float]]) -> Polynomial:
    found: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for index, factor in products:
        found[tuple(sorted(index))] += factor
    return found
