"""What a committee's deviation says about its error: levels, from labels that no student has seen."""

from dataclasses import dataclass

import numpy as np

from mdops.learn.students import Answers


@dataclass(frozen=True)
class Trust:
    """Deviations of a frame (the largest of its forces, eV/A), and what they mean.

    Attributes:
        low: a frame with a lower deviation teaches the students nothing new.
        high: with a higher deviation, forces are meaningless: the expected error is as large as the forces.
        ratio: root mean square error divided by deviation, for the held-out frames.
        correlation: Spearman's rank correlation of deviation and largest error, over held-out frames.
    """

    low: float
    high: float
    ratio: float
    correlation: float | None


def trust_levels(answers: Answers, target: float) -> Trust:
    """Levels from the students' own errors on held-out labels.

    At `low`, the expected error of the worst atom is that of a frame whose force components have the target's error
    (eV/A). It is at least the median deviation of held-out frames."""
    deviation, errors = answers.deviation, answers.largest_errors()
    ratio = float(np.sqrt(np.square(errors).mean() / max(np.square(deviation).mean(), 1e-12)))
    size = float(np.sqrt(np.square(answers.data.labels["forces"]).sum(1).mean()))
    low = max(np.sqrt(3) * target / ratio, float(np.median(deviation)))
    # The median deviation of a poor first committee may exceed `size / ratio`: then label up to twice of it.
    high = max(size / ratio, 2 * low)
    return Trust(low, high, ratio, rank_correlation(deviation, errors))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's correlation; None for fewer than three pairs, or if one does not vary."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(np.stack([_ranks(a), _ranks(b)]))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], np.float64)
