"""Rotates nodes' coefficients into the frames of edges, and back with sums of a fixed order. No array of edges has a
node's coefficients before rotation."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_formula
from mdops.ops.graph import EdgeIndex, parts_of

MOST_COLUMNS = 128  # D of a matrix


def edge_rotate(turn: torch.Tensor, x: torch.Tensor, of: EdgeIndex) -> torch.Tensor:
    """The rows of each edge's node, multiplied by the edge's matrix: y[e] = turn[e] x[of[e]], zeros where that is -1.
    Its gradients are `edge_rotate_outer` and `edge_rotate_sum`; differentiable any number of times.

    Args:
        turn: (E, R, D) float32 or float64, D at most 128.
        x: (M, D, C).
        of: of E edges and M nodes.

    Returns:
        (E, R, C).

    Raises:
        RuntimeError: as for `edge_gather`.
    """
    return call("edge_rotate", turn, x, *parts_of(of))


def edge_rotate_sum(turn: torch.Tensor, y: torch.Tensor, of: EdgeIndex) -> torch.Tensor:
    """The sums over each node's edges of their rows, rotated back: x[m] = sum of turn[e]^T y[e] over the edges of m,
    with the same bits in every run. The transpose of `edge_rotate` in x. Its gradients are `edge_rotate_outer` and
    `edge_rotate`; differentiable any number of times.

    Args:
        turn: (E, R, D) float32 or float64, D at most 128.
        y: (E, R, C).
        of: of E edges and M nodes.

    Returns:
        (M, D, C).

    Raises:
        RuntimeError: as for `edge_scatter`.
    """
    return call("edge_rotate_sum", turn, y, *parts_of(of))


def edge_rotate_back(
    turn: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, of: EdgeIndex
) -> torch.Tensor:
    """`edge_rotate_sum` of weighted terms: x[m] = sum of weight[e] turn[e]^T y[e] over the edges of m. No array has the
    weighted matrices. Differentiable once.

    Args:
        turn: (E, R, D) float32 or float64, D at most 128.
        y: (E, R, C).
        weight: (E, 1).
        of: of E edges and M nodes.

    Returns:
        (M, D, C).

    Raises:
        RuntimeError: as for `edge_scatter`.
    """
    return call("edge_rotate_back", turn, y, weight, *parts_of(of))


def edge_rotate_outer(y: torch.Tensor, x: torch.Tensor, of: EdgeIndex) -> torch.Tensor:
    """The products of an edge's rows with those of its node, summed over channels: y[e] x[of[e]]^T, zeros where that is
    -1. The gradient by `turn` of the two others, which are its own gradients.

    Args:
        y: (E, R, C) float32 or float64.
        x: (M, D, C), D at most 128.
        of: of E edges and M nodes.

    Returns:
        (E, R, D).

    Raises:
        RuntimeError: as for `edge_gather`.
    """
    return call("edge_rotate_outer", y, x, *parts_of(of))


@register_fake("edge_rotate")
def _(turn: Any, x: Any, *of: Any) -> torch.Tensor:
    return x.new_empty(*turn.shape[:2], x.shape[2])


@register_fake("edge_rotate_sum")
def _(turn: Any, y: Any, index: Any, order: Any, offsets: Any) -> torch.Tensor:
    return y.new_empty(offsets.shape[0] - 1, turn.shape[2], y.shape[2])


@register_fake("edge_rotate_back")
def _(turn: Any, y: Any, weight: Any, index: Any, order: Any, offsets: Any) -> torch.Tensor:
    return y.new_empty(offsets.shape[0] - 1, turn.shape[2], y.shape[2])


@register_fake("edge_rotate_back_backward")
def _(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args[:3])


@register_fake("edge_rotate_outer")
def _(y: Any, x: Any, *of: Any) -> torch.Tensor:
    return y.new_empty(*y.shape[:2], x.shape[1])


def _rotate_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    turn, x, of = args[0], args[1], EdgeIndex(*args[2:])
    by_turn = edge_rotate_outer(grads[0], x, of) if needs[0] else None
    return by_turn, edge_rotate_sum(turn, grads[0], of) if needs[1] else None


def _sum_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    turn, y, of = args[0], args[1], EdgeIndex(*args[2:])
    by_turn = edge_rotate_outer(y, grads[0], of) if needs[0] else None
    return by_turn, edge_rotate(turn, grads[0], of) if needs[1] else None


def _outer_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    y, x, of = args[0], args[1], EdgeIndex(*args[2:])
    by_y = edge_rotate(grads[0], x, of) if needs[0] else None
    return by_y, edge_rotate_sum(grads[0], y, of) if needs[1] else None


def _back_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("edge_rotate_back_backward", grads[0], *args)
    return found


register_formula("edge_rotate_back", _back_formula, range(3))
register_formula("edge_rotate", _rotate_formula, (0, 1))
register_formula("edge_rotate_sum", _sum_formula, (0, 1))
register_formula("edge_rotate_outer", _outer_formula, (0, 1))
