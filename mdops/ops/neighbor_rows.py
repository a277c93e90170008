"""The neighbours that count as rows, sorted by atom, and sums over them: the steps before and after attention
layers."""

from typing import Any, NamedTuple

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.env_mat import no_mask
from mdops.ops.graph import EdgeIndex, edge_scatter


class NeighborRows(NamedTuple):
    """Which slots of a pair list (N, K) are rows, and a summary of the neighbours.

    Attributes:
        offsets: (N + 1,) int32, where each atom's rows begin.
        slots: (N K,) int32, n K + k of each row; -1 after the last.
        taken: (N,) int32, neighbours that take slots; within: (N,) int32, all within the cutoff.
        nearest: (N,), the distance to the nearest neighbour, A; the cutoff of an atom without neighbours.
    """

    offsets: torch.Tensor
    slots: torch.Tensor
    taken: torch.Tensor
    within: torch.Tensor
    nearest: torch.Tensor


class EnvironmentRows(NamedTuple):
    """Data of each of E rows.

    Attributes:
        environment: (E, 4), R of `env_mat`.
        switch: (E,), from 1 to 0 between the cutoffs.
        directions: (E, 3), unit vectors to the neighbours; shorter where x, y and z of R are below 1e-12.
        kinds: (E, 2) int32, the types of the centre and of the neighbour.
    """

    environment: torch.Tensor
    switch: torch.Tensor
    directions: torch.Tensor
    kinds: torch.Tensor


class SplineRows(NamedTuple):
    """Data of each of E rows: as of `EnvironmentRows`, and g (E, M), the splines."""

    environment: torch.Tensor
    switch: torch.Tensor
    directions: torch.Tensor
    g: torch.Tensor


def neighbor_rows(
    displacements: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    *,
    cutoff: float,
    pair_mask: torch.Tensor | None = None,
    zeroed: torch.Tensor | None = None,
) -> NeighborRows:
    """The slots with a neighbour within the cutoff, except pairs in `pair_mask`. A NaN distance counts.

    Args:
        displacements, counts, types: as for `env_mat`.
        cutoff: A.
        pair_mask: (ntypes, ntypes) bool; None: all pairs count.
        zeroed: (ntypes, ntypes) bool, the pairs in `pair_mask` that still take slots; None: none do.

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on the CPU) a type or count is out of range.
    """
    masks = (no_mask(counts) if mask is None else mask for mask in (pair_mask, zeroed))
    return NeighborRows(*torch.ops.mdops.neighbor_rows(displacements, counts, types, *masks, cutoff))


def spline_rows(
    displacements: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    table: torch.Tensor,
    *,
    cutoff: float,
    cutoff_smooth: float,
    s_max: float,
    rows: int,
    protection: float = 0.0,
    grading: float = 0.0,
    gated: bool = False,
) -> SplineRows:
    """Rows of the environment matrix and g = sum_b phi_b(s) C_ct[b] of the first `rows` slots; zeros where one is -1.

    phi_b are those of `spline_moment`, c is the type of the centre and t that of the neighbour. With a gate,
    g = sum_b phi_b(s) (C_c[b] + switch C_ct[b]). Differentiable once, in `displacements`.

    Args:
        displacements, counts, types, mean, std, cutoff, cutoff_smooth, protection: as for `env_mat`.
        slots: (N K,) int32, of `neighbor_rows`.
        table: (ntypes, F, B, M): C for centres of each type; F = ntypes, and one more with a gate, C_c first.
        s_max, grading: of the knots, 1/A, as for `spline_moment`; there are B - 5 pieces.
        rows: E.

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on the CPU) a type, count or slot is out of range.
    """
    switch = cutoff, cutoff_smooth, protection, s_max, grading
    given = displacements, slots, counts, types, mean, std, table
    return SplineRows(*call("spline_rows", *given, *switch, rows, gated))


def environment_rows(
    displacements: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    *,
    cutoff: float,
    cutoff_smooth: float,
    rows: int,
    protection: float = 0.0,
) -> EnvironmentRows:
    """Rows of the environment matrix of the first `rows` slots; zeros where one is -1. Differentiable twice, in
    `displacements`. Arguments and errors are those of `spline_rows`."""
    given = displacements, slots, counts, types, mean, std
    return EnvironmentRows(*call("environment_rows", *given, cutoff, cutoff_smooth, protection, rows))


def harmonic_rows(
    displacements: torch.Tensor,
    slots: torch.Tensor,
    counts: torch.Tensor,
    types: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    *,
    cutoff: float,
    cutoff_smooth: float,
    rows: int,
    degree: int,
    protection: float = 0.0,
) -> torch.Tensor:
    """Rows of the environment matrix, followed by solid harmonics,

        w / (r + p) Y_lm(d / (r + p)) / std[c, 0]     of l = 2 to `degree`, m = -l to l,

    with the switch w, p = `protection` and the type c of the centre. Y_lm are homogeneous polynomials with Racah's
    normalisation, sum_m Y_lm(u)^2 = |u|^(2 l): T. Helgaker, P. Jorgensen and J. Olsen, Molecular Electronic-Structure
    Theory (2000), 6.4. A pair at distance 0 has zeros there. Differentiable twice, in `displacements`.

    Args:
        degree: 2 to 4; the others: as for `spline_rows`.

    Returns:
        (E, (degree + 1)^2): R of `env_mat` first; zeros where a slot is -1.

    Raises:
        RuntimeError: as for `spline_rows`, or another degree.
    """
    given = displacements, slots, counts, types, mean, std
    return call("harmonic_rows", *given, cutoff, cutoff_smooth, protection, rows, degree)


def row_moments(
    environment: torch.Tensor,
    g: torch.Tensor,
    offsets: torch.Tensor,
    *,
    leaves_rest: bool = False,
    of: EdgeIndex | None = None,
) -> torch.Tensor:
    """T[n, a] = sum over the rows j of atom n of environment[j, a] g[j]. Twice differentiable in both.

    Args:
        environment: (E, C) float32 or float64, C up to 1,024; g: (E, M), or with `of` rows of nodes.
        offsets: (N + 1,) int32, from 0 to at most E: there may be rows after the last atom's.
        leaves_rest: whether the gradients by those may stay unwritten, for callers that do not read them; else they
            are zero.
        of: of the E rows and the nodes of g: g[of.nodes[j]] replaces g[j].

    Returns:
        (N, C, M).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on the CPU) `offsets` falls or goes beyond E.
    """
    return call("row_moments", environment, g, offsets, leaves_rest, *(of or (None, None, None)))


@register_fake("neighbor_rows")
def _(displacements: Any, counts: Any, types: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    n, width, _ = displacements.shape
    sizes = (n + 1, n * width, n, n)
    return *(types.new_empty(size) for size in sizes), displacements.new_empty(n)


@register_fake("spline_rows")
def _(displacements: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    table, rows = args[5], args[-2]
    shapes = ((rows, 4), (rows,), (rows, 3), (rows, table.shape[3]))
    return tuple(displacements.new_empty(shape) for shape in shapes)


register_fake_like("spline_rows_backward", 4)


@register_fake("environment_rows")
def _(displacements: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    kinds = displacements.new_empty((args[-1], 2), dtype=torch.int32)
    return *_blank_rows(displacements, args[-1]), kinds


register_fake_like("environment_rows_backward", 3)


@register_fake("environment_rows_backward_backward")
def _(direction: Any, a: Any, b: Any, c: Any, displacements: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return *_blank_rows(displacements, args[-1]), displacements.new_empty(displacements.shape)


def _blank_rows(displacements: Any, rows: int) -> list[torch.Tensor]:
    return [displacements.new_empty(shape) for shape in ((rows, 4), (rows,), (rows, 3))]


@register_fake("harmonic_rows")
def _(displacements: Any, *args: Any) -> torch.Tensor:
    rows, degree = args[-2:]
    return displacements.new_empty(rows, (degree + 1) ** 2)


register_fake_like("harmonic_rows_backward", 1)
register_fake_like("harmonic_rows_backward_backward", 1, 2)


@register_fake("row_moments")
def _(environment: Any, g: Any, offsets: Any, *args: Any) -> torch.Tensor:
    return g.new_empty(offsets.shape[0] - 1, environment.shape[1], g.shape[1])


@register_fake("row_moments_backward")
def _(grad: Any, environment: Any, g: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return environment.new_empty(environment.shape), g.new_empty(environment.shape[0], g.shape[1])


def _rows_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (last_derivative("spline_rows_backward", *grads, *args),)


def _environment_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("environment_rows_backward", *grads[:3], *args),)


def _environment_backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return last_derivative("environment_rows_backward_backward", grads[0], *args)


def _harmonic_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("harmonic_rows_backward", grads[0], *args),)


def _harmonic_backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return last_derivative("harmonic_rows_backward_backward", grads[0], *args)


def _moments_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    by_environment, by_rows = call("row_moments_backward", grads[0], *args)
    return by_environment, _by_g(by_rows, needs[1], args[4:])


def _moments_backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    """The sums are linear in either of their arguments."""
    (u, v), (grad, environment, g, offsets, leaves_rest, *of) = grads, args
    by_grad = None
    if needs[0]:
        by_grad = row_moments(u, g, offsets, of=_index(of)) + row_moments(environment, v, offsets)
    if not (needs[1] or needs[2]):
        return by_grad, None, None
    every = None, None, None
    by_environment, by_rows = call("row_moments_backward", grad, u, v, offsets, leaves_rest, *every)
    return by_grad, by_environment, _by_g(by_rows, needs[2], of)


def _index(of: Any) -> EdgeIndex | None:
    return None if of[0] is None else EdgeIndex(*of)


def _by_g(by_rows: torch.Tensor, needed: bool, of: Any) -> torch.Tensor | None:
    """The gradient by g, from that by each row's."""
    index = _index(of)
    if index is None:
        return by_rows
    return edge_scatter(by_rows, index) if needed else None


register_formula("spline_rows", _rows_formula, (0,))
register_formula("environment_rows", _environment_formula, (0,), constant=(3,))
register_formula("environment_rows_backward", _environment_backward_formula, (0, 1, 2, 3))
register_formula("harmonic_rows", _harmonic_formula, (0,))
register_formula("harmonic_rows_backward", _harmonic_backward_formula, (0, 1))
register_formula("row_moments", _moments_formula, (0, 1))
register_formula("row_moments_backward", _moments_backward_formula, (0, 1, 2))
