"""The sums T after layers of DPA-1's attention in one op, from rows of coordinates, for simulation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.ops._register import refuse_tangents, register_fake, register_formula
from mdops.ops.attention import RaggedPlan, plan_of
from mdops.ops.neighbor_attention import SHIFT, neighbor_attention, unit
from mdops.ops.neighbor_rows import row_moments

WIDTHS = (32, 64)  # of a layer's rows and attention that GPUs take (source/op/attention_moments/gpu_loops.cu)
_MOST_FEATURES = 128


class JoinedLayer(NamedTuple):
    """A layer of attention from rows x of D coordinates to rows x' of D' (mathematics.md): with attention of
    width A,

        y = x inner + o out + bias        x' = y / sqrt(|y|^2 / M + eps)

    Attributes:
        inner, out, bias: (D, D'), (A, D'), (D',).
        scale: of q.k.
        project, project_bias: (D, 3 A), (3 A,): to q, k and v; None in the first layer, whose rows come with them.
        factors: (A,), not 0, factors of the columns of q after its normalization; None in the first
            layer.
    """

    inner: torch.Tensor
    out: torch.Tensor
    bias: torch.Tensor
    scale: float
    project: torch.Tensor | None = None
    project_bias: torch.Tensor | None = None
    factors: torch.Tensor | None = None


def attention_moments(
    rows: torch.Tensor,
    environment: torch.Tensor,
    offsets: torch.Tensor,
    layers: Sequence[JoinedLayer],
    norm: tuple[torch.Tensor, torch.Tensor],
    *,
    directions: torch.Tensor | None,
    switch: torch.Tensor | None,
    empty: torch.Tensor | None,
    eps: float,
    normalize: bool,
    plan: RaggedPlan | None = None,
) -> torch.Tensor:
    """T[n, a] = sum over the rows j of atom n of environment[j, a] (w x_j + b), with x after the last layer.

    The layers and the sums are one pass forward and one backward. Differentiable in rows,
    environment, directions and switch; the weights are constants. Second derivatives go through PyTorch's own
    operations. On a GPU it takes float32, layers of 32 or 64 columns with attention as wide, and an even M up to 128
    (`has_moments`).

    Args:
        rows: (E, D + 3 A), x of the neighbours, sorted by atom, then q, k and v as attention takes them.
        environment: (E, 4), R of `env_mat`.
        offsets: (N + 1,) int32, from 0 to E; on a GPU there may be rows after the last atom's; their gradients are
            not written.
        layers: see there.
        norm: w and b (M,), the last layer's LayerNorm's.
        directions, switch, empty, normalize: as of `neighbor_attention`; normalize: for the layers after the first.
        eps: LayerNorm's.
        plan: as of `neighbor_attention`; not used on a CPU.

    Returns:
        (N, 4, M).

    Raises:
        RuntimeError: a shape, dtype or device does not match, or `offsets` falls.
    """
    absent = None if switch is None or empty is None else empty.to(rows.dtype)
    if plan is None and rows.is_cuda:
        plan = plan_of(offsets, rows.shape[0])
    work = (None, 0) if plan is None else (plan.items, plan.max_length)
    every = [[w.detach() for w in weights] for weights in zip(*(layer[:3] for layer in layers), strict=True)]
    later = [
        [w.detach() for w in weights] for weights in zip(*(layer[4:] for layer in layers[1:]), strict=True)
    ]
    lists = (*every, *(later or ([], [], [])))
    fixed = (*(w.detach() for w in norm), directions, switch, absent)
    scalars = ([layer.scale for layer in layers], SHIFT, eps, normalize)
    refuse_tangents("attention_moments", (rows, environment))
    return torch.ops.mdops.attention_moments(rows, environment, offsets, *lists, *fixed, *scalars, *work)[0]


def has_moments(device: torch.device, dtype: torch.dtype, widths: Sequence[int], features: int) -> bool:
    """Whether `attention_moments` supports layers of so many columns (D = A), and M."""
    if device.type == "cpu":
        return True
    return (
        dtype == torch.float32
        and set(widths) <= set(WIDTHS)
        and features % 2 == 0
        and features <= _MOST_FEATURES
    )


def _reference(rows: Any, environment: Any, offsets: Any, *args: Any) -> torch.Tensor:
    """The op by other ops, and differentiable as often as they are."""
    *lists, w, b, gate, switch, absent, scales, shift, eps, normalize, items, max_length = args
    inner, out, bias, project, project_bias, factors = lists
    assert shift == SHIFT
    plan = None if items is None else RaggedPlan(items, max_length)
    x, *parts = rows.split([len(inner[0]), *[len(out[0])] * 3], dim=1)
    for k, scale in enumerate(scales):
        if k > 0:
            parts = list((x @ project[k - 1] + project_bias[k - 1]).chunk(3, dim=1))
            if normalize:
                parts = [unit(part) for part in parts]
            parts[0] = parts[0] * factors[k - 1]
        q, q_k, v = (part[:, None].contiguous() for part in parts)
        how = {"directions": gate, "switch": switch, "empty": absent, "temperature": scale, "plan": plan}
        o = neighbor_attention(q, q_k, v, offsets, normalize=False, **how)[:, 0]
        y = x @ inner[k] + o @ out[k] + bias[k]
        x = y * (y.square().sum(1, keepdim=True) / len(w) + eps).rsqrt()
    return row_moments(environment, w * x + b, offsets)


def _saved_width(inner: Any, out: Any) -> int:
    """As of `JoinedSaved` in source/op/attention_moments/attention_moments.h."""
    behind = [*(len(weight) for weight in inner[1:]), 0]  # the last layer's output is not saved
    of_layers = zip(out, behind, strict=True)
    return 1 + sum(
        len(weight) + columns + 2 + (3 * len(weight) + 3 if k else 0)
        for k, (weight, columns) in enumerate(of_layers)
    )


@register_fake("attention_moments")
def _(
    rows: Any, environment: Any, offsets: Any, inner: Any, out: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    features = args[4].shape[0]
    moments = rows.new_empty(offsets.shape[0] - 1, 4, features)
    return moments, rows.new_empty(rows.shape[0], _saved_width(inner, out))


@register_fake("attention_moments_backward")
def _(grad: Any, saved: Any, rows: Any, environment: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    gate, switch = args[9:11]
    of_pairs = (rows.new_empty(0 if x is None else x.shape) for x in (gate, switch))
    return rows.new_empty(rows.shape), environment.new_empty(environment.shape), *of_pairs


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    if grads[0] is None:
        return None, None, None, None
    *inputs, saved = args
    gate, switch = inputs[11:13]
    if torch.is_grad_enabled():
        leaves = [*inputs[:2], gate, switch]
        variables = [x for x in leaves if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(_reference(*inputs), variables, grads[0], create_graph=True))
        return tuple(None if x is None or not x.requires_grad else next(found) for x in leaves)
    by_rows, by_environment, by_gate, by_switch = torch.ops.mdops.attention_moments_backward(
        grads[0], saved, *inputs
    )
    return by_rows, by_environment, None if gate is None else by_gate, None if switch is None else by_switch


register_formula("attention_moments", _formula, (0, 1, 11, 12), constant=(1,), saved=(1,))
