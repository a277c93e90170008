"""Attention among the rows of each of many sequences of any lengths, forward, backward, and backward once more."""

from typing import Any, NamedTuple

import torch

from mdops.ops._register import call, last_derivative, register_fake, register_formula
from mdops.tracing import is_recorded

_TILE, _COLUMNS = 64, 4  # kPlanTile and kPlanColumns of source/op/attention/attention.h


class RaggedPlan(NamedTuple):
    """How the work on sequences is cut into pieces, for `ragged_attention`; `ragged_plan` makes it.

    Attributes:
        items: (P, 4) int32, on the device of the offsets. P follows from the arguments of `ragged_plan`.
        max_length: no sequence is longer.
    """

    items: torch.Tensor
    max_length: int

    def copy_(self, other: "RaggedPlan") -> "RaggedPlan":
        """Copies another plan of the same capacity, for a CUDA graph that was captured with this one."""
        if other.max_length != self.max_length or other.items.shape != self.items.shape:
            raise ValueError("a plan takes over one that was made for the same capacity only")
        self.items.copy_(other.items)
        return self


def ragged_plan(
    offsets: torch.Tensor, *, max_total: int, max_batch: int, max_length: int, longest_first: bool = True
) -> RaggedPlan:
    """The work of `ragged_attention` on these sequences in equal pieces.

    Nothing waits for a GPU, and the plan's shape follows from the capacity alone: a replay of a CUDA graph may compute
    it anew, or it may be copied into the plan the graph was captured with (`RaggedPlan.copy_`).

    Args:
        offsets: (B + 1,) int32, B at most `max_batch`: rows offsets[b] to offsets[b + 1] are sequence b; they do not
            fall. Sequences may be empty.
        max_total: room for so many rows.
        max_batch: room for so many sequences.
        max_length: room for sequences of this length.
        longest_first: the longest sequences come first, so that no long one starts when others are done. It needs a
            sort, which is not worth it if all have about the same length.

    Returns:
        The plan. It records whether the sequences fit into the capacity; if not, attention with it gives NaN on a GPU.

    Raises:
        ValueError: more sequences than `max_batch`; on the CPU also sequences that do not fit.
    """
    batch = offsets.shape[0] - 1
    if batch < 0 or batch > max_batch:
        raise ValueError(f"offsets of {batch} sequences do not fit into a plan for {max_batch}")
    items = torch.ops.mdops.ragged_plan(offsets, max_total, max_batch, max_length)
    if (
        offsets.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not is_recorded(offsets)
        and int(items[0, 0]) < 0
    ):
        raise ValueError(
            f"sequences of {offsets.tolist()} do not fit into {max_total} rows and the length {max_length}"
        )
    if longest_first and batch:
        table = items[1:]
        cost = torch.where(table[:, 0] >= 0, offsets.diff()[table[:, 0].clamp(min=0)], -1)
        items = torch.cat([items[:1], table[torch.argsort(cost, descending=True, stable=True)]])
    return RaggedPlan(items, max_length)


def ragged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    *,
    scale: float | None = None,
    bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    plan: RaggedPlan | None = None,
    matmul: str = "float32",
) -> torch.Tensor:
    """Attention of each row to the rows of its sequence, for sequences of any lengths without padding.

    o_j = sum_l p_jl (gate_j . gate_l) v_l with p_j = softmax_l(scale q_j.k_l + bias_jl), j and l of one sequence.
    Twice differentiable in q, k, v, bias and gate. The scores are never written.

    Args:
        q, k: (T, H, D), rows of all sequences one after another, H heads of width D up to 256; float32, float64,
            bfloat16 or float16. Softmax and sums of the last two are in float32.
        v: (T, H, E), E up to 256.
        offsets: (B + 1,) int32: rows offsets[b] to offsets[b + 1] are sequence b. Rows that belong to none give 0.
        scale: of the products; by default D^-1/2.
        bias: (H, sum of L^2), for each head the (L, L) numbers of all sequences in order.
        gate: (T, C), C up to 8: p_jl is multiplied by gate_j . gate_l.
        plan: of `ragged_plan`; by default a new one. It costs several small operations, and serves all layers.
        matmul: the least accuracy of float32's products, as in `mlp`.

    Returns:
        (T, H, E) in q's dtype.

    Raises:
        ValueError: see `ragged_plan`.
        RuntimeError: a shape, dtype or device does not match, offsets that fall or reach beyond the rows (on the CPU),
            or `matmul` is not known on the device.
    """
    if plan is None:
        plan = plan_of(offsets, q.shape[0])
    if scale is None:
        scale = q.shape[-1] ** -0.5
    arguments = (q, k, v, offsets, plan.items, bias, gate, None, None, scale, 0.0, plan.max_length, matmul)
    return call("ragged_attention", *arguments)[0]


def plan_of(offsets: torch.Tensor, rows: int) -> RaggedPlan:
    """A plan with room for any sequences in so many rows."""
    return ragged_plan(offsets, max_total=rows, max_batch=offsets.shape[0] - 1, max_length=rows)


@register_fake("ragged_plan")
def _(offsets: Any, max_total: int, max_batch: int, max_length: int) -> torch.Tensor:
    return offsets.new_empty(1 + max_batch + max_total // _TILE, _COLUMNS)


def _sums_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _like(x: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor:
    return q.new_empty(0) if x is None else x.new_empty(x.shape)


@register_fake("ragged_attention")
def _(q: Any, k: Any, v: Any, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return v.new_empty(v.shape), q.new_empty(q.shape[:2], dtype=_sums_dtype(q))


@register_fake("ragged_attention_backward")
def _(grad: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    return _like(q, q), _like(k, q), _like(v, q), *(_like(x, q) for x in args[2:5])


@register_fake("ragged_attention_backward_backward")
def _(*args: Any) -> tuple[torch.Tensor, ...]:
    grad, q, k, v = args[6:10]
    return _like(grad, q), _like(q, q), _like(k, q), _like(v, q), *(_like(x, q) for x in args[14:17])


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    if grads[0] is None:
        return (None,) * 6
    q, k, v, *others, out, logsumexp = args
    # The second derivative includes how `out` depends on the others.
    saved = out.detach(), logsumexp
    found = call("ragged_attention_backward", grads[0], q, k, v, *saved, *others)
    return _of_given(found, 3, args[5:8])


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    optional = args[8:11]
    directions = [None if x is None else g for x, g in zip(optional, grads[3:], strict=True)]
    found = last_derivative("ragged_attention_backward_backward", *grads[:3], *directions, *args)
    return _of_given(found, 4, optional)


def _of_given(found: Any, count: int, optional: Any) -> tuple[Any, ...]:
    """The gradients, with None for arguments that are None."""
    rest = (None if x is None else g for x, g in zip(optional, found[count:], strict=True))
    return (*found[:count], *rest)


register_formula("ragged_attention", _formula, (0, 1, 2, 5, 6, 7), constant=(1,), saved=(0, 1))
register_formula("ragged_attention_backward", _backward_formula, (0, 1, 2, 3, 8, 9, 10))
