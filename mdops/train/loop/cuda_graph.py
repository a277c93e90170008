"""Training steps on a GPU as CUDA graphs: one launch in place of some hundred.

A graph is captured for each kind of batch, that is for each group of similar frames and each number of them, with
their atoms displaced or not. In a loop over steps the host only sends the next frames' indices, displacements, and the
rate; it waits for nothing. Lists with a skin hold all neighbours of displaced atoms, and graphs have room for all
pairs within the skin, so that no step has to ask.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from mdops.data.batch import Batch
from mdops.data.dataset import Dataset
from mdops.data.device_frames import DeviceFrames, alike
from mdops.data.neighbor_lists import PairLists
from mdops.models.neighborhood import Neighborhood
from mdops.potential import Potential
from mdops.tracing import capturing
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.captured_optimizer import captured_step
from mdops.train.loop.prediction import check_frames, predict
from mdops.train.loop.schedule import FlatBuffer, WeightAverage
from mdops.train.loop.update import set_rate
from mdops.train.loss import Loss

_WARM_UP = 3  # runs before a capture: libraries set themselves up in the first
_CHECKED = 4096  # atoms that are checked at a time
_SHARE = 0.4  # of the free memory of a GPU that frames may take
_MOST_GROUPS = 256  # of frames that have graphs
_OWN_THREAD = "thread_local"  # NCCL's thread queries events while this one captures
_MARGIN = 1e-3  # A, of a skin: for rounding
_WIDEST = 0.25  # of the cutoff: with a wider skin a graph would have room for twice as many edges

Outcome = tuple[torch.Tensor, dict[str, torch.Tensor], Batch]
T = TypeVar("T")


class Recorder:
    """Records work on a GPU as CUDA graphs, which share their memory: the result of one is read before the next one
    runs.

    Attributes:
        device: its GPU. devices: the types of devices that it supports.
    """

    devices = ("cuda",)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self._pool = torch.cuda.graph_pool_handle()
        # One for all captures: a weight's gradient node belongs to the stream that first used it.
        self._stream = torch.cuda.Stream(device)

    def differentiation(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """A call that does the work again, and the result, which each call overwrites."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UP):
                work()
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        options: dict[str, Any] = {"pool": self._pool, "stream": self._stream}
        with capturing(graph, capture_error_mode=_OWN_THREAD, **options):
            found = work()
        return graph.replay, found

    def update(self, work: Callable[[], None]) -> Callable[[], None]:
        """The same of work in place, which is not done before the first call."""
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, capture_error_mode=_OWN_THREAD):
            work()
        return graph.replay


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
        reach: float = 0.0,
        average: WeightAverage | None,
        max_norm: float | None,
        reduce_gradients: Callable[[], None] | None,
        adapters: Adapters | None = None,
    ) -> None:
        """Arguments as of `train_step`, with the average of the weights to update, and `reach`: how far atoms may move
        with the lists of the groups, A. Checks all frames."""
        self.potential, self.loss, self.optimizer, self.groups = potential, loss, optimizer, groups
        self._average, self._max_norm, self._reduce = average, max_norm, reduce_gradients
        self._adapters, self._reach = adapters, reach
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
        self._captured: dict[tuple, tuple[Callable[[], None], list[torch.Tensor], Outcome]] = {}
        self._evaluator = potential.evaluator("train")  # holds what the graphs read
        self._update: Callable[[], None] | None = None
        self._recorder = Recorder(device)
        for group in groups:
            self._check(group)

    def _check(self, group: DeviceFrames) -> None:
        """Checks all frames; then the group knows the capacity that a graph of one needs."""
        step, most = max(1, _CHECKED // group.atoms), []
        for start in range(0, len(group.frames), step):
            places = torch.arange(start, min(start + step, len(group.frames)), device=self.potential.device)
            batch = group.batch(places)
            report = check_frames(self.potential, batch)
            in_skin = self._in_skin(batch) if self._reach else report.within
            both = [self.potential.model.graph_sizes(within) for within in (report.within, in_skin)]
            sizes = [of.view(len(places), group.atoms, 3).sum(1).amax(0) for of in both if of is not None]
            most += [torch.stack(sizes)] if sizes else []
        if most:
            rooms = torch.stack(most).amax(0).tolist()
            group.graph_room, group.moved_room = ((edges, angles, inner) for edges, angles, inner in rooms)

    def _in_skin(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """`NeighborReport.within`, also of neighbours that atoms may get when they move."""
        potential, pairs = self.potential, batch.neighbors
        near = Neighborhood.of(batch.system, pairs, pairs.cutoff + _MARGIN, potential.dtype)
        skin = near.cutoff - potential.cutoff
        specs = [spec._replace(cutoff=spec.cutoff + skin) for spec in potential.model.neighbors]
        return near.report(specs).within

    def __call__(
        self,
        frames: np.ndarray,
        counts: Mapping[str, float],
        rate: float,
        fraction: float,
        displacements: torch.Tensor | None = None,
    ) -> Outcome | None:
        """Takes a step with these frames of the dataset, with atoms moved by the displacements (N, 3), A, if there are
        any: the loss, the predictions before the step, and the batch. The next step reuses their memory. None, and no
        step, if the frames differ in kind, atoms move farther than the lists reach, or the model now has an evaluator
        that reads from the device."""
        if not self.potential.evaluator("train").captures:
            return None
        found = self._find(frames)
        if found is None or (displacements is not None and _farthest(displacements) > self._reach):
            return None
        group, places = found
        inputs = [places] if displacements is None else [places, displacements]
        with torch.cuda.device(self.potential.device):
            return self._take(group, inputs, counts, rate, fraction)

    def _take(
        self,
        group: DeviceFrames,
        inputs: list[torch.Tensor],
        counts: Mapping[str, float],
        rate: float,
        fraction: float,
    ) -> Outcome:
        """`inputs`: the places of frames, and displacements if there are any."""
        evaluator = self.potential.evaluator("train")
        if self._evaluator is not evaluator:
            self._captured.clear()
            self._evaluator = evaluator
        key = (id(group), len(inputs[0]), len(inputs), tuple(sorted(counts.items())))
        if key not in self._captured:
            self._captured[key] = self._capture(group, inputs, counts)
        replay, static, outcome = self._captured[key]
        for own, value in zip(static, inputs, strict=True):
            own.copy_(value, non_blocking=True)
        self._fraction.fill_(fraction)
        set_rate(self.optimizer, rate)
        if self._average is not None:
            self._share.fill_(self._average.next_share())
        self._hold_gradients()
        replay()
        if self._reduce is not None:
            self._reduce()
        if self._update is None:
            self._update = self._recorder.update(self._set_weights)
        self._update()
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
        self, group: DeviceFrames, inputs: Sequence[torch.Tensor], counts: Mapping[str, float]
    ) -> Outcome:
        """The loss and its gradients, stored in `grad` of the weights."""
        batch = group.batch(*inputs)
        result = predict(self.potential, batch, check=False)
        value = self.loss(result, batch, self._fraction, counts)
        found = torch.autograd.grad(value, self._weights, allow_unused=True, materialize_grads=True)
        self._joined.take(found)
        return value.detach(), {name: tensor.detach() for name, tensor in result.items()}, batch

    def _capture(
        self, group: DeviceFrames, inputs: Sequence[torch.Tensor], counts: Mapping[str, float]
    ) -> tuple[Callable[[], None], list[torch.Tensor], Outcome]:
        static = [value.to(self.potential.device, copy=True) for value in inputs]
        group.prepare(len(static[0]))
        work = partial(self._differentiate, group, static, counts)
        replay, outcome = self._recorder.differentiation(work)
        return replay, static, outcome

    def _set_weights(self) -> None:
        """New weights from `grad`, and their average."""
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


def largest_groups(data: Dataset) -> list[np.ndarray]:
    """The frames with graphs, in groups of similar ones. If there are very many groups, as for frames with different
    orders of atoms, the smaller ones get none: they come too seldom to pay for a capture."""
    return sorted(alike(data), key=len, reverse=True)[:_MOST_GROUPS]


def reach_of(loss: Loss, cutoff: float) -> float:
    """How far atoms may move in a graph, A; 0 if it would have too much room for edges."""
    return loss.reach if 2 * loss.reach <= _WIDEST * cutoff else 0.0


def _farthest(displacements: torch.Tensor) -> float:
    return float(displacements.square().sum(1).max()) ** 0.5


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
    """Graphs for a training on this data; None on a CPU, for an evaluator that reads from the device, for Hessians,
    and for data too large for the GPU's memory."""
    if potential.device.type not in Recorder.devices or "hessian" in loss.terms:
        return None
    if not potential.evaluator("train").captures:
        return None
    reach = reach_of(loss, lists.cutoff)
    lists = lists.with_skin(2 * reach + _MARGIN) if reach else lists
    size = len(data.positions) * (8 * lists.longest + 4 * data.ntypes + 100)
    if size > _SHARE * torch.cuda.mem_get_info(potential.device)[0]:
        return None
    groups = [DeviceFrames(data, lists, frames, potential.device) for frames in largest_groups(data)]
    return StepGraphs(
        potential,
        loss,
        optimizer,
        groups,
        reach=reach,
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
