"""Pair vectors, and forces and virials from the gradients by them."""

from typing import Any

import torch

from mdops.ops._register import call, register_fake, register_fake_like, register_formula


def displacements(
    positions: torch.Tensor,
    cell: torch.Tensor,
    batch: torch.Tensor,
    neighbors: torch.Tensor,
    images: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Pair vectors x_j - x_i + (a, b, c) . cell, in A.

    Computed in float64 and then cast, so that float32 loses nothing in a large cell. Differentiable to any order
    in `positions` and `cell`.

    Args:
        positions: (N, 3) float64, A.
        cell: (S, 3, 3) float64, rows are lattice vectors, A.
        batch: (N,) int32, the system of each atom.
        neighbors: (N, K) int32, -1 where a row has no neighbour.
        images: (N, K) int32, packed periodic images (`mdops.ops.pack_images`).
        dtype: torch.float32 or torch.float64.

    Returns:
        (N, K, 3) of `dtype`, zero where `neighbors` is -1.

    Raises:
        RuntimeError: a shape, dtype, device or index that does not fit; the message names the argument.
    """
    return call("displacements", positions, cell, batch, neighbors, images, dtype)


def pair_forces(
    grad: torch.Tensor,
    displacements: torch.Tensor,
    batch: torch.Tensor,
    neighbors: torch.Tensor,
    num_systems: int,
    *,
    of_atoms: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Forces, virials and per-atom virials from the pair gradients g_ij = dE/dd_ij.

    F_i = sum_j g_ij - sum_j g_ji and W = -sum_ij d_ij (x) g_ij = -dE/d(strain), in eV. As in DeePMD-kit, a
    pair's virial is assigned to its neighbour j. Sums are in float64. Differentiable to any order.

    Args:
        grad: (N, K, 3) float32 or float64, eV/A.
        displacements: (N, K, 3), the same dtype, A.
        batch: (N,) int32.
        neighbors: (N, K) int32.
        num_systems: S.
        of_atoms: whether per-atom virials are computed, which take most of a GPU's time here.

    Returns:
        forces (N, 3), virial (S, 3, 3) and atom_virial (N, 3, 3), or (0, 3, 3) if not wanted; all float64.
    """
    return call("pair_forces", grad, displacements, batch, neighbors, num_systems, of_atoms)


@register_fake("displacements")
def _(positions: Any, cell: Any, batch: Any, neighbors: Any, images: Any, dtype: torch.dtype) -> torch.Tensor:
    return positions.new_empty((*neighbors.shape, 3), dtype=dtype)


@register_fake("displacements_backward")
def _(grad: Any, batch: Any, neighbors: Any, images: Any, num_systems: int) -> tuple[torch.Tensor, ...]:
    double = torch.float64
    return (
        grad.new_empty((neighbors.shape[0], 3), dtype=double),
        grad.new_empty((num_systems, 3, 3), dtype=double),
    )


register_fake_like("pair_forces_backward", 3, 3)


@register_fake("pair_forces")
def _(
    grad: Any, displacements: Any, batch: Any, neighbors: Any, num_systems: int, of_atoms: bool = True
) -> tuple[torch.Tensor, ...]:
    n, double = neighbors.shape[0], torch.float64
    return (
        grad.new_empty((n, 3), dtype=double),
        grad.new_empty((num_systems, 3, 3), dtype=double),
        grad.new_empty((n if of_atoms else 0, 3, 3), dtype=double),
    )


def _displacements_formula(needs: Any, grads: Any, args: Any) -> Any:
    _, cell, batch, neighbors, images, _ = args
    return call("displacements_backward", grads[0], batch, neighbors, images, cell.shape[0])


def _displacements_backward_formula(needs: Any, grads: Any, args: Any) -> Any:
    grad, batch, neighbors, images, _ = args
    return (call("displacements", grads[0], grads[1], batch, neighbors, images, grad.dtype),)


def _pair_forces_formula(needs: Any, grads: Any, args: Any) -> Any:
    grad, d, batch, neighbors, _, *rest = args
    forces, virial, of_atoms = grads
    if rest == [False]:
        of_atoms = forces.new_zeros(len(forces), 3, 3)
    return call("pair_forces_backward", forces, virial, of_atoms, grad, d, batch, neighbors)


def _pair_forces_backward_formula(needs: Any, grads: Any, args: Any) -> Any:
    """With u, w the tangents of the results and v the sum of a pair's virial gradients, the op is the gradient of
    sum u.(f_i - f_j - d.v) - w.v.g: the sums of `pair_forces` for f and v, and itself for g and d."""
    u, w = grads
    f, virial, atom_virial, g, d, batch, neighbors = args
    lists, systems = (batch, neighbors), virial.shape[0]
    forces, by_d, atoms_by_d = call("pair_forces", u, d, *lists, systems)
    _, by_w, atoms_by_w = call("pair_forces", g, w, *lists, systems)
    no_forces = torch.zeros_like(f)
    grad_g, _ = call("pair_forces_backward", no_forces, virial, atom_virial, g, w, *lists)
    _, grad_d = call("pair_forces_backward", no_forces, virial, atom_virial, u, d, *lists)
    return forces, by_d + by_w, atoms_by_d + atoms_by_w, grad_g, grad_d


register_formula("displacements", _displacements_formula, (0, 1))
register_formula("displacements_backward", _displacements_backward_formula, (0,))
register_formula("pair_forces", _pair_forces_formula, (0, 1))
register_formula("pair_forces_backward", _pair_forces_backward_formula, (0, 1, 2, 3, 4))
