"""Gates of an atom's rows, and a product of its scalars."""

from typing import Any

import torch
import torch.nn.functional as F

from mdops.ops._register import register_fake, register_fake_like, register_formulas_by


def scalar_gate(x: torch.Tensor, gate: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
    """y_rc = x_rc sigmoid(g_c), in the first row with silu(a_c) b_c added. One kernel each way; second derivatives go
    by PyTorch's operations.

    Args:
        x: (N, R, C), float32 or float64.
        gate: g (N, C). scalars: a and b side by side, (N, 2 C).

    Returns:
        (N, R, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    y: torch.Tensor = torch.ops.mdops.scalar_gate(x, gate, scalars)
    return y


def _by_pytorch(x: torch.Tensor, gate: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
    a, b = scalars.chunk(2, 1)
    y = x * gate.sigmoid()[:, None]
    return torch.cat([y[:, :1] + (F.silu(a) * b)[:, None], y[:, 1:]], 1)


register_fake_like("scalar_gate", 0)


@register_fake("scalar_gate_backward")
def _(grad: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args)


register_formulas_by("scalar_gate", _by_pytorch, range(3), own=3)
