"""One step of training: predictions with a graph, the loss, and new weights."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from mdops.data.batch import Batch
from mdops.potential import Potential
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.prediction import predict
from mdops.train.loss import Loss

_MARGIN = 0.9  # of the data's smallest distance: where knots end
# The tolerance of splines in training (`spline_error`). In float32, forces are then within some thousandths of the
# largest, which is below training's errors, and fewer knots make a step faster. A saved model gets the knots of
# simulations when it is loaded.
TOLERANCE = {torch.float32: 1e-2, torch.float64: 1e-6}
_ROOM = 0.5  # of the tolerance: then new knots last


def use_training_spline(potential: Potential, nearest: float, types: Sequence[int] | None = None) -> None:
    """Train with the embedding nets as splines, down to a bit below the data's smallest distance (A), with knots for
    the data's types, all by default.

    In a step the nets then run on the knots only. Nets with kinks stay exact, with a warning.
    """
    potential.use_spline(_MARGIN * nearest, _ROOM * TOLERANCE[potential.dtype], types, attention=False)


def keep_spline(potential: Potential) -> bool:
    """Choose new knots if the old ones exceed the error bound of training; returns whether it did so."""
    return potential.keep_spline(TOLERANCE[potential.dtype], _ROOM)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate; if it is a tensor on a GPU, in place."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def clear_gradients(weights: Iterable[torch.nn.Parameter]) -> None:
    """As an optimizer's `zero_grad`, without its hooks for profilers: a hundredth of a step."""
    for parameter in weights:
        parameter.grad = None


def train_step(
    potential: Potential,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    rate: float,
    fraction: float,
    max_norm: float | None = None,
    counts: Mapping[str, float] | None = None,
    reduce_gradients: Callable[[], None] | None = None,
    adapters: Adapters | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Takes one step, and returns the loss and the predictions before it.

    Args:
        potential, optimizer: changed.
        loss, batch, counts: see `Loss`.
        rate: the learning rate of this step; `fraction`: its ratio to that at the start.
        max_norm: a longer gradient is scaled to this length.
        reduce_gradients: called after the backward pass of this process: replaces gradients by their mean over
            all processes.
        adapters: those of the weights that the optimizer does not have.
    """
    set_rate(optimizer, rate)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    weights = trained if adapters is None else adapters.weights_of(trained)
    clear_gradients(weights)
    result = predict(potential, batch, loss=loss)
    value = loss(result, batch, fraction, counts)
    value.backward(inputs=weights)  # not positions
    if reduce_gradients is not None:
        reduce_gradients()
    if adapters is not None:
        adapters.take_gradients()
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(trained, max_norm)
    optimizer.step()
    if adapters is not None:
        adapters.set_weights()
    return value.detach(), {name: tensor.detach() for name, tensor in result.items()}
