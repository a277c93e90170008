"""Products, computed on points, of two functions given by coefficients, again as coefficients."""

from typing import Any

import torch

from mdops.ops._register import call, register_fake, register_formula

_MOST_COLUMNS = 64  # coefficients that the tensor cores' kernel has in registers
_RESERVED = 1024  # bytes of each block's shared memory that CUDA reserves


def multiplies_at_points(x: torch.Tensor, points: int, columns: int) -> bool:
    """Whether `grid_product` of x with three matrices of that size takes less time than PyTorch's products: on a GPU
    only with kernels by tensor cores or registers, and with the matrices in shared memory."""
    if not x.is_cuda:
        return True
    has = torch.cuda.get_device_properties(x.device)
    of_all = 3 * 4 * (-(-points // 16) * 16 + 1) * (-(-columns // 16) * 16)  # bytes
    fits = columns <= _MOST_COLUMNS and of_all <= has.shared_memory_per_multiprocessor - _RESERVED
    return x.dtype == torch.float32 and has.major >= 8 and fits


def grid_product(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    u: torch.Tensor,
    v: torch.Tensor,
    by_angles: bool = False,
) -> torch.Tensor:
    """y[n, d, c] = sum_g out[g, d] (sum_e a[g, e] u[n, e, c]) (sum_e b[g, e] v[n, e, c]), without the values at points
    in between.

    Its gradients by u and v are such products, too, so it is differentiable any number of times.

    Args:
        a: (G, D_u), float32 or float64, from coefficients to values at G points. b: (G, D_v). out: (G, D), from
            values at points to coefficients. They are constants: without gradients.
        u: (N, D_u, C). v: (N, D_v, C).
        by_angles: the points are the rotations of `mdops.nn.equivariant.grid.rotation_grid`, with its matrices: for
            degree 2, 3 or 4 in three frames, with 112, 200 or 364 points and 27, 48 or 75 coefficients, the kernels
            read only parts of them and work angle by angle.

    Returns:
        (N, D, C).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or (on a GPU) D_u + D_v + D numbers of 32 channels do not
            fit into shared memory.
    """
    return call("grid_product", a, b, out, u, v, by_angles)


@register_fake("grid_product")
def _(a: Any, b: Any, out: Any, u: Any, v: Any, by_angles: bool = False) -> torch.Tensor:
    return u.new_empty(u.shape[0], out.shape[1], u.shape[2])


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    a, b, out, u, v, *by_angles = args
    by_u = grid_product(out, b, a, grads[0], v, *by_angles) if needs[0] else None
    return by_u, grid_product(a, out, b, u, grads[0], *by_angles) if needs[1] else None


register_formula("grid_product", _formula, (3, 4))
