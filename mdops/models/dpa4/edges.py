"""The edges of DPA-4 before its layers: lengths, envelopes, radial features and rotations into their frames."""

import functools
import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mdops.models.dpa4.radial import RadialSplines
from mdops.models.graph import Room
from mdops.nn.equivariant.linear import Dense
from mdops.nn.equivariant.norm import ScalarNorm
from mdops.ops import EdgeIndex
from mdops.ops.activation import activation
from mdops.ops.switch_curve import fade_curve


class Edges(NamedTuple):
    """The graph that all layers read. Rows after the last edge hold finite numbers that no sum reads.

    Attributes:
        of_center, of_neighbor: from each of E edges to its atom, and to the neighbour.
        types: (N,) int64, of the atoms.
        embedded: (N, C), embedding of the type, and of the system's charge and multiplicity.
        vectors: (E, 3), A, from the neighbour to the atom, of `clamped` lengths.
        lengths: (E, 1), A.
        basis: (E, n_radial), functions of the length.
        envelope: (E, 1), from 1 to 0 at the cutoff; zero after the last edge.
        radial: (E, L + 1, C), radial features by degree.
        of_edge: (E, L + 1, C), the same plus the embeddings of both types.
        scalars: (E, C), `of_edge` for l = 0.
        rotations: rows of the matrices into the edge's frame, (E, R, (lmax + 1)^2), by (lmax, mmax).
        harmonics: (E, (L + 1)^2), of the edge's direction.
        degree: (N, 1), 1 / sqrt(sum of the atom's squared envelopes + a floor).
        moments: (N, 3), magnetic moments, 0 for types without; None: there are none.
        added: (N, D, C), what is added to the first coefficients; None: nothing.
        atoms: how many, from the first on, are no ghosts; None: all.
        sent: (N, 1), a factor of an atom's messages: 0 where another atom is too near; None: 1.
        splines, kinds: they replace `basis`, `radial`, `of_edge` and `scalars`, which have no columns then; and the
            table of each edge. None: there are none.
        once: whether results are differentiated at most once, and not by weights.
        matmul: the least accuracy of layers' products, if `once`.
        runs: the same edges in runs, if all together take too much memory. Only the runs have bases, radial features,
            rotations and harmonics then.
        rooms: for what runs and what atoms may save for the gradient.
        is_run: whether these edges are a run.
    """

    of_center: EdgeIndex
    of_neighbor: EdgeIndex
    types: torch.Tensor
    embedded: torch.Tensor
    vectors: torch.Tensor
    lengths: torch.Tensor
    basis: torch.Tensor
    envelope: torch.Tensor
    radial: torch.Tensor
    of_edge: torch.Tensor
    scalars: torch.Tensor
    rotations: dict[tuple[int, int], torch.Tensor]
    harmonics: torch.Tensor
    degree: torch.Tensor
    moments: torch.Tensor | None
    sent: torch.Tensor | None
    splines: RadialSplines | None
    kinds: torch.Tensor | None
    once: bool
    matmul: str
    runs: "tuple[Edges, ...]" = ()
    rooms: tuple[Room, Room] = (Room(0), Room(0))
    is_run: bool = False
    added: torch.Tensor | None = None
    atoms: int | None = None

    def without_ghosts(self, rows: torch.Tensor) -> torch.Tensor:
        """Those of rows (N, ...) of which new nodes are made."""
        return rows if self.atoms is None else rows[: self.atoms]

    def by_splines(self, name: str) -> torch.Tensor | None:
        """(E, functions) of that name; None without splines."""
        if self.splines is None or self.kinds is None:
            return None
        return self.splines.numbers(name, self.lengths, self.kinds)

    def of_each(self, function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> list[torch.Tensor]:
        """function(edges, their rows) for all edges, or for each run. A run may be recomputed for its gradient.

        Args:
            rows: each (E, ...).
        """
        if not self.runs:
            return [function(self, *rows)]
        sizes = [len(run.envelope) for run in self.runs]
        given = zip(self.runs, *(own.split(sizes) for own in rows), strict=True)
        return [self.rooms[0].run(function, *of_run) for of_run in given]

    def sums(self, function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
        """The sum of the results of `of_each`, for sums over the edges of atoms (N, ...)."""
        found = self.of_each(function, *rows)
        return functools.reduce(torch.add, found)

    def of_atoms(self, function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
        """function(rows) of all atoms, in as many parts as there are runs: rows (N, ...) in and out."""
        if not self.runs:
            return function(*rows)
        return self.rooms[1].by_rows(function, *rows, size=max(1, -(-len(rows[0]) // len(self.runs))))


def clamped(r: torch.Tensor, inner: float, outer: float) -> torch.Tensor:
    """r, but below `outer` it approaches `inner` smoothly and never falls below it."""
    t = ((r - inner) / (outer - inner)).clamp(0, 1)
    between = inner + (outer - inner) * t**4 * (20 + t * (-45 + t * (36 - 10 * t)))
    return torch.where(r >= outer, r, between)


def bridge(r: torch.Tensor, inner: float, outer: float) -> torch.Tensor:
    """Rises from 0 at `inner` to 1 at `outer`; the first three derivatives are zero at both."""
    t = ((r - inner) / (outer - inner)).clamp(0, 1)
    return t**4 * (35 + t * (-84 + t * (70 - 20 * t)))


class RadialBasis(nn.Module):
    """sin(f r) / r with trained f, or Gaussians with trained centres f, times an envelope: (E, 1) to (E, n)."""

    def __init__(self, cutoff: float, count: int, kind: str, exponent: int) -> None:
        super().__init__()
        self.cutoff, self.kind, self.exponent = cutoff, kind, exponent
        frequencies = np.arange(1, count + 1) * (math.pi / cutoff)
        if kind == "gaussian":
            frequencies = np.linspace(0, cutoff, count)
        self.width = cutoff / max(count - 1, 1)
        self.adam_freqs = nn.Parameter(torch.from_numpy(frequencies).reshape(1, -1))

    def forward(self, r: torch.Tensor) -> torch.Tensor:
        if self.kind == "gaussian":
            values = torch.exp(-0.5 * ((r - self.adam_freqs) / self.width) ** 2)
        else:
            values = torch.sin(r * self.adam_freqs) / r
        return values * fade_curve(r, self.cutoff, self.exponent)


class Function(nn.Module):
    """An activation function as a layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = activation(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class RadialNet(nn.Module):
    """Linear layers without biases, with a norm (if `norms`) and a function between them."""

    def __init__(self, widths: list[int], function: str, norms: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k, (inputs, outputs) in enumerate(pairwise(widths)):
            layers.append(Dense(inputs, outputs))
            if k < len(widths) - 2:
                layers += [*([ScalarNorm(outputs, None)] if norms else []), Function(function)]
        self.net = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(x)
        return found
