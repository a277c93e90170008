"""DPA-1's attention of an atom's neighbours to each other, without padding."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.attention import RaggedPlan, plan_of

SHIFT = 20.0  # of the logits of smooth attention: an empty slot counts exp(-20) in the softmax


def neighbor_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    *,
    directions: torch.Tensor | None = None,
    switch: torch.Tensor | None = None,
    empty: torch.Tensor | None = None,
    normalize: bool = True,
    temperature: float | None = None,
    scaling_factor: float = 1.0,
    plan: RaggedPlan | None = None,
    matmul: str = "float32",
) -> torch.Tensor:
    """DPA-1's gated attention: each neighbour of an atom attends to the atom's others. Twice differentiable.

    o_j = sum_l p_jl (r_j . r_l) v_l with p_j = softmax_l(z_jl), z_jl = scale q_j . k_l, j and l neighbours of one atom.
    Smooth attention (`switch` given) has (z + 20) w_j w_l - 20 instead of z and p_jl w_j w_l instead of p; its softmax
    counts the atom's empty slots, whose z is -20. As in DeePMD-kit (Zhang et al. 2022, arXiv:2208.08236), which pads
    the neighbours to a fixed number; here there is no padding.

    Args:
        q, k, v: (E, H, W), rows of neighbours, sorted by atom, H heads; dtypes as of `ragged_attention`.
        offsets: (N + 1,) int32: rows offsets[i] to offsets[i + 1] are the neighbours of atom i.
        directions: r (E, 3), unit vectors to the neighbours; None: no factor r_j . r_l (`attn_dotr` false).
        switch: w (E,), from 1 to 0 at the cutoff; None: attention is not smooth.
        empty: (N,), slots without a neighbour, for smooth attention; None: there are none.
        normalize: whether q, k and v are normalized to unit vectors.
        temperature: scale; by default (W scaling_factor)^-1/2.
        scaling_factor: see `temperature`.
        plan: of `ragged_plan` for `offsets`; by default a new one. One serves all layers.
        matmul: as in `ragged_attention`.

    Returns:
        (E, H, W).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    if normalize:
        q, k, v = unit(q), unit(k), unit(v)
    scale = attention_scale(q.shape[-1], temperature, scaling_factor)
    if plan is None:
        plan = plan_of(offsets, q.shape[0])
    absent = None
    if switch is not None and empty is not None:
        absent = empty.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    optional = (None, directions, switch, absent)
    scalars = (scale, SHIFT, plan.max_length, matmul)
    return call("ragged_attention", q, k, v, offsets, plan.items, *optional, *scalars)[0]


def attention_scale(width: int, temperature: float | None, scaling_factor: float) -> float:
    """The factor of q.k for heads of this width."""
    return (width * scaling_factor) ** -0.5 if temperature is None else temperature


def unit(x: torch.Tensor) -> torch.Tensor:
    """x over its length along the last axis, or over 1e-12 if that is less; zeros stay zeros. Twice differentiable."""
    if x.dtype not in (torch.float32, torch.float64):
        return unit(x.float()).to(x.dtype)
    return call("unit", x.reshape(-1, x.shape[-1])).view(x.shape)


def unit_three(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three thirds of the columns of x (N, 3 W), each (N, W) and normalized by `unit`: queries, keys and values
    from one product. Twice differentiable."""
    q, k, v = call("unit_three", x)
    return q, k, v


register_fake_like("unit", 0)
register_fake_like("unit_backward", 1)
register_fake_like("unit_backward_backward", 2, 2)


@register_fake("unit_three")
def _(x: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x.new_empty(x.shape[0], x.shape[1] // 3) for _ in range(3))


register_fake_like("unit_three_backward", 3)


@register_fake("unit_three_backward_backward")
def _(direction: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in args)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("unit_backward", grads[0], args[0]),)


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return last_derivative("unit_backward_backward", grads[0], *args)


def _formula_of_three(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("unit_three_backward", *grads, args[0]),)


def _backward_formula_of_three(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return last_derivative("unit_three_backward_backward", grads[0], *args)


register_formula("unit", _formula, (0,))
register_formula("unit_backward", _backward_formula, (0, 1))
register_formula("unit_three", _formula_of_three, (0,))
register_formula("unit_three_backward", _backward_formula_of_three, (0, 1, 2, 3))
