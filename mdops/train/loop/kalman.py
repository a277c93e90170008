"""The optimizer LKF: an extended Kalman filter of the weights, updated by errors of energies and of forces."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mdops.data.batch import Batch, rows, scaled
from mdops.potential import Potential
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.distributed import Processes
from mdops.train.loop.prediction import predict
from mdops.train.loop.update import clear_gradients
from mdops.train.loss import Loss
from mdops.train.loss.base import difference

# The memory of the filter at first, and how fast it grows to 1.
_FIRST_MEMORY, _GROWTH = 0.98, 0.9987
_GROUPS, _IN_GROUP = 4, 6  # the updates by forces in a step, and the atoms of each


class KalmanFilter(torch.optim.Optimizer):
    """DeePMD-kit's optimizer LKF (arXiv:2212.06989).

    The weights w, in order and each by columns, are divided into blocks, with a covariance P of each, at first 1. An
    update by a measurement with the error e and the gradient H of each block is w <- w + a e P H and
    P <- (P - a P H (P H)^T) / m, with 1 / a = sum of m + H^T P H over the blocks. Then the memory m <- 0.9987 m +
    0.0013.

    Weights that together are at most `block_size` share a block; one of more numbers has several of its own. P is in
    float64, whatever the weights are.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], lr: Any = 1.0, *, block_size: int = 5120
    ) -> None:
        """`lr` has no effect."""
        super().__init__(list(parameters), {"lr": lr})
        self._weights: list[torch.nn.Parameter] = self.param_groups[0]["params"]
        self._lengths = _block_lengths([p.numel() for p in self._weights], block_size)
        state, device = self.state[self._weights[0]], self._weights[0].device
        state["memory"] = _FIRST_MEMORY
        for k, length in enumerate(self._lengths):
            state[f"block_{k}"] = torch.eye(length, dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self, error: float, shares: int = 1) -> None:  # type: ignore[override]
        """Updates the weights by a measurement with this error; `grad` of the weights, times `shares`, is -H."""
        state = self.state[self._weights[0]]
        memory: float = state["memory"]
        given = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._weights]
        gradients = _joined(given).mul_(-shares).split(self._lengths)
        covariances = [state[f"block_{k}"] for k in range(len(self._lengths))]
        products = [p @ h for p, h in zip(covariances, gradients, strict=True)]
        variances = [memory + h @ ph for h, ph in zip(gradients, products, strict=True)]
        gain = 1 / torch.stack(variances).sum()
        for p, ph in zip(covariances, products, strict=True):
            root = gain.sqrt() * ph
            p.addr_(root, root, alpha=-1).div_(memory)
        new = _joined(self._weights).add_(torch.cat(products) * (gain * error))
        for w, own in zip(self._weights, new.split([w.numel() for w in self._weights]), strict=True):
            w.copy_(_reversed(own.view(w.shape[::-1])))
        state["memory"] = _GROWTH * memory + 1 - _GROWTH


def _block_lengths(sizes: Sequence[int], most: int) -> list[int]:
    together: list[int] = []
    for size in sizes:
        if together and together[-1] + size <= most:
            together[-1] += size
        else:
            together.append(size)
    return [min(most, length - begin) for length in together for begin in range(0, length, most)]


def _joined(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """All numbers in float64, each tensor by columns."""
    return torch.cat([_reversed(t.detach()).reshape(-1).double() for t in tensors])


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(*range(tensor.dim() - 1, -1, -1))


def draw(seed: Sequence[int], atoms: int) -> np.ndarray:
    """(groups, atoms in a group): the atoms whose forces a step uses; some may come twice."""
    return np.random.default_rng(seed).choice(atoms, (_GROUPS, _IN_GROUP))


def filter_step(
    potential: Potential,
    loss: Loss,
    optimizer: KalmanFilter,
    batch: Batch,
    *,
    prefactors: Mapping[str, float],
    seed: Sequence[int],
    fraction: float,
    counts: Mapping[str, float],
    is_counted: bool,
    processes: Processes,
    reduce_gradients: Callable[[], None] | None = None,
    adapters: Adapters | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Updates the weights by the energies of a batch, and then by the forces on four groups of atoms, the same in
    frames of the same size. Returns the loss and the predictions before the last update.

    The error of an update is sqrt(S) times the mean over S frames of an error per atom, |dE| / N or the mean of
    |dF| / N over the components in the group, times its prefactor. The gradient is that of the sum over frames.

    Args:
        potential, optimizer: changed.
        loss, fraction, counts: for the loss that is returned.
        prefactors: of energy and forces.
        seed: of the groups of this step.
        is_counted: whether this process has a share of the batch.
        processes, reduce_gradients, adapters: as of `train_step`.
    """
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    weights = trained if adapters is None else adapters.weights_of(trained)
    groups = _groups(batch, seed)
    result: dict[str, torch.Tensor] = {}
    for name, group in [("energy", None), *(("forces", group) for group in groups)]:
        clear_gradients(weights)
        result = predict(potential, batch, loss=loss)
        errors = prefactors[name] * _errors(name, scaled(result, batch), batch, group)
        frames = float(batch.present[name].sum()) if name in batch.labels and is_counted else 0.0
        own = errors.sum() if frames else 0 * errors.sum()
        total, number = processes.sums([float(own.detach()), frames])
        if not number:  # no frame has the label
            continue
        own.backward(inputs=weights)
        if reduce_gradients is not None:
            reduce_gradients()
        if adapters is not None:
            adapters.take_gradients()
        optimizer.step(total / number**0.5, processes.count)
        if adapters is not None:
            adapters.set_weights()
    found = {name: tensor.detach() for name, tensor in result.items()}
    return loss(found, batch, fraction, counts), found


def _groups(batch: Batch, seed: Sequence[int]) -> list[torch.Tensor]:
    """The rows of atoms of each group, of all frames with forces, which may be none."""
    own: list[np.ndarray] = []
    if "forces" in batch.labels:
        frame = batch.system.batch.cpu().numpy()
        labelled = np.flatnonzero(rows("forces", batch).cpu().numpy())
        own = np.split(labelled, np.searchsorted(frame[labelled], np.arange(1, batch.system.count)))
    drawn = [atoms[draw(seed, len(atoms))] for atoms in own if len(atoms)]
    found = np.concatenate(drawn, 1) if drawn else np.empty((_GROUPS, 0), np.int64)
    return list(torch.from_numpy(found).to(batch.system.batch.device))


def _errors(
    name: str, result: Mapping[str, torch.Tensor], batch: Batch, group: torch.Tensor | None
) -> torch.Tensor:
    """The error per atom of each frame; for a group of atoms, the share of each of them in its frame's error."""
    found = difference(name, result[name], batch).abs().mean(1)
    if not len(found):
        return found
    if group is None:
        return found / batch.sizes
    return found[group] / batch.sizes[batch.system.batch.long()[group]] / _IN_GROUP
