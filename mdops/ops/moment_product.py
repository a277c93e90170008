"""Spline moments times the tables of their centres' types: from A to T, and back."""

from typing import Any

import torch

from mdops.ops._register import call, register_fake, register_formula


def moment_product(
    moments: torch.Tensor, tables: torch.Tensor, rows: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """T[r] = A[rows[r]]^T C[kinds[rows[r]]]: rows of T in another order than the atoms, such as sorted by type.

    Args:
        moments: A, (N, P, 4 or any), float32 or float64.
        tables: C of each kind, (n, P, M), of moments' dtype.
        rows: (R,) int32, the atom of each row of T: every atom at most once. It is fastest with rows sorted by kind.
        kinds: (N,) int32, the kind of each atom; -1 for atoms that have no row.

    Returns:
        (R, 4, M); differentiable in moments and tables.

    Raises:
        RuntimeError: an index is out of range (a GPU answers with NaN), or a shape or dtype is wrong.
    """
    return call("moment_product", moments, tables, rows, kinds)


@register_fake("moment_product")
def _(moments: Any, tables: Any, rows: Any, kinds: Any) -> torch.Tensor:
    return moments.new_empty(rows.shape[0], moments.shape[2], tables.shape[2])


@register_fake("moment_product_backward")
def _(grad: Any, tables: Any, rows: Any, kinds: Any) -> torch.Tensor:
    return grad.new_empty(kinds.shape[0], tables.shape[1], grad.shape[1])


def _by_tables(moments: torch.Tensor, grad: torch.Tensor, args: Any) -> torch.Tensor:
    """The gradient by the tables of <grad, T>."""
    tables, rows, kinds = args
    atoms = rows.long()
    of_rows = moments.index_select(0, atoms) @ grad
    return torch.zeros_like(tables).index_add(0, kinds.index_select(0, atoms).long(), of_rows)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    (grad,), (moments, *others) = grads, args
    by_moments = call("moment_product_backward", grad, *others) if needs[0] else None
    return by_moments, _by_tables(moments, grad, others) if needs[1] else None


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    """Both ops are linear in each of their factors."""
    (change,), (grad, *others) = grads, args
    by_grad = moment_product(change, *others) if needs[0] else None
    return by_grad, _by_tables(change, grad, others) if needs[1] else None


register_formula("moment_product", _formula, (0, 1))
register_formula("moment_product_backward", _backward_formula, (0, 1))
