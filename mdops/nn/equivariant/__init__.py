"""Parts of equivariant nets: spherical harmonics, rotations into the frame of an edge, products
by degree and by blocks of equal |m|, norms, gates and products on grids (docs/reference/equivariant.md)."""

from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.grid import GridNet
from mdops.nn.equivariant.indices import by_order, coefficients, places
from mdops.nn.equivariant.linear import ChannelLinear, DegreeLinear, GroupLinear, OrderLinear, draw_weights
from mdops.nn.equivariant.norm import DegreeNorm, OrderNorm, ScalarNorm
from mdops.nn.equivariant.rotation import frame_quaternions, spherical_harmonics, wigner_rows

__all__ = [
    "ChannelLinear",
    "DegreeLinear",
    "DegreeNorm",
    "Gate",
    "GridNet",
    "GroupLinear",
    "OrderLinear",
    "OrderNorm",
    "ScalarNorm",
    "by_order",
    "coefficients",
    "draw_weights",
    "frame_quaternions",
    "places",
    "spherical_harmonics",
    "wigner_rows",
]
