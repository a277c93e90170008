"""A whole layer of DPA-1's attention as one op, for simulation."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mdops.ops._register import call, register_fake, register_formula
from mdops.ops.attention import RaggedPlan, plan_of
from mdops.ops.neighbor_attention import SHIFT, neighbor_attention, unit

LANES = 16  # kLayerLanes of source/op/attention_layer/attention_layer.h
_WIDEST = 128  # kWidestRow of source/op/attention_layer/gpu_rows.h


class AttentionWeights(NamedTuple):
    """The weights of a layer: M numbers per neighbour, attention of width A.

    Attributes:
        project, project_bias: (M, 3 A), (3 A,): to q, k and v; None if these are columns after g.
        out, out_bias: (A, M), (M,): back.
        norm, norm_bias: (M,), (M,): LayerNorm's.
        factors: (A,), factors of the columns of q after its normalization; None: 1.
    """

    project: torch.Tensor | None
    project_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor
    norm: torch.Tensor
    norm_bias: torch.Tensor
    factors: torch.Tensor | None = None


def attention_layer(
    g: torch.Tensor,
    offsets: torch.Tensor,
    weights: AttentionWeights,
    *,
    directions: torch.Tensor | None,
    switch: torch.Tensor | None,
    empty: torch.Tensor | None,
    scale: float,
    eps: float,
    normalize: bool,
    plan: RaggedPlan | None = None,
) -> torch.Tensor:
    """LayerNorm(g + o W_out + b_out), o = `neighbor_attention` of q, k, v = g W + b in one head.

    One pass forward and one backward, with each atom's rows in cache. Differentiable in g, directions and switch; the
    weights are constants. Second derivatives go through PyTorch's own operations. On a GPU it takes float32, and g and
    attention up to 128 wide (`has_layer`).

    q, k and v may be coordinates in orthonormal bases of the spaces that contain them; `factors` are then the cosines
    of the angles between the bases of q and of k (mathematics.md). Without `project` they are given, A numbers
    each, a multiple of 16, as the last columns of rows that begin with g; if they are normalized and have their factors
    already, without `normalize` and factors, they are neither copied nor saved.

    Args:
        g: (E, M), or (E, at least M + 3 A) without `project`, float32 or float64, rows of neighbours, sorted by
            atom.
        offsets: (N + 1,) int32, from 0 to E.
        weights: see there.
        directions, switch, empty, normalize: as of `neighbor_attention`; scale is its temperature.
        eps: LayerNorm's.
        plan: as of `neighbor_attention`; not used on a CPU.

    Returns:
        (E, M).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or `offsets` falls.
    """
    absent = None if switch is None or empty is None else empty.to(g.dtype)
    fixed = (None if w is None else w.detach() for w in weights)
    optional = (directions, switch, absent)
    if plan is None and g.is_cuda:
        plan = plan_of(offsets, g.shape[0])
    work = (None, 0) if plan is None else (plan.items, plan.max_length)
    scalars = (scale, SHIFT, eps, normalize)
    return call("attention_layer", g, offsets, *fixed, *optional, *scalars, *work)[0]


def has_layer(device: torch.device, dtype: torch.dtype, features: int, width: int) -> bool:
    """Whether `attention_layer` takes g with so many columns and attention of this width."""
    return device.type == "cpu" or (dtype == torch.float32 and max(features, width) <= _WIDEST)


def _reference(g: Any, offsets: Any, *args: Any) -> torch.Tensor:
    """The op by other ops, and differentiable as often as they are."""
    *weights, gate, switch, absent, scale, shift, eps, normal, items, max_length = args
    project, project_bias, out, out_bias, norm, norm_bias, factors = weights
    assert shift == SHIFT
    given, g = g, g[:, : len(norm)]
    parts = given[:, -3 * len(out) :] if project is None else g @ project + project_bias
    q, k, v = parts[:, None].chunk(3, dim=-1)
    if factors is not None:
        if normal:
            q, k, v, normal = unit(q), unit(k), unit(v), False
        q = q * factors
    plan = None if items is None else RaggedPlan(items, max_length)
    how = {"directions": gate, "switch": switch, "empty": absent, "temperature": scale, "plan": plan}
    o = neighbor_attention(q, k, v, offsets, normalize=normal, **how)
    return F.layer_norm(g + o[:, 0] @ out + out_bias, norm.shape, norm, norm_bias, eps)


def _saved_width(features: int, width: int, parts: int) -> int:
    vectors = (parts + 1) * ((width + LANES - 1) // LANES) + (features + LANES - 1) // LANES
    return vectors * LANES + (5 if parts else 2)


@register_fake("attention_layer")
def _(
    g: Any, offsets: Any, project: Any, project_bias: Any, out: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    (width, features), factors, normal = out.shape, args[3], args[10]
    in_place = project is None and factors is None and not normal
    kept = _saved_width(features, width, 0 if in_place else 3 + (factors is not None))
    return g.new_empty(g.shape[0], features), g.new_empty(g.shape[0], kept)


@register_fake("attention_layer_backward")
def _(grad: Any, saved: Any, g: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    gate, switch = args[8:10]
    return g.new_empty(g.shape), *(g.new_empty(0 if x is None else x.shape) for x in (gate, switch))


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    if grads[0] is None:
        return None, None, None
    *inputs, saved = args
    gate, switch = inputs[9:11]
    if torch.is_grad_enabled():
        leaves = [inputs[0], gate, switch]
        variables = [x for x in leaves if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(_reference(*inputs), variables, grads[0], create_graph=True))
        return tuple(None if x is None or not x.requires_grad else next(found) for x in leaves)
    by_g, by_gate, by_switch = torch.ops.mdops.attention_layer_backward(grads[0], saved, *inputs)
    return by_g, None if gate is None else by_gate, None if switch is None else by_switch


register_formula("attention_layer", _formula, (0, 9, 10), constant=(1,), saved=(1,))
