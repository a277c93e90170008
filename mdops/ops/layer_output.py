"""The part of a dense layer after its product, with written-out first and second derivatives."""

from typing import Any

import torch

from mdops.ops._register import call, is_by_pytorch, register_fake, register_fake_like, register_formula
from mdops.ops.activation import kernel_code, of_code


def layer_output(z: torch.Tensor, x: torch.Tensor | None, activation: str) -> torch.Tensor:
    """f(z) + (x, x, ..), with x repeated to the width of z. Differentiable any number of times; each derivative up to
    the second is one pass.

    Args:
        z: (N, C), float32 or float64. x: (N, I), I a divisor of C, of z's dtype; None: nothing is added.
        activation: f, by DeePMD-kit's name (`mdops.ops.activation`).

    Returns:
        (N, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match.
    """
    if x is None and activation.lower() == "tanh" and z.device.type == "cpu" and is_by_pytorch():
        return torch.tanh(z)
    added = z.new_empty(z.shape[0], 0) if x is None else x
    return call("layer_output", z, added, *kernel_code(activation))


register_fake_like("layer_output", 0)


@register_fake("layer_output_backward")
def _(grad: Any, z: Any, inputs: int, *args: Any) -> tuple[torch.Tensor, ...]:
    return z.new_empty(z.shape), z.new_empty(z.shape[0], inputs)


register_fake_like("layer_output_backward_backward", 3, 3)


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    z, x, *kind = args
    found: tuple[Any, ...] = call("layer_output_backward", grads[0], z, x.shape[1], *kind)
    return found


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = call("layer_output_backward_backward", *grads, *args)
    return found


def _third_formula(needs: Any, grads: Any, args: Any) -> Any:
    """The gradients by PyTorch's own operations, for derivatives without a kernel."""
    *given, inputs, code, threshold = args
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases of the arguments, so that a gradient is for this place alone.
        leaves = [v.view_as(v) if v.requires_grad else v.detach().requires_grad_() for v in given]
        along_z, along_x, grad, z = leaves
        slope, curve = _slopes(of_code(code, threshold), z)
        by_grad = slope * along_z
        if inputs:
            by_grad = by_grad + along_x.repeat(1, z.shape[1] // inputs)
        results = by_grad, curve * along_z * grad
        return torch.autograd.grad(results, leaves, grads, create_graph=create, materialize_grads=True)


def _slopes(f: Any, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f' and f'', differentiable."""
    (slope,) = torch.autograd.grad(f(z).sum(), z, create_graph=True)
    if not slope.requires_grad:
        return slope, torch.zeros_like(z)
    (curve,) = torch.autograd.grad(slope.sum(), z, create_graph=True, materialize_grads=True)
    return slope, curve


register_formula("layer_output", _formula, (0, 1))
register_formula("layer_output_backward", _backward_formula, (0, 1))
register_formula("layer_output_backward_backward", _third_formula, (0, 1, 2, 3))
