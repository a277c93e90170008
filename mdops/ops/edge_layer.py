"""A layer of DPA-2 for an atom's edges as one op, for simulation."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mdops.ops._register import call, register_fake, register_fake_like, register_formula
from mdops.ops.activation import kernel_code, of_code
from mdops.ops.edge_attention import edge_attention


class EdgeLayerWeights(NamedTuple):
    """The weights of a layer: C channels per edge, H heads, or none: then the last four are empty.

    Attributes:
        own, own_bias: (C, C), (C,): of the edge's own message. own_factor: (C,), its factors.
        queries: (H, C, C), the matrices of queries times those of keys, with the logits' scale.
        values, out_bias: (H, C, C), (C,): the matrices of values times those that combine the heads.
        norm, norm_bias: (C,), LayerNorm's. out_factor: (C,), of the message of attention.
    """

    own: torch.Tensor
    own_bias: torch.Tensor
    own_factor: torch.Tensor
    queries: torch.Tensor
    values: torch.Tensor
    out_bias: torch.Tensor
    norm: torch.Tensor
    norm_bias: torch.Tensor
    out_factor: torch.Tensor


def edge_layer(
    e: torch.Tensor,
    r: torch.Tensor,
    w: torch.Tensor,
    absent: torch.Tensor,
    offsets: torch.Tensor,
    weights: EdgeLayerWeights,
    *,
    keep: float,
    shift: float,
    gated: bool,
    eps: float,
    activation: str,
) -> torch.Tensor:
    """keep e + own_factor f(e own + own_bias) + out_factor LayerNorm(o values + out_bias), o = `edge_attention` of
    q = e queries and x = e.

    One pass forward and one backward, with each atom's edges in cache. Differentiable in e, r and w; the weights are
    constants. Second derivatives use other ops. Only on a CPU.

    Args:
        e: (E, C), float32 or float64, the edges, sorted by atom.
        r, w, absent, offsets, shift, gated: as of `edge_attention`.
        weights: see there.
        keep: the factor of e.
        eps: LayerNorm's.
        activation: f, by DeePMD-kit's name.

    Returns:
        (E, C); zeros in rows after the last atom's.

    Raises:
        RuntimeError: a shape, dtype or device does not match, or `offsets` falls or goes beyond E.
    """
    fixed = (value.detach() for value in weights)
    scalars = (keep, shift, gated, eps, *kernel_code(activation))
    return call("edge_layer", e, r, w, absent, offsets, *fixed, *scalars)[0]


def _reference(e: Any, r: Any, w: Any, absent: Any, offsets: Any, *args: Any) -> torch.Tensor:
    """The op by other ops, differentiable twice."""
    weights, (keep, shift, gated, eps, code, threshold) = EdgeLayerWeights(*args[:9]), args[9:]
    own = of_code(code, threshold)(torch.addmm(weights.own_bias, e, weights.own))
    found = keep * e + weights.own_factor * own
    if len(weights.queries):
        q = torch.einsum("ec,hck->ehk", e, weights.queries)
        how = {"shift": shift, "gated": gated, "longest": int(offsets.diff().amax())}
        o = edge_attention(q, e, r, w, absent, offsets, **how)
        x = torch.einsum("ehv,hvc->ec", o, weights.values) + weights.out_bias
        normed = F.layer_norm(x, x.shape[1:], weights.norm, weights.norm_bias, eps)
        found = found + weights.out_factor * normed
    there = torch.arange(len(e), device=e.device) < offsets[-1]
    return torch.where(there[:, None], found, 0.0)


@register_fake("edge_layer")
def _(e: Any, r: Any, w: Any, absent: Any, offsets: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return e.new_empty(e.shape), e.new_empty(e.shape[0] if args[3].shape[0] else 0, e.shape[1])


register_fake_like("edge_layer_backward", 2, 3, 4)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    if grads[0] is None:
        return None, None, None
    *inputs, saved = args
    if torch.is_grad_enabled():
        variables = [x for x in inputs[:3] if x.requires_grad]
        found = iter(
            torch.autograd.grad(
                _reference(*inputs), variables, grads[0], create_graph=True, materialize_grads=True
            )
        )
        return tuple(next(found) if x.requires_grad else None for x in inputs[:3])
    by_e, by_r, by_w = torch.ops.mdops.edge_layer_backward(grads[0], saved, *inputs)
    return by_e, by_r, by_w


register_formula("edge_layer", _formula, (0, 1, 2), constant=(1,), saved=(1,))
