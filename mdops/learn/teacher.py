"""Teachers, which label structures: an ASE calculator, a model file, or a command."""

import functools
import importlib
import shlex
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError
from ase.calculators.singlepoint import SinglePointCalculator

from mdops.calculator import MDOps
from mdops.digest import digest
from mdops.errors import ConfigError, UnsupportedModelError
from mdops.learn.config import NO_MOMENTS, AseTeacherConfig, CommandTeacherConfig, ModelTeacherConfig
from mdops.loading import load
from mdops.models.judge import Overflow
from mdops.potential import Potential
from mdops.system import voigt

Answer = Atoms | str  # the structure with its labels, or the reason why it has none


class Teacher(ABC):
    """Labels structures with energy (eV), forces (eV/A) and, in a periodic cell, stress (eV/A^3).

    Attributes:
        identity: a text that identifies the teacher of labels.
        at_once: how many structures a call takes; None: any number.
        may_spread: whether calls may run in several processes.
    """

    identity: str
    at_once: int | None = None
    may_spread = False

    @abstractmethod
    def label(self, structures: Sequence[Atoms], places: Sequence[int], folder: Path) -> list[Answer]:
        """Each structure with its labels, or the reason why it has none. `places`: their indices in the round;
        `folder`: the round's, for files of the teacher."""

    def calculator(self) -> Calculator | None:
        """A calculator for dynamics; None if the teacher has none."""
        return None


class AseTeacher(Teacher):
    """An ASE calculator, with one structure per call."""

    at_once, may_spread = 1, True

    def __init__(self, config: AseTeacherConfig) -> None:
        arguments = config.arguments or {}
        self._make = functools.partial(_imported(config.calculator, config.path), **arguments)
        told = ", ".join(f"{name}={value!r}" for name, value in sorted(arguments.items()))
        self.identity = f"{config.calculator}({told})".replace('"', "'")
        self._calculator: Calculator | None = None

    def label(self, structures: Sequence[Atoms], places: Sequence[int], folder: Path) -> list[Answer]:
        if self._calculator is None:
            try:
                self._calculator = self._make()
            except Exception as error:  # a calculator may raise anything
                raise ConfigError(f"teacher: {self.identity}: {type(error).__name__}: {error}") from error
        return [_by_calculator(atoms, self._calculator) for atoms in structures]

    def calculator(self) -> Calculator:
        made: Calculator = self._make()
        return made


class ModelTeacher(Teacher):
    """A model file, in batches on its device."""

    def __init__(self, config: ModelTeacherConfig) -> None:
        self._model = load(
            config.model,
            head=config.head,
            device=config.device,
            dtype=config.dtype,
            overflow=cast(Overflow, config.overflow),
            allow_low_bit=True,
        )
        self._model.require_energies("a teacher")
        if self._model.model.spin is not None:
            raise UnsupportedModelError(f"teacher.model: {NO_MOMENTS}")
        self._atoms = config.batch_atoms
        head = f" {config.head}" if config.head else ""
        rule = "" if config.overflow == "error" else f" {config.overflow}"
        self.identity = f"{Path(config.model).name}{head} {digest(self._model)[:16]}{rule}"

    def label(self, structures: Sequence[Atoms], places: Sequence[int], folder: Path) -> list[Answer]:
        answers: list[Answer] = []
        for batch in _batches(structures, self._atoms):
            try:
                answers += _by_model(batch, self._model)
            except Exception:  # evaluate each structure alone to find the one with the error
                answers += [_or_reason(atoms, self._model) for atoms in batch]
        return answers

    def calculator(self) -> Calculator:
        return MDOps(self._model)


class CommandTeacher(Teacher):
    """A command for a folder of structures. Labels that it wrote before it was killed are not requested again."""

    def __init__(self, config: CommandTeacherConfig) -> None:
        self._command, self._path, self.at_once = config.command, config.path, config.frames or None
        self.identity = config.name or config.command

    def label(self, structures: Sequence[Atoms], places: Sequence[int], folder: Path) -> list[Answer]:
        top = folder / "teacher"
        own = top / f"{places[0]:05d}"
        own.mkdir(parents=True, exist_ok=True)
        found: dict[int, Answer] = {}
        for place, atoms in zip(places, structures, strict=True):
            for path in top.glob(f"*/{place:05d}.labels.extxyz"):
                if isinstance(answer := _read_label(path, atoms), Atoms):
                    found[place] = answer
            if place in found:
                (own / f"{place:05d}.extxyz").unlink(missing_ok=True)
            else:
                ase.io.write(own / f"{place:05d}.extxyz", atoms)
        said = ""
        if len(found) < len(places):
            line = self._command.replace("{folder}", shlex.quote(str(own)))
            done = subprocess.run(
                line,
                shell=True,
                cwd=self._path or None,
                capture_output=True,
                text=True,
                errors="replace",  # the output may not be UTF-8
                stdin=subprocess.DEVNULL,
            )
            said = f"; the command ended with {done.returncode}: {done.stderr.strip()[-300:]}"
        answers = [found.get(p) or _read_label(own / f"{p:05d}.labels.extxyz", atoms)
                   for p, atoms in zip(places, structures, strict=True)]  # fmt: skip
        return [answer + said if isinstance(answer, str) else answer for answer in answers]


_KINDS: dict[type, Any] = {
    AseTeacherConfig: AseTeacher,
    ModelTeacherConfig: ModelTeacher,
    CommandTeacherConfig: CommandTeacher,
}


def make_teacher(config: Any) -> Teacher:
    """The teacher of an input. Raises ConfigError, or the errors of reading a model."""
    made: Teacher = _KINDS[type(config)](config)
    return made


def _imported(path: str, folder: str | None) -> Any:
    """The object with an import path; modules in `folder` are found, too."""
    module, _, name = path.replace(":", ".").rpartition(".")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # the module may raise anything
        raise ConfigError(f"teacher.calculator: {path}: {type(error).__name__}: {error}") from error


def labelled(atoms: Atoms, energy: Any, forces: Any, stress: Any = None) -> Answer:
    """The structure with these labels, or what is wrong with them."""
    forces = np.asarray(forces, np.float64)
    if forces.shape != (len(atoms), 3):
        return f"forces have the shape {forces.shape}"
    results = {"energy": float(energy), "forces": forces}
    if stress is not None:
        results["stress"] = np.asarray(stress, np.float64)
    if not all(np.isfinite(value).all() for value in results.values()):
        return "labels that are not finite"
    answer = atoms.copy()
    answer.calc = SinglePointCalculator(answer, **results)
    return answer


def _by_calculator(atoms: Atoms, calculator: Calculator) -> Answer:
    own = atoms.copy()
    own.calc = calculator
    try:
        forces = own.get_forces()
        # If the calculator has it, the energy whose derivatives are the forces.
        energy, stress = own.get_potential_energy(force_consistent=_has_free_energy(calculator)), None
        if own.pbc.all():
            try:
                stress = own.get_stress()
            except (PropertyNotImplementedError, NotImplementedError):
                stress = None
        return labelled(atoms, energy, forces, stress)
    except Exception as error:  # calculators may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _has_free_energy(calculator: Calculator) -> bool:
    return "free_energy" in getattr(calculator, "implemented_properties", ())


def _batches(structures: Sequence[Atoms], atoms: int) -> list[list[Atoms]]:
    """Parts with at most this number of atoms, or with one structure."""
    batches: list[list[Atoms]] = []
    for structure in structures:
        if not batches or sum(map(len, batches[-1])) + len(structure) > atoms:
            batches.append([])
        batches[-1].append(structure)
    return batches


def _by_model(structures: list[Atoms], model: Potential) -> list[Answer]:
    found = model.compute(structures)
    ends = np.cumsum([len(atoms) for atoms in structures])
    forces = np.split(found["forces"], ends[:-1])
    return [
        labelled(
            atoms,
            found["energy"][k],
            forces[k],
            voigt(-found["virial"][k] / atoms.get_volume()) if atoms.pbc.all() else None,
        )
        for k, atoms in enumerate(structures)
    ]


def _or_reason(atoms: Atoms, model: Potential) -> Answer:
    try:
        return _by_model([atoms], model)[0]
    except Exception as error:  # from the model or PyTorch: the structure has no label
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _read_label(path: Path, atoms: Atoms) -> Answer:
    """The label that the command wrote for the structure."""
    if not path.is_file():
        return f"no {path.name}"
    try:
        found = ase.io.read(path)
        assert isinstance(found, Atoms)
        results = found.calc.results
        if not np.array_equal(found.numbers, atoms.numbers):
            return f"{path.name} has other atoms"
        return labelled(atoms, results["energy"], results["forces"], results.get("stress"))
    except Exception as error:  # ASE's readers may raise anything
        return f"{path.name}: {type(error).__name__}: {error}"
