"""Harmonics of an edge's direction, and rows of rotation matrices into its frame."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula

MOST_FRAME_DEGREE = 6


def edge_frames(vectors: torch.Tensor, degree: int, order: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Harmonics, and rows of the matrices that rotate coefficients of real harmonics into a frame whose z is the
    edge's direction. Differentiable twice.

    Harmonics are as of `mdops.nn.equivariant.rotation`: the squares of a degree sum up to 1. The frame's free rotation
    about z is smooth in each half of space and jumps where z = 0: results from rows of |m| = 1 must not depend on
    it.

    Args:
        vectors: (E, 3), float32 or float64, not zero.
        degree: L, 6 at most.
        order: the largest |m| of rows, 0 or 1; -1: no rows.

    Returns:
        (E, (L + 1)^2), the harmonics in packed order; (E, R, (L + 1)^2), rows of m = 0
        (l = 0 to L), of m = -1 (l = 1 to L), and of m = 1.

    Raises:
        RuntimeError: a shape, dtype or number does not match.
    """
    found: tuple[torch.Tensor, torch.Tensor] = call("edge_frames", vectors, degree, order)
    return found


@register_fake("edge_frames")
def _(vectors: Any, degree: int, order: int) -> tuple[torch.Tensor, ...]:
    edges, columns = vectors.shape[0], (degree + 1) ** 2
    rows = 0 if order < 0 else degree + 1 + 2 * degree * order
    shapes = (edges, columns), (edges, rows, columns)
    return tuple(vectors.new_empty(shape) for shape in shapes)


register_fake_like("edge_frames_backward", 2)


@register_fake("edge_frames_backward_backward")
def _(changes: Any, by_harmonics: Any, by_turn: Any, vectors: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in (by_harmonics, by_turn, vectors))


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("edge_frames_backward", *grads, *args),)


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("edge_frames_backward_backward", *grads, *args)
    return found


register_formula("edge_frames", _formula, (0,))
register_formula("edge_frames_backward", _backward_formula, (0, 1, 2))
