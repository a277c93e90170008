"""Attention of an atom's edges to each other, with their own features as keys and values."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_formula


def edge_attention(
    q: torch.Tensor,
    x: torch.Tensor,
    r: torch.Tensor,
    w: torch.Tensor,
    absent: torch.Tensor,
    offsets: torch.Tensor,
    *,
    shift: float,
    gated: bool,
    longest: int,
) -> torch.Tensor:
    """Attention of edges j to the edges l of their atom, in each of H heads:

        o_j = sum_l p_jl (r_j . r_l) w_j w_l x_l
        p_jl = softmax over l of (u_jl + shift) w_j w_l       u_jl = q_j . x_l, times r_j . r_l if gated

    The softmax also counts `absent` edges, with the logit 0. Keys are the first K numbers of x; all heads have the same
    keys and values, so matrices of keys belong into q, and those of values are applied after the sum. Twice
    differentiable, each derivative in one pass.

    Args:
        q: (E, H, K), float32 or float64, with the logits' scale.
        x: (E, V), V of K or more. r: (E, 3). w: (E,).
        absent: (N,), not below 0.
        offsets: (N + 1,) int32: rows offsets[i] to offsets[i + 1] are the edges of atom i.
        gated: whether r_j . r_l is a factor of the logits.
        longest: no atom has more edges.

    Returns:
        (E, H, V); zeros in rows after the last atom's.

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) `offsets` falls, goes beyond E, or has an
            atom with more edges than `longest`. A GPU answers NaN in the rows of such an atom.
    """
    return call("edge_attention", q, x, r, w, absent, offsets, shift, gated, longest)


@register_fake("edge_attention")
def _(q: Any, x: Any, *args: Any) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[1], x.shape[1])


@register_fake("edge_attention_backward")
def _(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args[:4])


@register_fake("edge_attention_backward_backward")
def _(along_q: Any, along_x: Any, along_r: Any, along_w: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args[:5])


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = call("edge_attention_backward", grads[0], *args)
    return found


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("edge_attention_backward_backward", *grads, *args)
    return found


register_formula("edge_attention", _formula, range(4))
register_formula("edge_attention_backward", _backward_formula, range(5))
