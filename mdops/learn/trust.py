"""What a committee's deviation says of its error: levels, from labels that no student has seen."""

from dataclasses import dataclass

import numpy as np

from mdops.learn.students import Answers


@dataclass(frozen=True)
class Trust:
    """Deviations of a frame (the largest of its forces, eV/A), and what they mean.

    Attributes:
        low: below this a frame tells the students nothing that they do not know.
        high: above this their forces mean nothing: the error to expect is as large as forces are.
        ratio: root mean square error over deviation, of the atoms held out.
        correlation: Spearman's rank correlation of deviation and largest error, over frames held out.
    """

    low: float
    high: float
    ratio: float
    correlation: float | None


def trust_levels(answers: Answers, target: float) -> Trust:
    """Levels by the students' own errors on labels held out.

    `low` is where the error to expect of the worst atom is that of a frame whose components have the target's error
    (eV/A); the committee's usual deviation on what it was not trained on, if that is more."""
    deviation, errors = answers.deviation, answers.largest_errors()
    ratio = float(np.sqrt(np.square(errors).mean() / max(np.square(deviation).mean(), 1e-12)))
    size = float(np.sqrt(np.square(answers.data.labels["forces"]).sum(1).mean()))
    low = max(np.sqrt(3) * target / ratio, float(np.median(deviation)))
    # Of a first, poor committee the usual deviation may be that large: then all is worth a label up to twice of it.
    high = max(size / ratio, 2 * low)
    return Trust(low, high, ratio, rank_correlation(deviation, errors))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman's; None of fewer than three pairs, or where one does not vary."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(np.stack([_ranks(a), _ranks(b)]))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], np.float64)
