"""Low-bit numbers: quantisation, products of int8, ternary and float8 matrices, straight-through gradients."""

from typing import Any

import torch

from mdops.ops._register import call, register_fake, register_fake_like, register_formula

KINDS = {
    "int8": torch.int8,
    "ternary": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def gemm_lowbit(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    *,
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The product of two matrices of low-bit numbers, each a value times a scale.

    The depth is summed in G groups of ceil(K / G) numbers, the last of which may be shorter (G is 1 but for a
    `b_scale` of groups). With sum_g of group g, and every operation rounded to float32,

        C[m, n] = (((sum_0 b_scale[0, n] + sum_1 b_scale[1, n]) + sum_2 b_scale[2, n]) + ...) a_scale[m],

    which is then rounded to `out_dtype`. Sums of int8 and ternary numbers are exact integers, so that C has the
    same bits on every processor and GPU, and in PyTorch:

        sums = [(a[:, g].double() @ b[g].double()).float() for g in groups]   # exact, for a K below 2^37
        C = (functools.reduce(torch.add, [s * b_scale[g] for g, s in enumerate(sums)]) * a_scale[:, None]).to(out_dtype)

    Sums of float8 numbers are formed in float32, on a GPU by its float8 tensor cores where it has them, by float16
    ones, into which every float8 number fits, where not. Their error is below 2^-10 sum_k |a[m, k] b[k, n]|, times
    the scales (docs/reference/ops.md has what was measured); on the CPU it is that of a float32 product.

    Differentiable in the scales. For gradients by the quantised numbers see `lowbit_linear`.

    Args:
        a: (M, K) int8, float8_e4m3fn or float8_e5m2.
        b: (K, N). Beside int8: int8, or ternary numbers as (ceil(K / 4), N) uint8 (`pack_ternary`). Beside float8:
            either float8. Both `b` in the order of rows and the transpose of a contiguous (N, K) are read as they
            are on a GPU where their rows begin on 16 bytes; others are copied.
        a_scale: () or (M,) float32.
        b_scale: (), (N,) or (G, N) float32, of which no group may be empty.
        out_dtype: float32, bfloat16 or float16.

    Returns:
        (M, N) of `out_dtype`; NaN where a scale or a float8 number of its sum is.

    Raises:
        RuntimeError: other dtypes and shapes; a group of more than 131,071 int8 or 8,388,607 ternary numbers, whose
            sum may not fit into 32 bits.
    """
    return call("gemm_lowbit", a, b, a_scale, b_scale, out_dtype)


def quantize(
    x: torch.Tensor, kind: str | torch.dtype, *, per: str = "tensor", groups: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Low-bit values and their scale, so that values times scale is near x.

    value = x / scale, rounded to the nearest (ties to even). The scale is max|x| / 127 for int8, max|x| / 448 for
    e4m3, max|x| / 57344 for e5m2, and mean|x| for ternary numbers, which are rounded to -1, 0, 1; it is 1 where
    all x are zero. Where x is not finite the scale is not, so that products with it are NaN. No gradient goes back to
    x: `fake_quantize` and `lowbit_linear` have one.

    Args:
        x: (R, C), of any floating dtype; computed in float32.
        kind: "int8", "ternary", "e4m3" or "e5m2", or the dtype of one of them (torch.int8 is "int8").
        per: which numbers share a scale: "tensor", "row" (those of a left factor) or "column" (of a right one).
        groups: of rows, that many with a scale of their own for each column; with "column" alone.

    Returns:
        values: (R, C) int8, float8_e4m3fn or float8_e5m2.
        scale: float32, () for "tensor", (R,) for "row", (C,) for "column", (groups, C) if groups is above 1.
    """
    if isinstance(kind, torch.dtype):
        kind = next((name for name, dtype in KINDS.items() if dtype == kind), str(kind))
    values, scale = torch.ops.mdops.quantize(x.detach().float(), kind, per, groups)
    return values, scale[0] if per == "column" and groups == 1 else scale


def pack_ternary(values: torch.Tensor) -> torch.Tensor:
    """Numbers -1, 0, 1 of an int8 (K, N) as (ceil(K / 4), N) uint8.

    Number k of a column is in bits 2 (k % 4) and the next of byte k // 4, in two's complement; bits of the last byte
    beyond K are zero. The CPU refuses other numbers, a GPU keeps their two lowest bits.
    """
    return torch.ops.mdops.pack_ternary(values)


def unpack_ternary(packed: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """The int8 (rows, N) that `pack_ternary` packed; by default four rows for each of its rows."""
    return torch.ops.mdops.unpack_ternary(packed, 4 * packed.shape[0] if rows is None else rows)


def fake_quantize(x: torch.Tensor, kind: str, *, per: str = "tensor", groups: int = 1) -> torch.Tensor:
    """x as it is after `quantize`: values times scale, float32. Its gradient goes straight through, as if it were x
    (Bengio et al., arXiv 1308.3432), to any order."""
    return call("fake_quantize", x.float(), kind, per, groups)


def lowbit_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    x_kind: str = "int8",
    weight_kind: str = "ternary",
    weight_per: str = "tensor",
    groups: int = 1,
) -> torch.Tensor:
    """x W with both quantised: the product of a low-bit layer in training.

    Gradients go straight through the rounding: with X and W as quantised, dx = dy W^T and dW = X^T dy, and the
    derivatives of these again, so that losses on forces train, too.

    Args:
        x: (M, K), of a floating dtype; "int8", "e4m3" or "e5m2" by `x_kind`, a scale for each row.
        weight: (K, N), of a floating dtype; of `weight_kind` "int8" or "ternary" beside int8, else "e4m3" or "e5m2";
            its scales by `weight_per` and `groups` as in `quantize`: "tensor" or "column".

    Returns:
        (M, N) float32.
    """
    return call("lowbit_linear", x.float(), weight.float(), x_kind, weight_kind, weight_per, groups)


@register_fake("gemm_lowbit")
def _(a: Any, b: Any, a_scale: Any, b_scale: Any, out_dtype: torch.dtype) -> torch.Tensor:
    return a_scale.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype)


@register_fake("quantize")
def _(x: Any, kind: str, per: str, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = {"tensor": (), "row": x.shape[:1], "column": (groups, x.shape[1])}
    return x.new_empty(x.shape, dtype=KINDS[kind]), x.new_empty(shapes[per], dtype=torch.float32)


register_fake_like("fake_quantize", 0)


@register_fake("lowbit_linear")
def _(x: Any, weight: Any, *args: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]))


@register_fake("pack_ternary")
def _(values: Any) -> torch.Tensor:
    return values.new_empty(((values.shape[0] + 3) // 4, values.shape[1]), dtype=torch.uint8)


@register_fake("unpack_ternary")
def _(packed: Any, rows: int) -> torch.Tensor:
    return packed.new_empty((rows, packed.shape[1]), dtype=torch.int8)


def _product_formula(needs: Any, grads: Any, args: Any) -> Any:
    a, b, a_scale, b_scale, _ = args
    grad, one = grads[0].float(), a_scale.new_ones(())
    grad_a = grad_b = None
    if needs[0]:
        terms = grad * call("gemm_lowbit", a, b, one, b_scale, torch.float32)
        grad_a = terms.sum(1) if a_scale.dim() else terms.sum()
    if needs[1]:
        if b_scale.dim() == 2:
            terms = torch.stack(
                [(grad * part).sum(0) for part in _group_products(a, b, a_scale, b_scale.shape[0])]
            )
            grad_b = terms if len(terms) else b_scale.new_zeros(b_scale.shape)
        else:
            terms = grad * call("gemm_lowbit", a, b, a_scale, one, torch.float32)
            grad_b = terms.sum(0) if b_scale.dim() else terms.sum()
    return grad_a, grad_b


def _group_products(a: Any, b: Any, a_scale: Any, groups: int) -> list[torch.Tensor]:
    """The product of each group, without the scales of B."""
    depth, one = a.shape[1], a_scale.new_ones(())
    values = torch.ops.mdops.unpack_ternary(b, depth) if b.dtype == torch.uint8 else b
    size = -(-depth // groups) if groups else 0
    parts = [slice(g * size, min(depth, (g + 1) * size)) for g in range(groups)]
    return [call("gemm_lowbit", a[:, part], values[part], a_scale, one, torch.float32) for part in parts]


def _straight_through(needs: Any, grads: Any, args: Any) -> Any:
    return (grads[0],)


def _linear_formula(needs: Any, grads: Any, args: Any) -> Any:
    x, weight, x_kind, weight_kind, weight_per, groups = args
    grad_x = grad_weight = None
    if needs[0]:
        grad_x = grads[0] @ call("fake_quantize", weight, weight_kind, weight_per, groups).T
    if needs[1]:
        grad_weight = call("fake_quantize", x, x_kind, "row", 1).T @ grads[0]
    return grad_x, grad_weight


register_formula("gemm_lowbit", _product_formula, (2, 3))
register_formula("fake_quantize", _straight_through, (0,))
register_formula("lowbit_linear", _linear_formula, (0, 1))
