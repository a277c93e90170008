"""Whether the forces of a system can be the slopes of its energies."""

import numpy as np

from mdops.train.block import Block

_PAIRS = 64
_FACTOR = 8.0  # energies and forces of mixed units differ by 14 (Rydberg, eV) or more
_CORRELATED = 0.9


def units_warning(block: Block) -> str | None:
    """A warning if energy differences of successive frames contradict the work of the forces, or None.

    Between two frames the energy falls by (F_a + F_b)/2 . (x_b - x_a), exactly in a harmonic well. The slope
    of the differences over that work is 1. It is looked at where the two correlate so well that it means
    something: frames of a run or around a minimum, of one composition and one cell.
    """
    if "energy" not in block.labels or "forces" not in block.labels or block.frames < 4:
        return None
    energy = np.asarray(block.labels["energy"], dtype=np.float64)
    work, change = [], []
    stride = max(1, (block.frames - 1) // _PAIRS)
    for a in range(0, block.frames - 1, stride):
        step = _displacement(block, a, a + 1)
        if step is not None:
            forces = np.asarray(block.labels["forces"][a : a + 2], dtype=np.float64)
            work.append(-0.5 * np.sum((forces[0] + forces[1]) * step))
            change.append(energy[a + 1] - energy[a])
    if len(work) < 3 or not np.std(work) or not np.std(change):
        return None
    correlation = np.corrcoef(work, change)[0, 1]
    slope = np.dot(work, change) / np.dot(work, work)
    if abs(correlation) < _CORRELATED or 1 / _FACTOR < slope < _FACTOR:
        return None
    return (
        f"{block.source}: energies change {slope:.3g} times as much as the forces say "
        f"(correlation {correlation:.2f}, from frame {block.first}): units may be mixed, or signs; "
        "expected are eV, A and eV/A"
    )


def _displacement(block: Block, a: int, b: int) -> np.ndarray | None:
    """(n, 3): the way from frame a to b, by the nearest image; None if a type or the cell changes."""
    same_types = np.array_equal(block.types[a], block.types[b])
    cell = np.asarray(block.cell[a], dtype=np.float64)
    if not same_types or not np.allclose(cell, block.cell[b], rtol=1e-6, atol=1e-6):
        return None
    step = np.asarray(block.positions[b], dtype=np.float64) - block.positions[a]
    if block.pbc.any():
        full = np.where(block.pbc[:, None], cell, np.eye(3))
        shift = np.round(step @ np.linalg.inv(full)) * block.pbc
        step = step - shift @ full
    return step
