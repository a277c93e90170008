"""One training in several processes: each computes a share of the frames of every batch."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from mdops._library import check_device
from mdops.data.dataset import Dataset
from mdops.data.labels import Labels
from mdops.errors import InputError, MDOpsError, ParallelError
from mdops.train.loss.base import SHARES, label_number

T = TypeVar("T")

# The first process takes the statistics of the data while the others wait: hours for large data.
_PATIENCE = timedelta(hours=6)


@dataclass(frozen=True)
class Processes:
    """The processes of a training, all of which call the same methods in the same order.

    Shared data goes through the CPU, except the gradients, which stay on their device.

    Attributes:
        rank: of this one; the process of rank 0 alone writes files.
        count: how many there are.
    """

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> "Processes":
        """Those of `torch.distributed` where it is initialised, else this one alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def from_first(self, make: Callable[[], T]) -> T:
        """The result of `make` in the first process; if it raises an error of mdops, all raise it."""
        if self.count == 1:
            return make()
        made: list[Any] = [None, None]
        if self.is_first:
            try:
                made[0] = make()
            except (MDOpsError, OSError) as error:
                made[1] = error
        with _lost_messages():
            dist.broadcast_object_list(made, src=0, device=torch.device("cpu"))
        if made[1] is not None:
            raise made[1]
        return made[0]

    def share(self, frames: np.ndarray) -> tuple[np.ndarray, bool]:
        """This process' share of the frames of a batch, and whether it counts.

        A process without a share computes the first frame, too; that must not count.
        """
        own = np.array_split(frames, self.count)[self.rank]
        return (own, True) if len(own) else (frames[:1], False)

    def label_counts(self, data: Dataset, frames: np.ndarray, counts: bool = True) -> dict[str, float]:
        """The divisors of a `Loss` in this process, so that the mean of the processes' losses (and gradients)
        is that of all `frames` as one batch: the mean over processes of `loss.label_counts`.

        `counts` is that of `share`: with False the loss and its gradients are zero.
        """
        found: dict[str, float] = {SHARES: self.count if counts else 0}
        for name in filter(data.has, data.known):
            labelled = frames[data.present[name][frames]]
            found[name] = label_number(data, name, labelled) / self.count if counts else np.inf
        return found

    def mean_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> Callable[[], None] | None:
        """The hook of `train_step`: replaces gradients by their means over processes; None for one process.

        All go into one buffer. For models of some 100,000 weights one message costs less than several, and the
        model needs no wrapper (DistributedDataParallel) around its forces.
        """
        if self.count == 1:
            return None
        trained = [p for p in parameters if p.requires_grad]

        def reduce() -> None:
            # A parameter without gradient here may have one elsewhere.
            for p in trained:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            gradients = [p.grad for p in trained if p.grad is not None]
            flat = torch.cat([g.reshape(-1) for g in gradients])
            with _lost_messages():
                dist.all_reduce(flat)
            flat /= self.count
            parts = flat.split([g.numel() for g in gradients])
            torch._foreach_copy_(gradients, [a.view_as(g) for a, g in zip(parts, gradients, strict=True)])

        return reduce

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum over processes of each of some numbers."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        with _lost_messages():
            dist.all_reduce(total)
        return total.tolist()

    def sum_errors(
        self, errors: Mapping[str, tuple[float, int]], known: Labels
    ) -> dict[str, tuple[float, int]]:
        """The sums of `squared_errors` of the known labels over processes, each of which may lack some of them; those
        of no values are left out."""
        if self.count == 1:
            return {name: (square, number) for name, (square, number) in errors.items() if number}
        flat = self.sums([value for name in known for value in errors.get(name, (0.0, 0))])
        pairs = zip(known, flat[::2], flat[1::2], strict=True)
        return {name: (square, int(number)) for name, square, number in pairs if number}

    def agreeing(self, wants: Callable[[], bool] | None) -> Callable[[], bool]:
        """A call for all processes after each step: whether one of them `wants` something, or wanted it one call
        before. The answer is the same in all."""
        if self.count == 1 or wants is None:
            return wants or (lambda: False)
        sent: list[tuple[torch.Tensor, Any]] = []

        def agreed() -> bool:
            # A message travels during a step.
            flag = torch.tensor(float(wants()))
            with _lost_messages():
                sent.append((flag, dist.all_reduce(flag, async_op=True)))
                if len(sent) == 1:
                    return False
                found, work = sent.pop(0)
                work.wait()
            return bool(found)

        return agreed

    def wait(self) -> None:
        """Waits for all processes."""
        if self.count > 1:
            self.sums([0.0])


@contextmanager
def _lost_messages() -> Iterator[None]:
    """Explains why a message did not get through."""
    try:
        yield
    except RuntimeError as error:
        raise ParallelError(
            f"another process of this training has stopped; its own message tells why ({error})"
        ) from error


def join_processes(device: str | torch.device) -> torch.device:
    """Joins the processes that `torchrun` started, if it did; gives the device of this one.

    "cuda" is another GPU for each process of a machine. Processes talk by NCCL on GPUs, and by gloo on CPUs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
        return check_device(device)
    backend, kind = "gloo", torch.device(device)
    if kind.type == "cuda":
        if kind.index is not None:
            raise InputError(f"device is {device}: several processes cannot share one GPU: give cuda")
        device, backend = f"cuda:{os.environ.get('LOCAL_RANK', '0')}", "cpu:gloo,cuda:nccl"
    found = check_device(device)
    if found.type == "cuda":
        torch.cuda.set_device(found)
    dist.init_process_group(backend, timeout=_PATIENCE)
    return found


def leave_processes() -> None:
    """The reverse of `join_processes`, at the end of a training."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
