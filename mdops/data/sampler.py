"""Which frames make the batch of a step."""

import math
from collections.abc import Sequence

import numpy as np

from mdops.data.dataset import Dataset
from mdops.errors import ConfigError

_AUTO_ATOMS = 32


def batch_sizes(data: Dataset, rule: int | Sequence[int] | str) -> list[int]:
    """Frames in a batch of each system.

    Args:
        data: the systems.
        rule: a number, one for each system, "auto:n" (so many that they have n atoms or more; "auto" is
            "auto:32"), "max:n" (so many that they have n atoms or fewer, but one at least), or "mixed:n" (n
            frames of any systems).

    Raises ConfigError for another rule.
    """
    systems = len(data.systems)
    if not isinstance(rule, str):
        sizes = [rule] * systems if isinstance(rule, int) else list(rule)
        if len(sizes) != systems:
            raise ConfigError(f"batch_size: has {len(sizes)} numbers for {systems} systems")
        if min(sizes) < 1:
            raise ConfigError(f"batch_size: is {rule}, expected 1 or more")
        return sizes
    word, _, number = rule.partition(":")
    number = number or (str(_AUTO_ATOMS) if rule == "auto" else "")
    if word not in ("auto", "max", "mixed") or not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            f'batch_size: is {rule!r}, expected a number, a list, "auto:n", "max:n" or "mixed:n", n at least 1'
        )
    n = int(number)
    if word == "mixed":
        return [n] * systems
    atoms = [data.counted()[data.system == k] for k in range(systems)]
    mean = [float(own.mean()) if len(own) else 1.0 for own in atoms]
    return [max(1, int(np.ceil(n / m) if word == "auto" else n // m)) for m in mean]


class Sampler:
    """The frames of every step, by the step's number and the seed alone: a restart needs no state.

    An epoch goes through every system once in random order, in batches of one system (or of any, "mixed:n"),
    and these come in random order. With other odds of the systems, each batch's system is drawn by them. A system
    without frames has no batches.

    Attributes:
        batches: of all systems.
        largest: the most frames of a batch.
    """

    def __init__(
        self,
        data: Dataset,
        rule: int | Sequence[int] | str,
        *,
        seed: int,
        odds: Sequence[float] | None = None,
    ) -> None:
        """`rule` as for `batch_sizes`; `odds`: of each system, None is by its number of batches."""
        self._sizes = batch_sizes(data, rule)
        self._seed, self._odds = seed, None
        mixed = isinstance(rule, str) and rule.startswith("mixed")
        frames = np.arange(len(data))
        self._groups = [frames] if mixed else [frames[data.system == k] for k in range(len(data.systems))]
        if odds is not None:
            if mixed:
                raise ConfigError(
                    'sys_probs (or prob_uniform): batches of the size "mixed:n" are of any systems'
                )
            if len(odds) != len(data.systems):
                raise ConfigError(f"sys_probs: has {len(odds)} numbers for {len(data.systems)} systems")
            weights = np.where([len(g) > 0 for g in self._groups], odds, 0.0)
            if not sum(weights) > 0 or min(odds) < 0:
                raise ConfigError(
                    f"sys_probs: is {list(odds)}, expected numbers that are not negative, and a positive one of a "
                    "system with frames"
                )
            self._odds = weights / sum(weights)
        self._counts = [-(-len(g) // b) for g, b in zip(self._groups, self._sizes, strict=False)]
        self.batches = sum(self._counts)
        self.largest = max(-(-len(g) // n) for g, n in zip(self._groups, self._counts, strict=True) if n)
        self._epoch, self._plan = -1, list[np.ndarray]()

    @property
    def epoch(self) -> int:
        """The steps after which each system was drawn as often as it has batches, on average."""
        if self._odds is None:
            return self.batches
        drawn = zip(self._counts, self._odds, strict=True)
        return math.ceil(max(count / share for count, share in drawn if share > 0))

    def __call__(self, step: int) -> np.ndarray:
        """The frames of a step, counted from 0."""
        epoch, place = divmod(step, self.batches)
        if epoch != self._epoch:
            self._epoch, self._plan = epoch, self._make(np.random.default_rng([self._seed, epoch]))
        return self._plan[place]

    def _make(self, random: np.random.Generator) -> list[np.ndarray]:
        """As many batches as all systems have."""
        if self._odds is not None:
            drawn = random.choice(len(self._groups), self.batches, p=self._odds)
            return [self._draw(int(k), random) for k in drawn]
        plan = []
        for group, count in zip(self._groups, self._counts, strict=True):
            plan += np.array_split(random.permutation(group), count) if count else []
        return [plan[k] for k in random.permutation(len(plan))]

    def _draw(self, system: int, random: np.random.Generator) -> np.ndarray:
        group = self._groups[system]
        return random.choice(group, min(self._sizes[system], len(group)), replace=False)
