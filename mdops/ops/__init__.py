"""The ops, as functions of tensors; docs/ops.md lists them with their arguments."""

from mdops.ops.displacements import displacements, pair_forces
from mdops.ops.env_mat import env_mat
from mdops.ops.spline_moment import spline_moment

__all__ = ["displacements", "env_mat", "pair_forces", "spline_moment"]
