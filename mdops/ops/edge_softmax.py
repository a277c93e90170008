"""Weights of an atom's edges: a softmax of products of the nodes at both ends."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_fake_like, register_formula
from mdops.ops.graph import EdgeIndex, parts_of


def edge_softmax(
    q: torch.Tensor,
    k: torch.Tensor,
    bias: torch.Tensor,
    fades: torch.Tensor,
    nothing: torch.Tensor,
    of_atom: EdgeIndex,
    of_node: EdgeIndex,
    *,
    scale: float,
) -> torch.Tensor:
    """y_eh = u_e^2 exp(x_eh) / (z_h + the sum of the same over the edges of e's atom), with x_eh = scale q_ih . k_jh +
    b_eh of an edge from atom i to node j, in each of H heads. Differentiable once, in all but `nothing`. No array of
    edges has channels.

    Args:
        q: (N, C), float32 or float64, head after head. k: (M, C).
        bias: b (E, H), H a divisor of C.
        fades: u (E, 1). An edge has no weight where its square is below the least normal number.
        nothing: z (H,), above 0, constant: the term for no edge.
        of_atom: from an edge to i; the edges are sorted by atom.
        of_node: from an edge to j.

    Returns:
        (E, H); zeros in rows after the last edge.

    Raises:
        RuntimeError: as for `edge_gather`.
    """
    if parts_of(of_atom).order is not None:
        raise ValueError(
            "edge_softmax: the edges of `of_atom` have an order, expected them to stand atom after atom"
        )
    given = q, k, bias, fades, nothing, of_atom.nodes, of_atom.offsets
    return call("edge_softmax", *given, *parts_of(of_node), scale)


register_fake_like("edge_softmax", 2)


@register_fake("edge_softmax_backward")
def _(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args[:4])


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("edge_softmax_backward", grads[0], *args)
    return found


register_formula("edge_softmax", _formula, range(4))
