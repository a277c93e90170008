"""A layer of DPA-2 for nodes as one op, for simulation."""

from typing import Any, NamedTuple

import torch

from mdops.ops._register import call, register_fake, register_formula
from mdops.ops.activation import kernel_code, of_code


class NodeLayerWeights(NamedTuple):
    """The weights of a layer: C channels per node; empty for absent terms.

    Attributes:
        own, own_bias, own_factor: (C, C), (C,), (C,), of the node's own message.
        sum_factor: (C,), of the first of the sums over neighbours.
        every, bias, factor: (F, C), (C,), (C,), of the message of all inputs.
    """

    own: torch.Tensor
    own_bias: torch.Tensor
    own_factor: torch.Tensor
    sum_factor: torch.Tensor
    every: torch.Tensor
    bias: torch.Tensor
    factor: torch.Tensor


def node_layer(
    n: torch.Tensor,
    v: torch.Tensor,
    e: torch.Tensor,
    weights: NodeLayerWeights,
    *,
    takes_nodes: bool,
    keep: float,
    axis: int,
    activation: str,
) -> torch.Tensor:
    """keep n + own_factor f(n own + own_bias) + sum_factor v[:, 0] + factor f([n, D(e), D(v[:, 1:])] every + bias) with
    D(T)[l, k] = sum_a T[a, l] T[a, k], l < axis.

    One pass forward and one backward, with a block of nodes in cache. Differentiable in n, v and e; the weights are
    constants. Second derivatives use PyTorch's operations. Only on a CPU.

    Args:
        n: (N, C), float32 or float64.
        v: (N, 0, 1 or 4, C). e: (N, 0 or 3, K). D is left out for those without rows.
        weights: see there.
        takes_nodes: whether n is an input of the product with `every`.
        keep: the factor of n.
        activation: f, by DeePMD-kit's name.

    Returns:
        (N, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    fixed = (value.detach() for value in weights)
    scalars = (takes_nodes, keep, axis, *kernel_code(activation))
    return call("node_layer", n, v, e, *fixed, *scalars)[0]


def node_layer_packed(weights: NodeLayerWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights in the layout of `torch.ops.mdops.node_layer` and its gradient: passed as `packed` they save a copy
    in each call."""
    given = weights.own, weights.own_bias, weights.every, weights.bias
    forward, back = (torch.ops.mdops.node_layer_pack(*given, way) for way in (False, True))
    return forward, back


def _reference(n: Any, v: Any, e: Any, *args: Any) -> torch.Tensor:
    """The op by PyTorch's operations."""
    w, (takes_nodes, keep, axis, code, threshold) = NodeLayerWeights(*args[:7]), args[7:12]
    f = of_code(code, threshold)
    parts = [n] if takes_nodes else []
    parts += [(t[:, :, :axis].mT @ t).flatten(1) for t in (e, v[:, 1:]) if t.shape[1]]
    found = keep * n + w.factor * f(torch.cat(parts, 1) @ w.every + w.bias)
    if w.own.numel():
        found = found + w.own_factor * f(n @ w.own + w.own_bias)
    if w.sum_factor.numel():
        found = found + w.sum_factor * v[:, 0]
    return found


@register_fake("node_layer")
def _(n: Any, v: Any, e: Any, own: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return (
        n.new_empty(n.shape),
        n.new_empty(n.shape),
        n.new_empty(n.shape[0] if own.numel() else 0, n.shape[1]),
    )


@register_fake("node_layer_pack")
def _(own: Any, own_bias: Any, every: Any, bias: Any, back: bool) -> torch.Tensor:
    return every.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)


@register_fake("node_layer_backward")
def _(grad: Any, z: Any, z_own: Any, n: Any, v: Any, e: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in (n, v, e))


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    if grads[0] is None:
        return None, None, None
    *inputs, z, z_own = args
    if torch.is_grad_enabled():
        variables = [x for x in inputs[:3] if x.requires_grad]
        made = _reference(*inputs)
        how = {"create_graph": True, "materialize_grads": True, "allow_unused": True}
        found = iter(torch.autograd.grad(made, variables, grads[0], **how))
        return tuple(next(found) if x.requires_grad else None for x in inputs[:3])
    by: tuple[Any, ...] = torch.ops.mdops.node_layer_backward(grads[0], z, z_own, *inputs[:15])
    return by


register_formula("node_layer", _formula, (0, 1, 2), constant=(1, 2), saved=(1, 2))
