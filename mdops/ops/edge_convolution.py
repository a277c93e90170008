"""Convolutions along the edges of a graph, and products of the nodes at their ends: derivatives of one form."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.ops._register import as_non_leaf, call, register_fake, register_formula
from mdops.ops.graph import EdgeIndex, parts_of


def edge_convolution(
    x: torch.Tensor,
    b: torch.Tensor,
    w: torch.Tensor,
    t: torch.Tensor,
    weight: torch.Tensor,
    of_x: EdgeIndex,
    of: EdgeIndex,
) -> torch.Tensor:
    """Sums over each node's edges of the rows of other nodes, first times filters, which are products of the edges'
    features, then times Q more numbers:

        y[m, 0] = sum of x[of_x[e]] w[e] (b[e] W)        y[m, 1 + q] = sum of t[e, q] x[of_x[e]]

    over the edges e of m, in the order of `of`; edges with -1 in `of_x` add nothing. No array has the size of edges
    times C. Differentiable any number of times, by derivatives of one form (docs/reference/ops.md).

    Args:
        x: (M', C), float32 or float64.
        b: (E, K). w: (E,). t: (E, Q).
        weight: W (K, C).
        of_x, of: of E edges and M' nodes, or M.

    Returns:
        (M, 1 + Q, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) an index does not name each edge once under
            its own node. A GPU answers NaN in rows of nodes for which an index is wrong.
    """
    return call("edge_convolution", x, b, w, t, as_non_leaf(weight), *parts_of(of_x), *parts_of(of))


def edge_correlation(
    a: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    weight: torch.Tensor,
    of_a: EdgeIndex,
    of_x: EdgeIndex,
) -> torch.Tensor:
    """The products of the rows of each edge's two nodes, multiplied with W^T and w: z[e] = w[e] (a[of_a[e]] x[of_x[e]])
    W^T, zeros where one is -1. A derivative of `edge_convolution`, and differentiable as often.

    Args:
        a, x: (M, C), (M', C), float32 or float64.
        w: (E,). weight: W (K, C).
        of_a, of_x: of E edges and M nodes, or M'.

    Returns:
        (E, K).

    Raises:
        RuntimeError: as for `edge_convolution`.
    """
    none = w.new_empty(w.shape[0], 0)
    both = *parts_of(of_a), *parts_of(of_x)
    return call("edge_convolution_edges", a[:, None], x, none, w, as_non_leaf(weight), *both)[0]


@register_fake("edge_convolution")
def _(x: Any, b: Any, w: Any, t: Any, weight: Any, *index: Any) -> torch.Tensor:
    return x.new_empty(index[-1].shape[0] - 1, 1 + t.shape[1], x.shape[1])


@register_fake("edge_convolution_nodes")
def _(a: Any, b: Any, w: Any, t: Any, weight: Any, *index: Any) -> torch.Tensor:
    return a.new_empty(index[-1].shape[0] - 1, a.shape[2])


@register_fake("edge_convolution_edges")
def _(a: Any, x: Any, b: Any, w: Any, weight: Any, *index: Any) -> tuple[torch.Tensor, ...]:
    edges = w.shape[0]
    shapes = (edges, weight.shape[0]), (edges if b.shape[1] else 0,), (edges, a.shape[1] - 1)
    return tuple(w.new_empty(shape) for shape in shapes)


@register_fake("edge_convolution_own")
def _(a: Any, own: Any, x: Any, b: Any, w: Any, t: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return b.new_empty(b.shape), w.new_empty(w.shape), t.new_empty(t.shape)


@register_fake("edge_convolution_weight")
def _(a: Any, x: Any, b: Any, *args: Any) -> torch.Tensor:
    return a.new_empty(b.shape[1], a.shape[1])


class _Form:
    """L's derivatives, of the arguments and the two indices, a's and x's."""

    def __init__(self, of_a: Any, of_x: Any) -> None:
        self.both = *of_a, *of_x
        self.turned = *of_x, *of_a

    def by_a(self, x: Any, b: Any, w: Any, t: Any, weight: Any) -> torch.Tensor:
        return call("edge_convolution", x, b, w, t, weight, *self.turned)

    def by_x(self, a: Any, b: Any, w: Any, t: Any, weight: Any) -> torch.Tensor:
        return call("edge_convolution_nodes", a, b, w, t, weight, *self.both)

    def by_edges(
        self, needs: Sequence[bool], a: Any, x: Any, b: Any, w: Any, weight: Any
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients by b, w and t, as far as needed."""
        if not any(needs):
            return None, None, None
        turns = needs[2] or a.is_cuda  # there copying the first sums takes longer than computing the others
        by_b, by_w, by_t = call(
            "edge_convolution_edges", a if turns else a[:, :1], x, b, w, weight, *self.both
        )
        return by_b, by_w if b.shape[1] else torch.zeros_like(w), by_t if turns else None

    def by_weight(self, a: Any, x: Any, b: Any, w: Any) -> torch.Tensor:
        return call("edge_convolution_weight", a[:, 0], x, b, w, *self.both)


def _sums_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (x, b, w, t, weight), form, g = args[:5], _Form(args[8:], args[5:8]), grads[0]
    by_x = form.by_x(g, b, w, t, weight) if needs[0] else None
    by_edges = form.by_edges(needs[1:4], g, x, b, w, weight)
    return by_x, *by_edges, form.by_weight(g, x, b, w) if needs[4] else None


def _nodes_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (a, b, w, t, weight), form, g = args[:5], _Form(args[5:8], args[8:]), grads[0]
    by_a = form.by_a(g, b, w, t, weight) if needs[0] else None
    by_edges = form.by_edges(needs[1:4], a, g, b, w, weight)
    return by_a, *by_edges, form.by_weight(a, g, b, w) if needs[4] else None


def _edges_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (a, x, b, w, weight), form = args[:5], _Form(args[5:8], args[8:])
    of_b, of_w, t = grads
    # In L the gradients by the results replace b and w: w_e of_b + of_w b instead of w_e b_e.
    rows, factor = of_b, w
    if b.shape[1]:
        rows, factor = w[:, None] * of_b + of_w[:, None] * b, torch.ones_like(w)
    by_a = form.by_a(x, rows, factor, t, weight) if needs[0] else None
    by_x = form.by_x(a, rows, factor, t, weight) if needs[1] else None
    of_edges = needs[2], needs[3], False
    by_b, by_w, _ = form.by_edges(of_edges, a, x, of_b, of_w if b.shape[1] else w, weight)
    return (
        by_a,
        by_x,
        by_b if b.shape[1] else None,
        by_w,
        form.by_weight(a, x, rows, factor) if needs[4] else None,
    )


def _weight_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (a, x, b, w), form, weight = args[:4], _Form(args[4:7], args[7:]), grads[0]
    none, of_a = w.new_empty(w.shape[0], 0), a[:, None]
    by_a = form.by_a(x, b, w, none, weight)[:, 0] if needs[0] else None
    by_x = form.by_x(of_a, b, w, none, weight) if needs[1] else None
    by_b, by_w, _ = form.by_edges((needs[2], needs[3], False), of_a, x, b, w, weight)
    return by_a, by_x, by_b, by_w


register_formula("edge_convolution", _sums_formula, range(5))
register_formula("edge_convolution_nodes", _nodes_formula, range(5))
register_formula("edge_convolution_edges", _edges_formula, range(5))
register_formula("edge_convolution_weight", _weight_formula, range(4))
