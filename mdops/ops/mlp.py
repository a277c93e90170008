"""Nets of dense layers, forward, backward, and backward once more."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.ops._register import refuse_tangents, register_fake, register_formula
from mdops.ops.activation import kernel_code, of_code


def mlp(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    activation: str | Sequence[str] = "tanh",
    timesteps: Sequence[torch.Tensor | None] | None = None,
    residual: bool | Sequence[bool] = True,
    matmul: str = "float32",
) -> torch.Tensor:
    """A net of the form of DeePMD-kit's fitting nets, on rows of numbers; differentiable any number of times.

    For its input x layer n gives  t_n f(x W_n + b_n) + r,  where r is x if the layer is `residual` and as wide as its
    input, [x, x] if it is twice as wide, and 0 otherwise. The last layer is linear, x W + b.

    Args:
        x: (N, D), float32 or float64.
        weights: of each layer, (inputs, outputs); 1 to 17 layers.
        biases: of each layer, (outputs,), or None for one that has none; None: of none.
        activation: f by DeePMD-kit's name (`mdops.ops.activation`), of all hidden layers or of each.
        timesteps: t of each hidden layer, (outputs,), or None for 1; None: of none.
        residual: of all hidden layers, or of each.
        matmul: the least accuracy of float32's products: "float32", "bf16x6", "bf16x3" or "bf16", on a GPU also "tf32".
            A device without such units takes the next better way. On a GPU this op and its derivatives have float32's
            accuracy by any name: large products by tensor cores in two parts (`mdops.ops.linear`), others by cuBLAS, to
            which PyTorch's own setting for TF32 applies (torch.set_float32_matmul_precision).

    Returns:
        (N, outputs of the last layer), of x's dtype.

    Raises:
        ValueError: numbers of layers do not match.
        RuntimeError: a shape, dtype or device does not match, or `matmul` is not known on the device.
    """
    refuse_tangents("mlp", (x, *weights))
    return torch.ops.mdops.mlp(*_arguments(x, weights, biases, activation, timesteps, residual), matmul)


def mlp_value_and_gradient(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None = None,
    *,
    activation: str | Sequence[str] = "tanh",
    timesteps: Sequence[torch.Tensor | None] | None = None,
    residual: bool | Sequence[bool] = True,
    matmul: str = "float32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`mlp`, and the gradient by x of the sum of its first output over all rows: one pass, for energies and forces.

    Arguments and errors are `mlp`'s. On a GPU in float32 a net of one output, with one activation function and a first
    layer that does not add its input, uses the kernels of models' nets, with its weights packed in the call: on Hopper
    one kernel from x to the gradient for up to 512 neurons a layer, or for few rows if the net fits a cluster's shared
    memory; for wider nets, or on other chips, one kernel per product. If that would take longer, by a count of bytes
    and operations, as for many rows of a few columns or few rows of very large weights, and for all other nets, it
    works like `mlp`. Those kernels multiply in two parts of float16 (22 bits) for "float32", "bf16x6" and "bf16x3", in
    one (11 bits) for "tf32" and "bf16". There a row with a NaN or infinite number gives NaN.

    Returns:
        value (N, outputs), gradient (N, D); both differentiable.
    """
    arguments = _arguments(x, weights, biases, activation, timesteps, residual)
    refuse_tangents("mlp_value_and_gradient", (x, *weights))
    return torch.ops.mdops.mlp_value_and_gradient(*arguments, matmul)


def _arguments(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None] | None,
    activation: str | Sequence[str],
    timesteps: Sequence[torch.Tensor | None] | None,
    residual: bool | Sequence[bool],
) -> tuple[Any, ...]:
    """The ops' arguments up to `matmul`: lists with an entry per layer, absent tensors as empty ones."""
    layers = len(weights)
    names = [activation] * (layers - 1) if isinstance(activation, str) else list(activation)
    adds = [residual] * (layers - 1) if isinstance(residual, bool) else list(residual)
    b = [None] * layers if biases is None else list(biases)
    t = [None] * (layers - 1) if timesteps is None else list(timesteps)
    if not (len(names) == len(adds) == len(t) == layers - 1 and len(b) == layers):
        raise ValueError(
            f"a net of {layers} layers has as many biases, and one activation, timestep and residual fewer; "
            f"given are {len(b)}, {len(names)}, {len(t)} and {len(adds)}"
        )
    widths = [x.shape[-1], *(w.shape[-1] for w in weights)]
    flags = [int(adds[n] and widths[n + 1] in (widths[n], 2 * widths[n])) for n in range(layers - 1)]
    codes = [kernel_code(name) for name in names]
    nothing = x.new_empty(0)
    return (
        x,
        list(weights),
        [nothing if v is None else v for v in b],
        [*(nothing if v is None else v for v in t), nothing],
        flags,
        [code for code, _ in codes],
        [threshold for _, threshold in codes],
    )


@register_fake("mlp")
def _(x: Any, weights: Any, *args: Any) -> torch.Tensor:
    return x.new_empty(x.shape[0], weights[-1].shape[1])


@register_fake("mlp_value_and_gradient")
def _(x: Any, weights: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return x.new_empty(x.shape[0], weights[-1].shape[1]), x.new_empty(x.shape)


def _blank_gradients(x: Any, lists: Sequence[Any], with_weights: bool) -> list[list[torch.Tensor]]:
    return [[v.new_empty(v.shape if with_weights else 0) for v in values] for values in lists]


@register_fake("mlp_backward")
def _(grad: Any, x: Any, *args: Any) -> tuple[Any, ...]:
    return x.new_empty(x.shape), *_blank_gradients(x, args[:3], args[-1])


@register_fake("mlp_backward_backward")
def _(direction: Any, grad: Any, grad_value: Any, x: Any, *args: Any) -> tuple[Any, ...]:
    return grad.new_empty(grad.shape), x.new_empty(x.shape), *_blank_gradients(x, args[:3], args[-1])


# The arguments with gradients: x, weights, biases, timesteps; backward ops have some before them.
_NET = (0, 1, 2, 3)


def _wanted(needs: Sequence[Any]) -> bool:
    """Whether any of the lists needs gradients."""
    return any(any(need) if isinstance(need, (list, tuple)) else need for need in needs)


def _mlp_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return torch.ops.mdops.mlp_backward(grads[0], *args, _wanted(needs[1:]))


def _value_and_gradient_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    """The gradients from both results in one pass: the gradient is `mlp_backward` of (1, 0, ...)."""
    first = torch.zeros_like(grads[0])
    first[:, 0] = 1
    return torch.ops.mdops.mlp_backward_backward(grads[1], first, grads[0], *args, _wanted(needs[1:]))[1:]


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    """The gradients of <u, grad_x> + <v, gradients of the layers>. If v is absent, as in a loss on forces, by an op."""
    direction, *of_layers = grads
    if all(v is None or not v.numel() for values in of_layers for v in values or []):
        grad, *others, _ = args
        nothing = torch.zeros_like(grad)
        return torch.ops.mdops.mlp_backward_backward(direction, grad, nothing, *others, _wanted(needs[2:]))
    return _by_autograd(_reference_backward, args, 5, grads)


def _backward_backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    return _by_autograd(_reference_backward_backward, args, 7, grads)


def _by_autograd(function: Any, args: Any, differentiable: int, grads: Any) -> tuple[Any, ...]:
    """The gradients by the first arguments with PyTorch's own operations, for derivatives without a kernel."""
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases of the arguments, so that a gradient is for this place alone.
        leaves = [_views(value) for value in args[:differentiable]]
        outputs, weights = _pairs(function(*leaves, *args[differentiable:]), grads)
        flat = [v for value in leaves for v in (value if isinstance(value, list) else [value])]
        found = torch.autograd.grad(outputs, flat, weights, create_graph=create, allow_unused=True)
    filled = iter(torch.zeros_like(v) if g is None else g for v, g in zip(flat, found, strict=True))
    return tuple([next(filled) for _ in v] if isinstance(v, list) else next(filled) for v in leaves)


def _views(value: Any) -> Any:
    if isinstance(value, list):
        return [_views(v) for v in value]
    return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()


def _pairs(results: Any, grads: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results that depend on the arguments and have a gradient, and these gradients."""
    flat, given = [], []
    for result, grad in zip(results, grads, strict=True):
        many = isinstance(result, list)
        for r, g in zip(result if many else [result], grad or [] if many else [grad], strict=True):
            if g is not None and r.requires_grad and r.numel():
                flat.append(r)
                given.append(g.contiguous())
    return flat, given


def _reference(x: Any, weights: Any, biases: Any, timesteps: Any, residual: Any, *how: Any) -> torch.Tensor:
    """`mlp` by PyTorch's own operations."""
    activations, thresholds = how[:2]
    for n, (w, b, t) in enumerate(zip(weights, biases, timesteps, strict=True)):
        y = x @ w + b if b.numel() else x @ w
        if n < len(activations):
            y = of_code(activations[n], thresholds[n])(y)
            y = y * t if t.numel() else y
            if residual[n]:
                y = y + (x if y.shape == x.shape else torch.cat([x, x], dim=1))
        x = y
    return x


def _reference_backward(grad: Any, x: Any, weights: Any, biases: Any, timesteps: Any, *how: Any) -> Any:
    """`mlp_backward`, differentiable."""
    leaves = [x, *weights, *biases, *timesteps]
    value = _reference(x, weights, biases, timesteps, *how)
    found = torch.autograd.grad(value, leaves, grad, create_graph=True, allow_unused=True)
    filled = [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, found, strict=True)]
    layers = len(weights)
    return (filled[0], *(filled[1 + k * layers : 1 + (k + 1) * layers] for k in range(3)))


def _reference_backward_backward(direction: Any, grad: Any, grad_value: Any, *args: Any) -> Any:
    """`mlp_backward_backward`, differentiable."""
    x, weights, biases, timesteps, *how = args
    leaves = [grad, x, *weights, *biases, *timesteps]
    by_x = _reference_backward(grad, x, weights, biases, timesteps, *how)[0]
    value = _reference(x, weights, biases, timesteps, *how)
    found = torch.autograd.grad(
        [by_x, value], leaves, [direction, grad_value], create_graph=True, allow_unused=True
    )
    filled = [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, found, strict=True)]
    layers = len(weights)
    return (*filled[:2], *(filled[2 + k * layers : 2 + (k + 1) * layers] for k in range(3)))


register_formula("mlp", _mlp_formula, _NET)
register_formula("mlp_value_and_gradient", _value_and_gradient_formula, _NET)
register_formula("mlp_backward", _backward_formula, (0, 1, 2, 3, 4))
register_formula("mlp_backward_backward", _backward_backward_formula, (0, 1, 2, 3, 4, 5, 6))
