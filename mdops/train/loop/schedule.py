"""Learning rates over the steps of a training, and the running average of weights."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from mdops.errors import ConfigError
from mdops.train.config.sections import LearningRateConfig
from mdops.train.loop.captured_optimizer import PIECE

_DEFAULT_STOP = 5e-8
_ALIGNED = 4  # numbers: 16 bytes of float32


class LearningRate:
    """DeePMD-kit's learning rates: after a linear warm-up, an exponential or a cosine fall, or a late one.

    With t = step - warm-up, T = steps - warm-up, and the section's keys:
    "exp" is start_lr * decay_rate^floor(t / decay_steps) (without floor if `smooth`), never below `stop`; decay_rate is
    (stop / start_lr)^(decay_steps / T) by default, and then decay_steps, where they are not less than T,
    max(1, about T/100, at most 100);
    "cosine" is stop + (start_lr - stop) (1 + cos(pi min(t, T) / T)) / 2;
    "wsd" is start_lr, and in the last D = decay_phase_ratio * steps, T at most, falls with f = 1 - (T - t) / D as
    (1 - f) start_lr + f stop ("linear"), so in its inverse ("inverse_linear"), or as "cosine" does.

    Attributes:
        section: the keys. steps: of the whole training.
        start, stop: the rates after the warm-up and at the end. warmup: its steps.
    """

    def __init__(self, section: LearningRateConfig, steps: int) -> None:
        self.section, self.steps, self.start = section, steps, section.start_lr
        self.stop = _DEFAULT_STOP if section.stop_lr is None else section.stop_lr
        if section.stop_lr_ratio is not None:
            self.stop = self.start * section.stop_lr_ratio
        ratio = section.warmup_ratio
        self.warmup = section.warmup_steps if ratio is None else int(ratio * steps)
        if not (0 < self.start < math.inf and 0 <= self.stop < math.inf):
            raise ConfigError(f"learning rates are {self.start} and {self.stop}, expected positive numbers")
        if section.type == "wsd" and not (self.stop > 0 and 0 < section.decay_phase_ratio <= 1):
            raise ConfigError(
                f'a rate of type "wsd" ends at {self.stop} after a part of {section.decay_phase_ratio} of the steps, '
                "expected a rate above 0 (stop_lr) and a part above 0 and up to 1 (decay_phase_ratio)"
            )
        if not 0 <= self.warmup < max(steps, 1):
            raise ConfigError(f"warmup_steps is {self.warmup}, expected 0 .. {steps - 1}")

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if step < self.warmup:
            first = self.section.warmup_start_factor
            return self.start * (first + (1 - first) * step / self.warmup)
        t, total = step - self.warmup, self.steps - self.warmup
        if self.section.type == "cosine":
            return self._cosine(min(t / total, 1.0))
        return self._late(t, total) if self.section.type == "wsd" else self._exp(t, total)

    def _cosine(self, fallen: float) -> float:
        return self.stop + (self.start - self.stop) * 0.5 * (1 + math.cos(math.pi * fallen))

    def _late(self, t: int, total: int) -> float:
        phase = max(1, min(int(self.section.decay_phase_ratio * self.steps), total))
        fallen = min(max((t - (total - phase)) / phase, 0.0), 1.0)
        if self.section.decay_type == "cosine":
            return self._cosine(fallen)
        if self.section.decay_type == "linear":
            return self.start + (self.stop - self.start) * fallen
        return 1 / (fallen / self.stop + (1 - fallen) / self.start)

    def _exp(self, t: int, total: int) -> float:
        interval = self.section.decay_steps
        if self.section.decay_rate is None and interval >= total:
            interval = 100 if total // 10 > 100 else total // 100 + 1
        rate = self.section.decay_rate
        if rate is None:
            rate = math.exp(math.log(max(self.stop, 1e-10) / self.start) * interval / total)
        falls = t / interval
        return max(self.start * rate ** (falls if self.section.smooth else math.floor(falls)), self.stop)


class FlatBuffer:
    """Tensors of one dtype in one block of memory: on a GPU an operation on it takes a few microseconds, while one on a
    list of tensors keeps few multiprocessors busy. Initially zero.

    Attributes:
        whole: (n,). parts: of the tensors' shapes, each aligned to 16 bytes for optimizers' kernels.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sizes = [t.numel() for t in tensors]
        places = [size + -size % _ALIGNED for size in sizes]
        self.whole = tensors[0].new_zeros(sum(places), requires_grad=False)
        split = zip(self.whole.split(places), sizes, tensors, strict=True)
        self.parts = [part[:size].view(t.shape) for part, size, t in split]
        self._pieces = [piece for part in self.parts for piece in part.view(-1).split(PIECE)]

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies tensors of those shapes and that dtype into the parts."""
        pieces = [piece for t in tensors for piece in t.detach().reshape(-1).split(PIECE)]
        torch._foreach_copy_(self._pieces, pieces)


class WeightAverage:
    """The moving average of parameters: after each step, average += (1 - decay) (weight - average).

    For the first steps the decay is (1 + n) / (10 + n) where that is less, so that random initial weights are
    soon forgotten.

    Attributes:
        decay: the largest, see above.
        updates: the number of its steps.
        values: the averages, one a parameter; is_in_place: whether weights and averages are swapped (`swap`).
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        decay: float = 0.999,
        swapped: Callable[[], None] | None = None,
    ) -> None:
        """`swapped`: called after each `swap`."""
        if not 0 <= decay < 1:
            raise ConfigError(f"the decay of the weights' average is {decay}, expected 0 .. 1")
        self.decay, self.updates, self.is_in_place, self._swapped = decay, 0, False, swapped
        self._parameters: list[torch.Tensor] = list(parameters)
        self._averages, self._now = FlatBuffer(self._parameters), FlatBuffer(self._parameters)
        self.values = self._averages.parts
        self._averages.take(self._parameters)

    def next_share(self) -> float:
        """The next weights' share of the average; counts the step."""
        self.updates += 1
        return 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))

    @torch.no_grad()
    def take_in(self, share: float | torch.Tensor) -> None:
        """Adds the current weights with this share of the average (a number, or a tensor without axes)."""
        if isinstance(share, float):
            torch._foreach_lerp_(self.values, self._parameters, share)
            return
        self._now.take(self._parameters)
        self._averages.whole.lerp_(self._now.whole, share.to(self._now.whole.dtype))

    def update(self) -> None:
        """Adds the current weights."""
        self.take_in(self.next_share())

    @torch.no_grad()
    def swap(self) -> None:
        """Swaps weights and averages: once to validate or save the averages, once more to continue."""
        for value, parameter in zip(self.values, self._parameters, strict=True):
            kept = parameter.clone()
            parameter.copy_(value)
            value.copy_(kept)
        self.is_in_place = not self.is_in_place
        if self._swapped is not None:
            self._swapped()
