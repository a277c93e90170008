"""Labels of a round: each is on the disk once it is made."""

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

_FEWEST = 20  # labels that tell what energies are usual
_LEAST_SPREAD = 0.01  # eV/atom: below this energies are not strange


def write_frames(path: Path, frames: Sequence[Atoms]) -> None:
    """Extended XYZ, put in the file's place as a whole. It has no place for line breaks and backslashes of texts, such
    as what a command said."""
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
    """The frames of a file, which may have none."""
    if path.stat().st_size == 0:
        return []
    found = ase.io.read(path, ":", format="extxyz")
    assert isinstance(found, list)
    return found


class LabelFolder:
    """The files of a round's labels: asked.extxyz has the structures, labels/ a file for each answer of the teacher
    until labels.extxyz and set_aside.extxyz have them all."""

    def __init__(self, folder: Path) -> None:
        self.asked, self.each = folder / "asked.extxyz", folder / "labels"
        self.labels, self.set_aside = folder / "labels.extxyz", folder / "set_aside.extxyz"

    def ask(self, structures: Sequence[Atoms]) -> None:
        write_frames(self.asked, structures)

    def count(self) -> int:
        """Structures that the teacher was given so far."""
        if self.labels.exists():
            return len(read_frames(self.labels)) + len(read_frames(self.set_aside))
        return len(self.answered())

    def answered(self) -> set[int]:
        """The structures with an answer, by their places."""
        return {int(path.stem) for path in self.each.glob("*.extxyz")} if self.each.is_dir() else set()

    def answers(self) -> list[Atoms]:
        """All of them, in the order of the structures."""
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
    """Labels what of asked.extxyz has no answer yet."""
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
    """The teacher of an input, which this process keeps."""
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
        known: labels of the rounds before, which tell what energies are usual.
        limits: what is set aside.

    Returns:
        How many labels there are, and why others were set aside.

    Raises InputError where none is left.
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
    """Which energies are more than `limit` robust standard deviations from what their elements lead to expect."""
    if len(frames) < _FEWEST:
        return np.zeros(len(frames), bool)
    elements = sorted({symbol for frame in frames for symbol in frame.get_chemical_symbols()})
    shares = np.array([[frame.symbols.count(e) / len(frame) for e in elements] for frame in frames])
    energies = np.array([frame.get_potential_energy() / len(frame) for frame in frames])
    weights = np.ones(len(frames))
    for _ in range(10):  # least absolute values, by weights: the strange ones must not lead the fit
        fit = np.linalg.lstsq(shares * weights[:, None], energies * weights, rcond=None)[0]
        off = np.abs(energies - shares @ fit)
        weights = 1 / np.sqrt(np.maximum(off, _LEAST_SPREAD))
    spread = max(1.4826 * float(np.median(off)), _LEAST_SPREAD)
    return np.asarray(off > limit * spread)
