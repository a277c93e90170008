"""Edges after the messages that some of them received."""

from typing import Any

import torch

from mdops.ops._register import call, last_derivative, register_fake_like, register_formula
from mdops.ops.activation import kernel_code
from mdops.ops.graph import EdgeIndex


def edge_update(
    z: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    of: EdgeIndex,
    activation: str,
) -> torch.Tensor:
    """base_e + c f(z_r), with the row r of an edge; and base_e + c f(b) for edges without a row. Scale c and bias b are
    constants. Differentiable once, in z and base.

    Args:
        z: (R, W), float32 or float64. base: (E, W). scale, bias: (W,).
        of: of R rows and E edges, without an order: at most one per edge, or each adds c (f(z) - f(b)).
        activation: f, by DeePMD-kit's name (`mdops.ops.activation`).

    Returns:
        (E, W).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a CPU) an index is wrong. A GPU answers NaN there.
    """
    found: torch.Tensor = call(
        "edge_update", base, z, scale, bias, of.nodes, of.offsets, *kernel_code(activation)
    )
    return found


register_fake_like("edge_update", 0)
register_fake_like("edge_update_backward", 1)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    by_z = last_derivative("edge_update_backward", grads[0], *args[1:]) if needs[1] else None
    return grads[0], by_z


register_formula("edge_update", _formula, (0, 1))
