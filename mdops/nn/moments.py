"""What every way to compute T of a descriptor returns."""

from typing import NamedTuple

import torch


class Moments(NamedTuple):
    """T of the atoms, and what the neighbours told on the way.

    Attributes:
        t: (N, 4, M), differentiable.
        within: (N, ntypes) int32, neighbours of each type within the cutoff.
        nearest: (N,), the distance to the nearest neighbour in A, the cutoff where there is none.
    """

    t: torch.Tensor
    within: torch.Tensor
    nearest: torch.Tensor
