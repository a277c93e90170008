"""Which frames make the batch of a step."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mdops.data.dataset import Dataset
from mdops.data.lmdb_blocks import Blocks
from mdops.data.lmdb_file import is_lmdb
from mdops.errors import ConfigError

_AUTO_ATOMS = 32


def batch_sizes(data: Dataset, rule: int | Sequence[int] | str) -> list[int]:
    """Frames in a batch of each system.

    Args:
        data: the systems.
        rule: a number, one for each system, "auto:n" (so many that they have n atoms or more; "auto" is
            "auto:32"), "max:n" (so many that they have n atoms or fewer, but one at least), "filter:n" (the same; the
            data have no larger frames, see `most_atoms`), "mixed:n" (n frames of any systems), or "mix:n" (as many
            frames of similar sizes as have n places or fewer, if each has the places of the largest; here the number
            for frames of the mean size).

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
    word, n = _parsed(rule)
    if word == "mixed":
        return [n] * systems
    if word == "mix":
        return [max(1, int(n / max(float(data.counted().mean()), 1.0)))] * systems
    frames = np.bincount(data.system, minlength=systems)
    atoms = np.bincount(data.system, data.counted(), minlength=systems)
    mean = np.where(frames > 0, atoms / np.maximum(frames, 1), 1.0).tolist()
    return [max(1, int(np.ceil(n / m) if word == "auto" else n // m)) for m in mean]


def _parsed(rule: str) -> tuple[str, int]:
    word, _, number = rule.partition(":")
    number = number or (str(_AUTO_ATOMS) if rule == "auto" else "")
    if word not in ("auto", "max", "filter", "mixed", "mix") or not number.isdecimal() or int(number) < 1:
        raise ConfigError(
            f'batch_size: is {rule!r}, expected a number, a list, "auto:n", "max:n", "filter:n", "mix:n" or '
            '"mixed:n", n at least 1'
        )
    return word, int(number)


def most_atoms(rule: int | Sequence[int] | str) -> int | None:
    """n of the rule "filter:n": frames with more atoms are no data. None for other rules.

    Raises ConfigError for a text that is no rule of `batch_sizes`."""
    word, n = _parsed(rule) if isinstance(rule, str) else ("", 0)
    return n if word == "filter" else None


def blocks_of(style: str) -> list[tuple[slice, float]]:
    """The blocks of systems in a text such as "prob_sys_size;0:10:0.3;10:20:0.7", each with its weight; none in
    "prob_sys_size" and "prob_uniform".

    Raises ConfigError for another text, negative weights, and weights that are all 0."""
    word, *parts = style.split(";")
    if style == "prob_uniform" or (word == "prob_sys_size" and not parts):
        return []
    try:
        fields = [part.split(":") for part in parts]
        found = [(slice(int(start), int(stop)), float(weight)) for start, stop, weight in fields]
    except ValueError:
        found = []
    if word != "prob_sys_size" or not found:
        raise ConfigError(
            f'auto_prob: is {style!r}, expected "prob_sys_size", "prob_uniform" or '
            '"prob_sys_size;BEGIN:END:WEIGHT;...", with whole numbers BEGIN and END'
        )
    weights = [weight for _, weight in found]
    if not all(0 <= weight < math.inf for weight in weights) or not 0 < sum(weights) < math.inf:
        raise ConfigError(f"auto_prob: is {style!r}, expected weights of 0 or more, one of them above 0")
    return found


def system_odds(data: Dataset, rule: int | Sequence[int] | str, style: str) -> list[float] | None:
    """The probability of each system by `auto_prob`; None: by its number of batches.

    As in DeePMD-kit, the weights are divided by their sum, and the systems of a block share its weight by their
    numbers of batches. BEGIN and END are those of a slice of Python. A system in several blocks has the probability
    from the last, and one in no block has none. Then the sum is not 1, and `Sampler` divides by it.

    Args:
        data, rule: as for `batch_sizes`.
        style: as for `blocks_of`.

    Warns of systems in several blocks or in none, and of blocks without batches.

    Raises ConfigError for a wrong text, if no block with a weight has batches, and for blocks of data of which some are
    in LMDB (`lmdb_blocks` has those of a single LMDB dataset)."""
    blocks, systems = blocks_of(style), len(data.systems)
    if not blocks:
        return [1.0] * systems if style == "prob_uniform" else None
    if any(is_lmdb(Path(source)) for source in {source for source, _ in data.sources}):
        raise ConfigError(
            f"auto_prob: is {style!r}, and blocks are of folders of systems or of one LMDB dataset: give one LMDB "
            "dataset alone, or only folders"
        )
    counts = -(-np.bincount(data.system, minlength=systems) // np.array(batch_sizes(data, rule)))
    odds, uses = np.zeros(systems), np.zeros(systems, dtype=np.int64)
    shares = np.array([weight for _, weight in blocks])
    for (block, weight), share in zip(blocks, shares / shares.sum(), strict=True):
        uses[block] += 1
        if counts[block].sum():
            odds[block] = counts[block] / counts[block].sum() * share
        elif weight:
            place = f"{block.start}:{block.stop}:{weight:g}"
            warnings.warn(
                f"auto_prob: {place} has no effect: it has no batches, and there are {systems} systems",
                stacklevel=2,
            )
    if not odds.any():
        raise ConfigError(
            f"auto_prob: is {style!r}, and no block with a weight has batches of the {systems} systems"
        )
    for wrong, what in (
        (uses > 1, "in several blocks, of which the last one counts"),
        (uses == 0, "in no block and not drawn"),
    ):
        if wrong.any():
            first = data.systems[int(np.argmax(wrong))]
            warnings.warn(
                f"auto_prob: {int(wrong.sum())} of {systems} systems are {what}; the first is {first}",
                stacklevel=2,
            )
    return [float(share) for share in odds]


class Sampler:
    """The frames of every step, by the step's number and the seed alone: a restart needs no state.

    An epoch goes through every system once in random order, in batches of one system (or of any, "mixed:n" and
    "mix:n"), and these come in random order. With other odds of the systems, each batch's system is drawn by them. A
    system without frames has no batches. With `blocks` an epoch has copies of their frames, and random ones of them
    once more; each system has its share of a block's.

    Attributes:
        batches: of all systems.
        largest: the most frames of a batch that is drawn; of "mix:n" with blocks, in the first epoch.
    """

    def __init__(
        self,
        data: Dataset,
        rule: int | Sequence[int] | str,
        *,
        seed: int,
        odds: Sequence[float] | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        """`rule` as for `batch_sizes`; `odds`: of each system, None is by its number of batches; `blocks`: see
        `lmdb_blocks`."""
        self._sizes = batch_sizes(data, rule)
        self._seed, self._odds = seed, None
        word, most = _parsed(rule) if isinstance(rule, str) else ("", 0)
        mixed = word in ("mixed", "mix")
        self._groups = [np.arange(len(data))] if mixed else data.frames_of_systems()
        if odds is not None:
            if mixed:
                raise ConfigError(
                    f'sys_probs (or auto_prob): batches of the size "{word}:n" are of any systems'
                )
            if len(odds) != len(data.systems):
                raise ConfigError(f"sys_probs: has {len(odds)} numbers for {len(data.systems)} systems")
            weights = np.where([len(g) > 0 for g in self._groups], odds, 0.0)
            if not sum(weights) > 0 or min(odds) < 0:
                raise ConfigError(
                    f"sys_probs: is {list(odds)}, expected numbers that are not negative, and a positive one of a "
                    "system with frames"
                )
            self._odds = weights / np.sum(weights)
        self._copied = _copied(self._groups, blocks or [])
        frames_of = [
            len(group) + sum(wanted - len(own) for own, wanted in copied)
            for group, copied in zip(self._groups, self._copied, strict=True)
        ]
        self._counts = [-(-n // b) for n, b in zip(frames_of, self._sizes, strict=False)]
        self._room, self._atoms = most, data.counted() if word == "mix" else None
        self.batches = sum(self._counts)
        if word == "mix":
            first = self._drawn(np.random.default_rng([seed, 0]))
            self.batches, self.largest = len(first), max(map(len, first))
        elif self._odds is None:
            self.largest = max(-(-n // c) for n, c in zip(frames_of, self._counts, strict=True) if c)
        else:
            drawn = zip(self._groups, self._sizes, self._odds, strict=True)
            self.largest = max(min(len(g), size) for g, size, share in drawn if share > 0)
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
        plan = self._drawn(random)
        # Copies of frames of other sizes may need another number of batches of the size "mix:n".
        return (plan + plan[: max(0, self.batches - len(plan))])[: self.batches]

    def _drawn(self, random: np.random.Generator) -> list[np.ndarray]:
        """All frames, with the copies of blocks."""
        plan: list[np.ndarray] = []
        for group, count, copied in zip(self._groups, self._counts, self._copied, strict=True):
            parts = [np.setdiff1d(group, np.concatenate([own for own, _ in copied]))] if copied else [group]
            for own, wanted in copied:
                whole, rest = divmod(wanted, len(own))
                parts += [np.tile(own, whole), random.choice(own, rest, replace=False)]
            frames = random.permutation(np.concatenate(parts))
            if self._atoms is not None:
                plan += self._packed(frames)
            elif count:
                plan += np.array_split(frames, count)
        return [plan[k] for k in random.permutation(len(plan))]

    def _packed(self, frames: np.ndarray) -> list[np.ndarray]:
        """Frames of increasing sizes in batches of the size "mix:n"."""
        assert self._atoms is not None
        frames = frames[np.argsort(self._atoms[frames], kind="stable")]
        starts = [0]
        for k, atoms in enumerate(self._atoms[frames].tolist()):
            if k > starts[-1] and (k - starts[-1] + 1) * atoms > self._room:
                starts.append(k)
        return np.split(frames, starts[1:])

    def _draw(self, system: int, random: np.random.Generator) -> np.ndarray:
        group = self._groups[system]
        return random.choice(group, min(self._sizes[system], len(group)), replace=False)


def _copied(groups: Sequence[np.ndarray], blocks: Blocks) -> list[Blocks]:
    """The blocks of each group: it has its share of a block's copies, rounded so that these are all given out."""
    found: list[Blocks] = [[] for _ in groups]
    for frames, wanted in blocks:
        own = [np.intersect1d(group, frames) for group in groups]
        shares = [divmod((wanted - len(frames)) * len(part), max(len(frames), 1)) for part in own]
        left = wanted - len(frames) - sum(whole for whole, _ in shares)
        more = sorted((k for k, part in enumerate(own) if len(part)), key=lambda k: -shares[k][1])[:left]
        for k, part in enumerate(own):
            if len(part):
                found[k].append((part, len(part) + shares[k][0] + (k in more)))
    return found
