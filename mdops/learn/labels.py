"""The labels of a round; each is written to disk as soon as it exists."""

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms

from mdops.errors import InputError
from mdops.files.atomic import replace_file
from mdops.learn.config import LimitsConfig
from mdops.learn.jobs import DiedError, Jobs
from mdops.learn.teacher import Answer, Teacher, make_teacher
from mdops.progress import StepProgress

_FEWEST = 20  # the smallest number of labels for statistics of energies
_LEAST_SPREAD = 0.01  # eV/atom: smaller deviations of energies are never strange


def write_frames(path: Path, frames: Sequence[Atoms]) -> None:
    """Writes extended XYZ, replacing the file at once. Line breaks and backslashes in texts, such as a command's
    output, are replaced, because the format does not support them."""
    text = StringIO()
    plain = [atoms.copy() for atoms in frames]
    for atoms, given in zip(plain, frames, strict=True):
        atoms.calc = given.calc
        for name, value in atoms.info.items():
            if isinstance(value, str):
                atoms.info[name] = " ".join(value.replace("\\", "/").split())
    if frames:
        ase.io.write(text, plain, format="extxyz")
    name = f"{path.name}.{os.getpid()}-{threading.get_ident()}.new"
    replace_file(path, text.getvalue().encode(), beside=name)


def read_frames(path: Path) -> list[Atoms]:
    """The frames of a file; it may be empty."""
    if path.stat().st_size == 0:
        return []
    found = ase.io.read(path, ":", format="extxyz")
    assert isinstance(found, list)
    return found


class LabelFolder:
    """The files of a round's labels. asked.extxyz has the structures. labels/ has a file for each teacher's answer,
    until labels.extxyz and set_aside.extxyz have all of them."""

    def __init__(self, folder: Path) -> None:
        self.asked, self.each = folder / "asked.extxyz", folder / "labels"
        self.labels, self.set_aside = folder / "labels.extxyz", folder / "set_aside.extxyz"

    def ask(self, structures: Sequence[Atoms]) -> None:
        write_frames(self.asked, structures)

    def count(self) -> int:
        """How many structures the teacher was given so far."""
        if self.labels.exists():
            return len(read_frames(self.labels)) + len(read_frames(self.set_aside))
        return len(self.answered())

    def answered(self) -> set[int]:
        """The indices of the structures with an answer."""
        return {int(path.stem) for path in self.each.glob("*.extxyz")} if self.each.is_dir() else set()

    def answers(self) -> list[Atoms]:
        """All answers, in the order of the structures."""
        return [read_frames(self.each / f"{k:05d}.extxyz")[0] for k in sorted(self.answered())]


def label(
    folder: LabelFolder,
    config: Any,
    identity: str,
    at_once: int | None,
    spread: bool,
    jobs: Jobs,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Labels the structures of asked.extxyz that have no answer yet."""
    structures = read_frames(folder.asked)
    folder.each.mkdir(exist_ok=True)
    left = [k for k in range(len(structures)) if k not in folder.answered()]
    size = at_once or max(len(left), 1)
    parts = [left[first : first + size] for first in range(0, len(left), size)]
    work = [(config, identity, folder.each, part, [structures[k] for k in part]) for part in parts]
    done = len(structures) - len(left)
    with StepProgress(done, len(structures)) as progress:
        for place, answer in jobs.run(_label_part, work, here=not spread):
            if isinstance(answer, DiedError):
                _write(folder.each, identity, parts[place], work[place][4], [str(answer)] * len(parts[place]))
            done += len(parts[place])
            on_progress(done, len(structures))
            if progress.is_due(done):
                progress.show(done, "labels")


_TEACHERS: dict[str, Teacher] = {}


def teacher_of(config: Any) -> Teacher:
    """The teacher of an input; it is cached in this process."""
    told = repr(config)
    if told not in _TEACHERS:
        _TEACHERS[told] = make_teacher(config)
    return _TEACHERS[told]


def _label_part(config: Any, identity: str, folder: Path, places: list[int], structures: list[Atoms]) -> None:
    answers = teacher_of(config).label(structures, places, folder.parent)
    _write(folder, identity, places, structures, answers)


def _write(
    folder: Path, identity: str, places: list[int], structures: list[Atoms], answers: Sequence[Answer]
) -> None:
    for place, atoms, answer in zip(places, structures, answers, strict=True):
        frame = answer if isinstance(answer, Atoms) else atoms.copy()
        frame.info["teacher"] = identity
        if isinstance(answer, str):
            frame.info["failed"] = answer.replace('"', "'")
        write_frames(folder / f"{place:05d}.extxyz", [frame])


def gather(folder: LabelFolder, known: Sequence[Atoms], limits: LimitsConfig) -> tuple[int, list[str]]:
    """Joins the answers into labels.extxyz and set_aside.extxyz.

    Args:
        known: labels of earlier rounds, for statistics of energies.
        limits: which labels are set aside.

    Returns:
        The number of labels, and the reasons why others were set aside.

    Raises InputError if there is no label.
    """
    good, bad = list[Atoms](), list[Atoms]()
    for frame in folder.answers():
        reason = frame.info.get("failed") or _too_strong(frame, limits)
        if reason:
            frame.info["failed"] = reason
        (bad if reason else good).append(frame)
    strange = _strange_energies([*known, *good], limits.energy)[len(known) :]
    for frame, is_strange in zip(good, strange, strict=True):
        if is_strange:
            frame.info["failed"] = "its energy is far from the others'"
            bad.append(frame)
    good = [frame for frame in good if "failed" not in frame.info]
    if not good:
        told = f": {bad[0].info['failed']}" if bad else ""
        raise InputError(f"{folder.each}: the teacher labelled none of {len(bad)} structures{told}")
    write_frames(folder.set_aside, bad)
    write_frames(folder.labels, good)
    shutil.rmtree(folder.each)
    return len(good), [str(frame.info["failed"]) for frame in bad]


def _too_strong(frame: Atoms, limits: LimitsConfig) -> str:
    largest = float(np.linalg.norm(frame.get_forces(), axis=1).max())
    return f"a force of {largest:.3g} eV/A" if largest > limits.force else ""


def _strange_energies(frames: Sequence[Atoms], limit: float) -> np.ndarray:
    """Which energies are more than `limit` robust standard deviations away from the sum of their elements' energies."""
    if len(frames) < _FEWEST:
        return np.zeros(len(frames), bool)
    elements = sorted({symbol for frame in frames for symbol in frame.get_chemical_symbols()})
    shares = np.array([[frame.symbols.count(e) / len(frame) for e in elements] for frame in frames])
    energies = np.array([frame.get_potential_energy() / len(frame) for frame in frames])
    weights = np.ones(len(frames))
    for _ in range(10):  # least absolute deviations, by weights: strange energies must not dominate the fit
        fit = np.linalg.lstsq(shares * weights[:, None], energies * weights, rcond=None)[0]
        off = np.abs(energies - shares @ fit)
        weights = 1 / np.sqrt(np.maximum(off, _LEAST_SPREAD))
    spread = max(1.4826 * float(np.median(off)), _LEAST_SPREAD)
    return np.asarray(off > limit * spread)
