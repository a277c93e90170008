"""Rows of the environment matrix at the edges of a graph."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.ops._register import apart, call, register_fake, register_formula
from mdops.ops.switch_curve import switch_curve


class EdgeEnvironment(NamedTuple):
    """Data of E edges, with zeros after the last one.

    Attributes:
        lengths: (E, 1), the first numbers of the rows, and vectors: (E, 3), the others.
        weight: (E, 1), the switch. means: (E, 1), `weight` times a factor.
        turning: (E, 3), `vectors` times `weight` times another.
    """

    lengths: torch.Tensor
    vectors: torch.Tensor
    weight: torch.Tensor
    means: torch.Tensor
    turning: torch.Tensor


def edge_environment(
    displacements: torch.Tensor,
    slots: torch.Tensor,
    edge_of_slot: torch.Tensor,
    types: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    *,
    smooth: float,
    cutoff: float,
    protection: float = 0.0,
    of_means: float = 1.0,
    of_turning: float = 1.0,
) -> EdgeEnvironment:
    """The rows of a graph's edges, and the weights of sums over edges. Differentiable any number of times in the pair
    vectors, from the second derivative on by PyTorch's operations.

    Args:
        displacements: (N, K, 3), A, float32 or float64, the pair vectors of the graph's list.
        slots: (E,) int32, n K + k, and edge_of_slot: (N, K) int32, of the graph (`NeighborGraph`).
        types: (N,) int32, of the atoms; -1 is a virtual atom.
        mean: (ntypes,), of the first number of a row, and std: (ntypes, 2), of the first and of the others.
        smooth: the distance where the switch begins to fall, A. cutoff: where it is 0.
        protection: added to distances in denominators, A.
        of_means, of_turning: the factors.

    Raises:
        RuntimeError: a shape, dtype, device or number does not match, or (on a CPU) an index is out of range. A GPU
            answers NaN there.
    """
    given = displacements, slots, edge_of_slot, types, mean, std
    numbers = smooth, cutoff, protection, of_means, of_turning
    return EdgeEnvironment(*call("edge_environment", *given, *(float(x) for x in numbers)))


@register_fake("edge_environment")
def _(displacements: Any, slots: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(displacements.new_empty(slots.shape[0], width) for width in (1, 3, 1, 1, 3))


@register_fake("edge_environment_backward")
def _(a: Any, b: Any, c: Any, d: Any, e: Any, displacements: Any, *args: Any) -> torch.Tensor:
    return displacements.new_empty(displacements.shape)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return (call("edge_environment_backward", *grads, *args),)


def _by_pytorch(d: Any, slots: Any, types: Any, mean: Any, std: Any, numbers: Sequence[float]) -> Any:
    """The same by operations that are differentiable any number of times."""
    smooth, cutoff, protection, of_means, of_turning = numbers
    there, at = (slots >= 0)[:, None], slots.long().clamp(min=0)
    kinds = types.long().clamp(min=0)[at // d.shape[1]]
    vectors = torch.where(there, d.flatten(0, 1).index_select(0, at), 1.0)  # finite without an edge
    r = vectors.norm(dim=1, keepdim=True)
    w, inverse = switch_curve(r, smooth, cutoff), 1 / (r + protection)
    rows = vectors * (inverse**2 * w) / std[kinds, 1:]
    lengths = (inverse * w - mean[kinds, None]) / std[kinds, :1]
    found = lengths, rows, w, w * of_means, rows * (w * of_turning)
    return tuple(torch.where(there, x, 0.0) for x in found)


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        given, leaves = apart(args, range(6))
        *by, d, slots, _, types, mean, std = given[:11]
        rows = _by_pytorch(d, slots, types, mean, std, given[11:])
        (first,) = torch.autograd.grad(rows, d, by, create_graph=True)
        wanted = [leaf for leaf, need in zip(leaves, needs, strict=True) if need]
        found = iter(torch.autograd.grad(first, wanted, grads, create_graph=create, materialize_grads=True))
    return tuple(next(found) if need else None for need in needs)


register_formula("edge_environment", _formula, (0,))
register_formula("edge_environment_backward", _backward_formula, range(6))
