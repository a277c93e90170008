"""A layer of message passing for rows between two nodes each, such as edges between atoms or angles between edges."""

from typing import Any

import torch

from mdops.ops._register import as_non_leaf, call, last_derivative, register_fake, register_formula
from mdops.ops.activation import kernel_code
from mdops.ops.graph import EdgeIndex, edge_gather, edge_scatter
from mdops.ops.linear import linear

TENSOR_WIDTHS = 32, 64, 128  # of rows for which there are kernels by tensor cores


def has_tensor_cores(device: torch.device, inputs: int, sent: int) -> bool:
    """Whether a GPU has kernels by tensor cores for float32 rows of these sizes, which take `matmul`."""
    capability = torch.cuda.get_device_capability(device)
    return capability >= (8, 0) and inputs in TENSOR_WIDTHS and sent % 16 == 0


def takes_numbers(device: torch.device, inputs: int, sent: int) -> bool:
    """Whether a GPU has kernels for float32 rows of these sizes, each a number times a vector, in groups."""
    return inputs <= 64 and has_tensor_cores(device, inputs, sent)


def message(
    x: torch.Tensor,
    weight: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor,
    row_weight: torch.Tensor,
    scale: torch.Tensor | None,
    first: EdgeIndex,
    second: EdgeIndex,
    activation: str,
    groups: torch.Tensor | None = None,
    matmul: str = "float32",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The messages of rows to their nodes, and the rows after their own message:

        y_r = f(x_r W + P[first_r] + Q[second_r])
        sent_f = sum over the rows of f of w_r y_r       with y's first columns
        kept_r = x_r + c y_r                             with y's last X columns, if c is given

    Rows are processed in blocks: there is no array of (R, C). Sums have a fixed order, so the bits are the same in
    every run. The second derivative is one op, too; second derivatives by weights use the ops of which this one is
    composed.

    Args:
        x: (R, X), float32 or float64.
        weight: W (X, C). p: P (F, C). q: Q (S, C).
        row_weight: w (R,).
        scale: c (X,); None: all columns are sent, and nothing is kept.
        first: of R rows and F nodes, without an order: the rows of each are consecutive. Rows without a first come
            after all others; they are in no sum, and x is kept there.
        second: of R rows and S nodes; none in rows without a first.
        activation: f, by DeePMD-kit's name (`mdops.ops.activation`).
        groups: (G + 1,) int32, where the first nodes of each group begin, if rows are all pairs of nodes of a group,
            like angles of an atom's edges: each of its first m nodes has m rows, whose seconds are these m in order,
            and the others have none. This is faster.
        matmul: the least accuracy of float32's products, as in `mlp`; a CPU, a GPU without kernels for rows of such
            sizes (`has_tensor_cores`), other functions than silu and silut, and second derivatives have float32's.

    Returns:
        (F, C - X) and (R, X); without scale (F, C) and None.

    Raises:
        RuntimeError: a shape, dtype or device does not match, `matmul` is not known on the device, or (on a CPU) an
            index or a group is wrong.
    """
    c = x.new_empty(0) if scale is None else as_non_leaf(scale)
    given = x, as_non_leaf(weight), p, q, row_weight, c
    indices = first.nodes, first.offsets, *second, groups
    sent, kept = call("message", *given, *indices, *kernel_code(activation), matmul)
    return sent, None if scale is None else kept


def framed_message(
    x: torch.Tensor,
    weight: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor,
    row_weight: torch.Tensor,
    scale: torch.Tensor | None,
    frame: torch.Tensor,
    first: EdgeIndex,
    second: EdgeIndex,
    taken: EdgeIndex | None,
    width: int,
    activation: str,
    matmul: str = "float32",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """`message` and two more results of its rows x: `row_moments` of their frames and x over the rows of each first
    node, and the rows `edge_gather(x, taken, width=width)`. On a GPU with `has_tensor_cores` for rows of up to 64
    numbers the three gradients by x are added where that of messages is written: they need no other array of rows.
    The weights are constants. Differentiable once, in the others.

    Args:
        x, weight, p, q, row_weight, scale, first, second, activation, matmul: as of `message`.
        frame: (R, 3).
        taken: of M rows and the R rows, without an order; None: no row is taken.
        width: V, the number of columns to take.

    Returns:
        sent and kept as by `message`, the moments (F, 3, X), and the taken rows (M, V).

    Raises:
        RuntimeError: as for `message`.
    """
    c = x.new_empty(0) if scale is None else scale
    if taken is None:
        none = first.nodes.new_empty(0)
        taken = EdgeIndex(none, None, first.nodes.new_zeros(x.shape[0] + 1))
    given = x, weight, p, q, row_weight, c, frame, first.nodes, first.offsets, *second
    sent, kept, moments, rows = call(
        "framed_message", *given, taken.nodes, taken.offsets, width, *kernel_code(activation), matmul
    )
    return sent, None if scale is None else kept, moments, rows


def outer_message(
    number: torch.Tensor,
    vector: torch.Tensor,
    weight: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor,
    row_weight: torch.Tensor,
    scale: torch.Tensor | None,
    first: EdgeIndex,
    second: EdgeIndex,
    activation: str,
    groups: torch.Tensor | None = None,
    matmul: str = "float32",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`message` of rows x = n u, each a number times a vector. On a GPU with `takes_numbers`, and if f is silu or
    silut, there is no array of x, nor of its gradient. The vector and the weights are constants. Differentiable
    once, in the others.

    Args:
        number: n (R, 1).
        vector: u (1, X).
        weight, p, q, row_weight, scale, first, second, activation, groups, matmul: as of `message`.

    Returns:
        As `message`.

    Raises:
        RuntimeError: as for `message`.
    """
    c = number.new_empty(0) if scale is None else scale
    given = number, vector, weight, p, q, row_weight, c
    indices = first.nodes, first.offsets, *second, groups
    sent, kept = call("outer_message", *given, *indices, *kernel_code(activation), matmul)
    return sent, None if scale is None else kept


def _by_other_ops(
    x: torch.Tensor,
    weight: torch.Tensor,
    p: torch.Tensor,
    q: torch.Tensor,
    row_weight: torch.Tensor,
    scale: torch.Tensor,
    first_nodes: torch.Tensor,
    first_offsets: torch.Tensor,
    second: torch.Tensor,
    second_order: torch.Tensor | None,
    second_offsets: torch.Tensor,
    groups: torch.Tensor | None,
    code: int,
    threshold: float,
    matmul: str = "float32",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by ops that are differentiable any number of times."""
    first = EdgeIndex(first_nodes, None, first_offsets)
    z = linear(x, weight) + edge_gather(p, first)
    z = z + edge_gather(q, EdgeIndex(second, second_order, second_offsets))
    y: torch.Tensor = call("layer_output", z, z.new_empty(z.shape[0], 0), code, threshold)
    columns = y.shape[1] - scale.shape[0]
    sent = edge_scatter(y[:, :columns] * row_weight[:, None], first)
    if not scale.shape[0]:
        return sent, y[:, columns:]
    return sent, x + torch.where((first_nodes >= 0)[:, None], y[:, columns:] * scale, 0.0)


_TENSORS = 6  # differentiable arguments, without those of indices


@register_fake("message")
def _(
    x: Any, weight: Any, p: Any, q: Any, row_weight: Any, scale: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    kept = scale.shape[0]
    return x.new_empty(p.shape[0], weight.shape[1] - kept), x.new_empty(x.shape[0], kept)


@register_fake("message_backward")
def _(grad_sent: Any, grad_kept: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    x, weight, p, q, row_weight, scale = (value.new_empty(value.shape) for value in args[:_TENSORS])
    if not args[-1]:
        weight, scale = weight.new_empty(0, 0), scale.new_empty(0)
    return x, weight, p, q, row_weight, scale


@register_fake("message_backward_backward")
def _(
    along_x: Any, along_p: Any, along_q: Any, along_row_weight: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    return tuple(value.new_empty(value.shape) for value in args[: 2 + _TENSORS])


@register_fake("framed_message")
def _(
    x: Any, weight: Any, p: Any, q: Any, row_weight: Any, scale: Any, frame: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    kept, (taken, _, width) = scale.shape[0], args[5:8]
    sizes = (p.shape[0], weight.shape[1] - kept), (x.shape[0], kept), (p.shape[0], 3, x.shape[1])
    return tuple(x.new_empty(size) for size in (*sizes, (taken.shape[0], width)))


@register_fake("framed_message_backward")
def _(
    grad_sent: Any, grad_kept: Any, grad_moments: Any, grad_rows: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    x, _, p, q, row_weight, _, frame = args[:7]
    return tuple(value.new_empty(value.shape) for value in (x, p, q, row_weight, frame))


@register_fake("outer_message")
def _(
    number: Any, vector: Any, weight: Any, p: Any, q: Any, row_weight: Any, scale: Any, *args: Any
) -> tuple[torch.Tensor, ...]:
    kept = scale.shape[0]
    return number.new_empty(p.shape[0], weight.shape[1] - kept), number.new_empty(number.shape[0], kept)


@register_fake("outer_message_backward")
def _(grad_sent: Any, grad_kept: Any, *args: Any) -> tuple[torch.Tensor, ...]:
    number, _, _, p, q, row_weight, *_ = args
    return tuple(value.new_empty(value.shape) for value in (number, p, q, row_weight))


def _formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    of_weights = needs[1] or needs[5]
    x, weight, *others, scale = call("message_backward", *grads, *args, of_weights)
    return x, weight if of_weights else None, *others, scale if of_weights else None


def _backward_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    *given, of_weights = args
    if of_weights:
        return _along_weights(grads, given)
    x, _, *others, _ = grads
    found: tuple[Any, ...] = last_derivative("message_backward_backward", x, *others, *given[:-1])
    return found


def _along_weights(grads: Any, given: Any) -> Any:
    """The derivative of the gradients, also of those by weights, which have no kernel."""
    create, tensors = torch.is_grad_enabled(), 2 + _TENSORS
    with torch.enable_grad():
        # Aliases of the arguments, so that a gradient is for this place alone.
        leaves = [v.view_as(v) if v.requires_grad else v.detach().requires_grad_() for v in given[:tensors]]
        made = _by_other_ops(*leaves[2:], *given[tensors:])
        by = torch.autograd.grad(
            made, leaves[2:], leaves[:2], create_graph=True, allow_unused=True, materialize_grads=True
        )
        return torch.autograd.grad(by, leaves, grads, create_graph=create, materialize_grads=True)


def _framed_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("framed_message_backward", *grads, *args)
    return found


def _outer_formula(needs: Any, grads: Any, args: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = last_derivative("outer_message_backward", *grads, *args)
    return found


register_formula("framed_message", _framed_formula, (0, 2, 3, 4, 6))
register_formula("outer_message", _outer_formula, (0, 3, 4, 5))
register_formula("message", _formula, range(_TENSORS))
register_formula("message_backward", _backward_formula, range(2 + _TENSORS))
