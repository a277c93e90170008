"""Training steps on a GPU as CUDA graphs: one launch in place of some hundred.

A graph is captured for each kind of batch, that is for each group of similar frames and each number of them. In a
loop over steps the host only sends the next frames' indices and the rate; it waits for nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from mdops.data.batch import Batch
from mdops.data.dataset import Dataset
from mdops.data.device_frames import DeviceFrames, alike
from mdops.data.neighbor_lists import PairLists
from mdops.potential import Potential
from mdops.tracing import capturing
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.captured_optimizer import captured_step
from mdops.train.loop.prediction import check_frames, predict
from mdops.train.loop.schedule import FlatBuffer, WeightAverage
from mdops.train.loss import Loss

_WARM_UP = 3  # runs before a capture: libraries set themselves up in the first
_CHECKED = 4096  # atoms that are checked at a time
_SHARE = 0.4  # of the free memory of a GPU that frames may take
_MOST_GROUPS = 256  # of frames that have graphs
_OWN_THREAD = "thread_local"  # NCCL's thread queries events while this one captures

Outcome = tuple[torch.Tensor, dict[str, torch.Tensor], Batch]


class StepGraphs:
    """Takes the steps of `train_step` in graphs.

    Attributes:
        groups: the frames, on the device.
    """

    def __init__(
        self,
        potential: Potential,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        groups: list[DeviceFrames],
        *,
        average: WeightAverage | None,
        max_norm: float | None,
        reduce_gradients: Callable[[], None] | None,
        adapters: Adapters | None = None,
    ) -> None:
        """Arguments as of `train_step`, with the average of the weights to update. Checks all frames."""
        self.potential, self.loss, self.optimizer, self.groups = potential, loss, optimizer, groups
        self._average, self._max_norm, self._reduce = average, max_norm, reduce_gradients
        self._adapters = adapters
        self._weights = [p for p in potential.parameters() if p.requires_grad]
        self._joined = FlatBuffer(self._weights)
        self._gradients = self._joined.parts
        self._hold_gradients()
        if adapters is not None:
            adapters.take_gradients()
        _initialize_state(optimizer)
        device = potential.device
        self._fraction = torch.ones((), dtype=torch.float64, device=device)
        self._share = torch.ones((), dtype=torch.float32, device=device)
        self._captured: dict[tuple, tuple[torch.cuda.CUDAGraph, torch.Tensor, Outcome]] = {}
        self._evaluator = potential.evaluator("train")  # holds what the graphs read
        self._update: torch.cuda.CUDAGraph | None = None
        # Graphs share their memory: a step's result is read before the next one runs.
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
        # One for all captures: a weight's gradient node belongs to the stream that first used it.
        self._stream = torch.cuda.Stream(device)
        for group in groups:
            self._check(group)

    def _check(self, group: DeviceFrames) -> None:
        """Checks all frames; then the group knows the capacity that a graph of one needs."""
        step, most = max(1, _CHECKED // group.atoms), []
        for start in range(0, len(group.frames), step):
            places = torch.arange(start, min(start + step, len(group.frames)), device=self.potential.device)
            report = check_frames(self.potential, group.batch(places))
            sizes = self.potential.model.graph_sizes(report.within)
            if sizes is not None:
                most.append(sizes.view(len(places), group.atoms, 3).sum(1).amax(0))
        if most:
            edges, angles, inner = torch.stack(most).amax(0).tolist()
            group.graph_room = edges, angles, inner

    def __call__(
        self, frames: np.ndarray, counts: Mapping[str, float], rate: float, fraction: float
    ) -> Outcome | None:
        """Takes a step with these frames of the dataset: the loss, the predictions before the step, and the
        batch. The next step reuses their memory. None, and no step, if the frames differ in kind, or
        the model now has an evaluator that reads from the device."""
        found = self._find(frames) if self.potential.evaluator("train").captures else None
        if found is None:
            return None
        with torch.cuda.device(self.potential.device):
            return self._take(*found, counts, rate, fraction)

    def _take(
        self,
        group: DeviceFrames,
        places: torch.Tensor,
        counts: Mapping[str, float],
        rate: float,
        fraction: float,
    ) -> Outcome:
        evaluator = self.potential.evaluator("train")
        if self._evaluator is not evaluator:
            self._captured.clear()
            self._evaluator = evaluator
        key = (id(group), len(places), tuple(sorted(counts.items())))
        if key not in self._captured:
            self._captured[key] = self._capture(group, places, counts)
        graph, static, outcome = self._captured[key]
        static.copy_(places)
        self._fraction.fill_(fraction)
        for options in self.optimizer.param_groups:
            options["lr"].fill_(rate)
        if self._average is not None:
            self._share.fill_(self._average.next_share())
        self._hold_gradients()
        graph.replay()
        if self._reduce is not None:
            self._reduce()
        if self._update is None:
            self._update = self._capture_update()
        self._update.replay()
        # PyTorch does not see that a replay changes the weights; caches made from them must know.
        torch.autograd.graph.increment_version(self._weights)
        return outcome

    def _hold_gradients(self) -> None:
        """Sets the weights' gradients to those of the graphs; steps without a graph have others."""
        for p, gradient in zip(self._weights, self._gradients, strict=True):
            p.grad = gradient

    def _find(self, frames: np.ndarray) -> tuple[DeviceFrames, torch.Tensor] | None:
        for group in self.groups:
            places = group.places(frames)
            if places is not None:
                return group, places
        return None

    def _differentiate(
        self, group: DeviceFrames, places: torch.Tensor, counts: Mapping[str, float]
    ) -> Outcome:
        """The loss and its gradients, stored in `grad` of the weights."""
        batch = group.batch(places)
        result = predict(self.potential, batch)
        value = self.loss(result, batch, self._fraction, counts)
        found = torch.autograd.grad(value, self._weights, allow_unused=True, materialize_grads=True)
        self._joined.take(found)
        return value.detach(), {name: tensor.detach() for name, tensor in result.items()}, batch

    def _capture(
        self, group: DeviceFrames, places: torch.Tensor, counts: Mapping[str, float]
    ) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, Outcome]:
        static = places.to(self.potential.device)
        group.prepare(len(static))
        self._stream.wait_stream(torch.cuda.current_stream(self.potential.device))
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP):
                self._differentiate(group, static, counts)
        torch.cuda.current_stream(self.potential.device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        options: dict[str, Any] = {
            "pool": self._pool,
            "stream": self._stream,
            "capture_error_mode": _OWN_THREAD,
        }
        with capturing(graph, **options):
            outcome = self._differentiate(group, static, counts)
        return graph, static, outcome

    def _capture_update(self) -> torch.cuda.CUDAGraph:
        """New weights from `grad`, and their average."""
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, capture_error_mode=_OWN_THREAD):
            if self._adapters is not None:
                self._adapters.take_gradients()
            if self._max_norm is not None:
                trained = [p for group in self.optimizer.param_groups for p in group["params"]]
                torch.nn.utils.clip_grad_norm_(trained, self._max_norm)
            captured_step(self.optimizer)
            if self._adapters is not None:
                self._adapters.set_weights()
            if self._average is not None:
                self._average.take_in(self._share)
        return graph


def largest_groups(data: Dataset) -> list[np.ndarray]:
    """The frames with graphs, in groups of similar ones. If there are very many groups, as for frames with different
    orders of atoms, the smaller ones get none: they come too seldom to pay for a capture."""
    return sorted(alike(data), key=len, reverse=True)[:_MOST_GROUPS]


def step_graphs(
    potential: Potential,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    data: Dataset,
    lists: PairLists,
    *,
    average: WeightAverage | None,
    max_norm: float | None,
    reduce_gradients: Callable[[], None] | None,
    adapters: Adapters | None = None,
) -> StepGraphs | None:
    """Graphs for a training on this data; None on a CPU, for an evaluator that reads from the device, for Hessians
    and noise, and for data too large for the GPU's memory."""
    if "hessian" in loss.terms or loss.corrupts:
        return None
    if potential.device.type != "cuda" or not potential.evaluator("train").captures:
        return None
    longest = max(int(lists.rows(f)[2].sum(1).max(initial=0)) for f in range(len(data)))
    size = len(data.positions) * (8 * longest + 100)
    if size > _SHARE * torch.cuda.mem_get_info(potential.device)[0]:
        return None
    groups = [DeviceFrames(data, lists, frames, potential.device) for frames in largest_groups(data)]
    return StepGraphs(
        potential,
        loss,
        optimizer,
        groups,
        average=average,
        max_norm=max_norm,
        reduce_gradients=reduce_gradients,
        adapters=adapters,
    )


def _initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the optimizer's state without its first step."""
    if optimizer.state:
        return
    weights = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    optimizer.step()
    with torch.no_grad():
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch._foreach_copy_(parameters, weights)
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
