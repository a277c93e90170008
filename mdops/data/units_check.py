"""Whether the forces of a system can be the slopes of its energies, and its virials those of a material."""

from collections.abc import Callable

import numpy as np

from mdops.data.frame_set import FrameSet

_PAIRS = 64
# Frames that a near one is looked for of, and atoms that are looked at for each.
_PROBES, _SEARCHED = 16, 300_000
_FACTOR = 8.0  # energies and forces of mixed units differ by 14 (Rydberg, eV) or more
_CORRELATED = 0.9
# eV/A^3, 320 GPa: data of solids and liquids is below, and in GPa or kbar most of it seems above.
_PRESSURE = 2.0
_GPA = 160.2  # eV/A^3

Pairs = list[tuple[int, int]]


def units_warning(block: FrameSet) -> str | None:
    """A warning if energy differences of frames that are alike contradict the work of the forces, or None.

    Between two frames the energy falls by (F_a + F_b)/2 . (x_b - x_a), exactly in a harmonic well. The slope
    of the differences over that work is 1. It is looked at where the two correlate so well that it means
    something: frames of a run or around a minimum, of one composition and one cell. Frames that follow each
    other are looked at first, then, as frames may be shuffled, some with the nearest to each.
    """
    if "energy" not in block.labels or "forces" not in block.labels or block.frames < 4:
        return None
    choices: tuple[Callable[[FrameSet], Pairs], ...] = (_successive, _nearest)
    for choose in choices:
        found = _slope(block, choose(block))
        if found is not None:
            slope, correlation = found
            if 1 / _FACTOR < slope < _FACTOR:
                return None
            return (
                f"{block.source}: energies change {slope:.3g} times as much as the forces say "
                f"(correlation {correlation:.2f}, from frame {block.first}): units may be mixed, or signs; "
                "expected are eV, A and eV/A"
            )
    return None


def pressure_warning(block: FrameSet) -> str | None:
    """A warning if pressures of periodic frames are such as other units than eV/A^3 would give, or None."""
    if "virial" not in block.labels or not block.pbc.all():
        return None
    virial = np.asarray(block.labels["virial"], dtype=np.float64).reshape(-1, 3, 3)
    volume = np.abs(np.linalg.det(np.asarray(block.cell, dtype=np.float64)))
    pressure = float(np.median(np.abs(np.trace(virial, axis1=1, axis2=2)) / (3 * volume)))
    if not pressure > _PRESSURE:
        return None
    return (
        f"{block.source}: pressures are {pressure * _GPA:,.0f} GPa in the middle (from frame {block.first}): units may "
        "be mixed; expected are stresses in eV/A^3 (1 GPa is 0.00624), and virials in eV"
    )


def _slope(block: FrameSet, pairs: Pairs) -> tuple[float, float] | None:
    """Slope and correlation of energy differences over work, None where they mean nothing."""
    a, b = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    steps, alike = _displacements(block, a, b)
    energy, force = (np.asarray(block.labels[name]) for name in ("energy", "forces"))
    forces = force[a].astype(np.float64) + force[b]
    work = -0.5 * (forces * steps).sum((1, 2))[alike]
    change = (energy[b].astype(np.float64) - energy[a])[alike]
    if len(work) < 3 or not np.std(work) or not np.std(change):
        return None
    correlation = float(np.corrcoef(work, change)[0, 1])
    if not abs(correlation) >= _CORRELATED:  # or it is NaN
        return None
    return float(np.dot(work, change) / np.dot(work, work)), correlation


def _successive(block: FrameSet) -> Pairs:
    stride = max(1, (block.frames - 1) // _PAIRS)
    return [(a, a + 1) for a in range(0, block.frames - 1, stride)]


def _nearest(block: FrameSet) -> Pairs:
    """Some frames, each with the one whose atoms are nearest to its own."""
    searched = min(block.frames, max(2, _SEARCHED // max(1, block.positions.shape[1])))
    probes = np.unique(np.linspace(0, searched - 1, _PROBES).astype(int))
    pairs = []
    for probe in probes.tolist():
        others = np.delete(np.arange(searched), probe)
        steps, alike = _displacements(block, np.array([probe]), others)
        if alike.any():
            distance = np.where(alike, np.square(steps).sum((1, 2)), np.inf)
            pairs.append((probe, int(others[np.argmin(distance)])))
    return pairs


def _displacements(block: FrameSet, a: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(F, n, 3): the ways from frames a, or from one, to others, by the nearest image; and (F,), whether types and cell
    agree."""
    cells = np.asarray(block.cell[others], dtype=np.float64)
    cell = np.asarray(block.cell[a], dtype=np.float64)
    alike = (block.types[others] == block.types[a]).all(1)
    alike &= np.isclose(cells, cell, rtol=1e-6, atol=1e-6).all((1, 2))
    steps = np.asarray(block.positions[others], dtype=np.float64) - block.positions[a]
    if block.pbc.any():
        full = np.where(block.pbc[:, None], cell, np.eye(3))
        steps -= (np.round(steps @ np.linalg.inv(full)) * block.pbc) @ full
    return steps, alike
