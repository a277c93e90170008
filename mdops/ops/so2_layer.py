"""A layer equivariant to rotations about an edge's axis: a product within each |m|, gated by its scalars, and added."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from mdops._library import has_hopper_kernels
from mdops.ops._register import (
    as_non_leaf,
    call,
    last_derivative,
    register_fake,
    register_fake_like,
    register_formula,
    register_formulas_by,
)
from mdops.ops.edge_frames import MOST_FRAME_DEGREE
from mdops.ops.graph import EdgeIndex, parts_of

# Compute capabilities with at most 99 kB of shared memory per block: the weights of degree 2 take 144.
_LITTLE_MEMORY = (8, 6), (8, 9), (12, 0), (12, 1)


def has_tensor_cores(device: torch.device, degrees: int, channels: int) -> bool:
    """Whether a GPU has kernels by tensor cores for float32 rows of these sizes, which take `matmul`."""
    if channels not in (32, 64) or not 0 < degrees <= 3:
        return False
    if channels == 64 or degrees == 3:  # these need more than even an A100 has
        return has_hopper_kernels(device)
    capability = torch.cuda.get_device_capability(device)
    return capability >= (8, 0) and (degrees == 1 or capability not in _LITTLE_MEMORY)


def kernel_width(device: torch.device, degrees: int, channels: int, groups: int = 1) -> int | None:
    """The channels of rows for which a GPU has kernels by tensor cores: so many, or up to four times as many, padded
    with zeros or with the channels of another group; None: it has none."""
    widths = [width for width in (32, 64) if channels <= width <= 4 * channels]
    if groups > 1 and (degrees, channels) == (3, 32):
        widths.reverse()  # two groups in one row take less time than one after another
    return next((width for width in widths if has_tensor_cores(device, degrees, width)), None)


def goes_by_products(x: torch.Tensor, degrees: int, channels: int, groups: int = 1) -> bool:
    """Whether `so2_layer` of such rows on x's device uses products of matrices, and kernels for gates."""
    if not x.is_cuda:
        return False
    return x.dtype != torch.float32 or kernel_width(x.device, degrees, channels, groups) is None


def fused_width(x: torch.Tensor, degrees: int, channels: int, groups: int = 1) -> int | None:
    """The channels of `so2_layer`'s rows on x's device for rows of so many channels: those of `kernel_width` if a GPU
    has kernels, else as many. None for degree 0."""
    if degrees == 0:
        return None
    if not x.is_cuda or goes_by_products(x, degrees, channels, groups):
        return channels
    return kernel_width(x.device, degrees, channels, groups)


def so2_layer(
    x: torch.Tensor,
    weight: torch.Tensor,
    both: torch.Tensor,
    gate: torch.Tensor | None = None,
    matmul: str = "float32",
    groups: int = 1,
) -> torch.Tensor:
    """The rows of edges in their frames after a layer. With x_0 the rows of m = 0, x_- and x_+ those of m = -1 and 1:

        z_0 = x_0 W,   z_- = x_- U - x_+ V,   z_+ = x_- V + x_+ U
        y_lm = x_lm + z_lm sigmoid(s G_l)        with s = z_00, and 1 instead of G_0

    On a CPU, and where a GPU has a kernel for such rows, no product and no gate goes through memory; else products do.
    Second derivatives, and those by weights, use PyTorch's operations.

    Args:
        x: (E, 3 L + 1, C), float32 or float64: L + 1 rows of m = 0, by rising l, then L of m = -1, and L of m = 1.
        weight: W ((L + 1) C, (L + 1) C).
        both: U and V side by side, (L C, 2 L C).
        gate: the G_l side by side, (C, L C); None: y = x + z.
        matmul: the least accuracy of float32's products, as in `mlp`; a CPU, and a GPU without kernels of its own for
            such rows, have float32's. Those of second derivatives, and of derivatives by weights, are PyTorch's.
        groups: of equal numbers of channels side by side. The weights between two groups must be zeros: a kernel may
            leave out their products.

    Returns:
        (E, 3 L + 1, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match, `matmul` is not known on the device, or the channels are
            not so many equal groups.
    """
    gates = x.new_empty(0, 0) if gate is None else as_non_leaf(gate)
    return call("so2_layer", x, as_non_leaf(weight), as_non_leaf(both), gates, matmul, groups)


def has_fused_messages(x: torch.Tensor, degrees: int, channels: int, layers: int, gates: int) -> bool:
    """Whether `so2_messages` of rows on x's device, with gates in the first layers, takes less time than its separate
    ops: on a CPU if only the last layer has none; a Hopper GPU then has one kernel for rows of some sizes."""
    if layers < 1 or gates != layers - 1:
        return False
    if not x.is_cuda:
        return 0 < degrees <= MOST_FRAME_DEGREE
    narrow = x.dtype == torch.float32 and (channels, degrees) == (32, 2) and 2 <= layers <= 4
    return narrow and has_hopper_kernels(x.device)


def so2_messages(
    vectors: torch.Tensor,
    mixture: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    of_neighbor: EdgeIndex,
    of_center: EdgeIndex,
    weights: Sequence[torch.Tensor],
    both: Sequence[torch.Tensor],
    gates: Sequence[torch.Tensor],
    matmul: str = "float32",
) -> torch.Tensor:
    """The sums of messages over an atom's edges: `edge_rotate` of neighbours with the matrices of `edge_frames` after
    `order_mix`, several `so2_layer` in sequence, and `edge_rotate_back` with weights. Differentiable once, in
    `vectors`, `mixture`, x and `weight`; the weights of layers are constants. If a GPU has one kernel for all of it
    (`has_fused_messages`) the last layer's output is the only array of edges in memory; only that is saved for the
    gradient, and the backward pass recomputes the layers. A CPU processes a few atoms at a time, and the last layer
    once per atom, as by `order_moments`; it saves the outputs of the layers before.

    Args:
        vectors: (E, 3), float32 or float64, not zero; of matrices with |m| up to 1.
        mixture: (E, Q), of degree L and the orders 0 and 1, as `numbers` of `order_mix`.
        x: (N, (L + 1)^2, C), of neighbours; L is 6 at most.
        weight: (E, 1).
        of_neighbor, of_center: of E edges, and N neighbours or M atoms.
        weights, both: W and [U V] of each layer.
        gates: of the first layers; those behind them have none.
        matmul: as of `so2_layer`.

    Returns:
        (M, (L + 1)^2, C).

    Raises:
        RuntimeError: as of these ops, or there are not as many `weights` as `both`, or more gates.
    """
    lists = ([one.detach() for one in given] for given in (weights, both, gates))
    given = vectors, mixture, x, weight, *parts_of(of_neighbor), *parts_of(of_center), *lists, matmul
    sums: torch.Tensor = torch.ops.mdops.so2_messages(*given)[0]
    return sums


def _by_pytorch(
    x: torch.Tensor,
    weight: torch.Tensor,
    both: torch.Tensor,
    gate: torch.Tensor,
    matmul: str = "float32",
    groups: int = 1,
) -> torch.Tensor:
    rows, channels = x.shape[1:]
    degrees = (rows - 1) // 3
    middle, negative, positive = (one.flatten(1) for one in x.split([degrees + 1, degrees, degrees], 1))
    u, v = both.chunk(2, 1)
    z = torch.cat([middle @ weight, negative @ u - positive @ v, negative @ v + positive @ u], 1)
    if gate.numel():
        scalars = z[:, :channels]
        factors = torch.cat([scalars, scalars @ gate], 1).sigmoid()
        z = z * torch.cat([factors, *[factors[:, channels:]] * 2], 1)
    return x + z.view(x.shape)


register_fake_like("so2_layer", 0)
register_fake_like("so2_layer_backward", 1)


register_formulas_by("so2_layer", _by_pytorch, range(4), takes_result=True)


@register_fake("so2_messages")
def _(vectors: Any, mixture: Any, x: Any, weight: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    atoms, layers, degree = args[5].shape[0] - 1, len(args[6]), math.isqrt(x.shape[1]) - 1
    gated = [k < len(args[8]) and args[8][k].numel() > 0 for k in range(layers)]
    by_nodes = x.device.type == "cpu" and args[4] is None and not gated[-1] and all(gated[:-1])
    kept = layers - 1 if by_nodes else 1
    return x.new_empty(atoms, *x.shape[1:]), x.new_empty(kept, vectors.shape[0], 3 * degree + 1, x.shape[2])


register_fake_like("so2_messages_backward", 2, 3, 4, 5)


def _messages_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    *given, y = args
    if grads[0] is None:
        return None, None, None, None
    found: tuple[Any, ...] = last_derivative("so2_messages_backward", grads[0], y, *given)
    return found


register_formula("so2_messages", _messages_formula, range(4), constant=(1,), saved=(1,))
