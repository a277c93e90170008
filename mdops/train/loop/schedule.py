"""Learning rates over the steps of a training, and the running average of weights."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from mdops.errors import ConfigError
from mdops.train.loop.captured_optimizer import PIECE

_KINDS = ("exp", "cosine", "wsd")
_ALIGNED = 4  # numbers: 16 bytes of float32


@dataclass(frozen=True)
class LearningRate:
    """DeePMD-kit's learning rates: after a linear warm-up, an exponential or a cosine fall, or a late one.

    With t = step - warmup_steps and T = steps - warmup_steps:
    "exp" is start * decay_rate^floor(t / decay_steps) (without floor if `smooth`), never below `stop`;
    "cosine" is stop + (start - stop) (1 + cos(pi min(t, T) / T)) / 2;
    "wsd" is start, and in the last D = `decay_phase` steps falls with f = 1 - (T - t) / D as (1 - f) start + f stop
    ("linear"), so in its inverse ("inverse_linear"), or as "cosine" does.

    Attributes:
        start, stop: the rates after the warm-up and at the end.
        steps: of the whole training.
        kind: "exp", "cosine" or "wsd".
        decay_steps: steps between two falls; replaced by max(1, about T/100, at most 100) where it is not less
            than T and no `decay_rate` is given.
        decay_rate: by default (stop / start)^(decay_steps / T).
        smooth: fall at every step.
        decay_phase, decay_type: see above; of all steps D is this part, and no more than T.
        warmup_steps, warmup_factor: the rate grows from warmup_factor * start to start in so many steps.
    """

    start: float
    stop: float
    steps: int
    kind: str = "exp"
    decay_steps: int = 5000
    decay_rate: float | None = None
    smooth: bool = False
    warmup_steps: int = 0
    warmup_factor: float = 0.0
    decay_phase: float = 0.1
    decay_type: str = "inverse_linear"

    def __post_init__(self) -> None:
        if not (0 < self.start < math.inf and 0 <= self.stop < math.inf):
            raise ConfigError(f"learning rates are {self.start} and {self.stop}, expected positive numbers")
        if self.kind not in _KINDS:
            raise ConfigError(f"the learning rate's type is {self.kind!r}, expected {', '.join(_KINDS)}")
        if self.kind == "wsd" and not (self.stop > 0 and 0 < self.decay_phase <= 1):
            raise ConfigError(
                f'a rate of type "wsd" ends at {self.stop} after a part of {self.decay_phase} of the steps, expected '
                "a rate above 0 (stop_lr) and a part above 0 and up to 1 (decay_phase_ratio)"
            )
        if not 0 <= self.warmup_steps < max(self.steps, 1):
            raise ConfigError(f"warmup_steps is {self.warmup_steps}, expected 0 .. {self.steps - 1}")
        if self.decay_steps < 1:
            raise ConfigError(f"decay_steps is {self.decay_steps}, expected 1 or more")

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.start * (self.warmup_factor + (1 - self.warmup_factor) * step / self.warmup_steps)
        t, total = step - self.warmup_steps, self.steps - self.warmup_steps
        if self.kind == "cosine":
            return self._cosine(min(t / total, 1.0))
        return self._late(t, total) if self.kind == "wsd" else self._exp(t, total)

    def _cosine(self, fallen: float) -> float:
        return self.stop + (self.start - self.stop) * 0.5 * (1 + math.cos(math.pi * fallen))

    def _late(self, t: int, total: int) -> float:
        phase = max(1, min(int(self.decay_phase * self.steps), total))
        fallen = min(max((t - (total - phase)) / phase, 0.0), 1.0)
        if self.decay_type == "cosine":
            return self._cosine(fallen)
        if self.decay_type == "linear":
            return self.start + (self.stop - self.start) * fallen
        return 1 / (fallen / self.stop + (1 - fallen) / self.start)

    def _exp(self, t: int, total: int) -> float:
        interval = self.decay_steps
        if self.decay_rate is None and interval >= total:
            interval = 100 if total // 10 > 100 else total // 100 + 1
        rate = self.decay_rate
        if rate is None:
            rate = math.exp(math.log(max(self.stop, 1e-10) / self.start) * interval / total)
        falls = t / interval
        return max(self.start * rate ** (falls if self.smooth else math.floor(falls)), self.stop)


class FlatBuffer:
    """Room for tensors of one dtype in one piece of memory: on a GPU an operation on it takes a few microseconds, where
    one on a list of tensors keeps few multiprocessors busy. Zeros at first.

    Attributes:
        whole: (n,). parts: of the tensors' shapes, each from 16 bytes on, as optimizers' kernels want them.
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
        updates: how many steps it has seen.
        values: the averages, one a parameter; is_in_place: whether weights and averages are exchanged (`swap`).
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"the decay of the weights' average is {decay}, expected 0 .. 1")
        self.decay, self.updates, self.is_in_place = decay, 0, False
        self._parameters: list[torch.Tensor] = list(parameters)
        self._averages, self._now = FlatBuffer(self._parameters), FlatBuffer(self._parameters)
        self.values = self._averages.parts
        self._averages.take(self._parameters)

    def next_share(self) -> float:
        """The part that the next weights have in the average; counts them as seen."""
        self.updates += 1
        return 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))

    @torch.no_grad()
    def take_in(self, share: float | torch.Tensor) -> None:
        """Takes in the weights of now, with this part of the average (a number, or a tensor without axes)."""
        if isinstance(share, float):
            torch._foreach_lerp_(self.values, self._parameters, share)
            return
        self._now.take(self._parameters)
        self._averages.whole.lerp_(self._now.whole, share.to(self._now.whole.dtype))

    def update(self) -> None:
        """Takes in the weights of now."""
        self.take_in(self.next_share())

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges weights and averages: once to validate or save the averages, once more to go on."""
        for value, parameter in zip(self.values, self._parameters, strict=True):
            kept = parameter.clone()
            parameter.copy_(value)
            value.copy_(kept)
        self.is_in_place = not self.is_in_place
