"""Energies of atoms from rows of features by packed fitting nets, for simulation."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.ops._register import register_fake


def fitting_energy(
    features: torch.Tensor,
    types: torch.Tensor,
    nets: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    neurons: Sequence[int],
    residual: Sequence[int],
    activation: int,
    threshold: float = 3.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """e_i = scale net(features_i) + shift, and the gradient of sum_i weight_i e_i by the features, in one pass.

    The nets are those of `hybrid_potential` without a descriptor, and on a GPU use its kernels: one kernel from the
    features to their gradient if the net fits a multiprocessor. For nets that are not packed, and for derivatives
    of the results, use `mlp_value_and_gradient`.

    Args:
        features: (N, E), float32 or float64; on a GPU float32.
        types: (N,) int32; atoms of type -1 have neither energy nor gradient.
        nets: (ntypes, P), or (1, P) for all types: what `hybrid_potential_pack` makes without a descriptor.
        weight: (N,) float64, or (0,) for 1.
        scale, shift: (nets,), (ntypes,), float64, in eV.
        neurons, residual: width of each hidden layer, and whether it adds its input; the first one cannot.
        activation, threshold: of all hidden layers, the code of `mdops.ops.activation`.

    Not differentiable. On a GPU an atom of an unknown type has NaN as its energy.

    Returns:
        atom_energy (N,) float64, gradient (N, E).

    Raises:
        RuntimeError: a shape, dtype or device does not match, `nets` was packed for another net or device, or on a CPU
            a type is not there.
    """
    found: tuple[torch.Tensor, torch.Tensor] = torch.ops.mdops.fitting_energy(
        features, types, nets, weight, scale, shift, list(neurons), list(residual), activation, threshold
    )
    return found


@register_fake("fitting_energy")
def _(features: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return features.new_empty(features.shape[0], dtype=torch.float64), features.new_empty(features.shape)
