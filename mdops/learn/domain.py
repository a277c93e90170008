"""The domain in which the students of the last round were tested."""

from typing import Any

import numpy as np
from ase.data import chemical_symbols
from ase.neighborlist import neighbor_list

from mdops.applicability import USUAL
from mdops.learn.labels import read_frames
from mdops.learn.rounds import Round, Summary

_REACH = 3.5  # A: largest distance of closest pairs
_LOOKED_AT = 200  # largest number of frames


def measured_domain(last: Round, summary: Summary, teacher: str, labels: int) -> dict[str, Any]:
    """The domain that is stored in models (`mdops.applicability.domain_of`), without the committee's files."""
    frames = [
        frame for path in sorted((last.folder / "explored").glob("*.extxyz")) for frame in read_frames(path)
    ]
    usual = float(np.quantile([frame.info["deviation"] for frame in frames], USUAL))
    frames = frames[:: max(1, len(frames) // _LOOKED_AT)]
    domain: dict[str, Any] = {
        "teacher": teacher,
        "labels": labels,
        "errors": {**summary.errors, "frames": summary.fresh},
        "deviation": summary.deviation,
        "usual_deviation": usual,
        "temperatures": _range([frame.info["temperature"] for frame in frames]),
    }
    if any("pressure" in frame.info for frame in frames):
        domain["pressures"] = _range([frame.info["pressure"] for frame in frames])
    if all(frame.pbc.all() for frame in frames):
        domain["volumes"] = _range([frame.get_volume() / len(frame) for frame in frames])
    elements = sorted({int(number) for frame in frames for number in frame.numbers})
    domain["shares"] = {
        chemical_symbols[e]: _range([float(np.mean(frame.numbers == e)) for frame in frames])
        for e in elements
    }
    closest: dict[str, float] = {}
    for frame in frames:
        first, second, distances = neighbor_list("ijd", frame, _REACH)
        for i, j, distance in zip(first, second, distances, strict=True):
            pair = "-".join(sorted((frame.symbols[i], frame.symbols[j])))
            closest[pair] = min(float(distance), closest.get(pair, np.inf))
    domain["closest"] = {pair: round(distance, 3) for pair, distance in sorted(closest.items())}
    return domain


def _range(values: list[float]) -> list[float]:
    return [round(float(min(values)), 4), round(float(max(values)), 4)]
