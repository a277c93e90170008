"""The input of `mdops learn`: its sections and keys."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from mdops.errors import ConfigError
from mdops.options import KeyHelp, Options, describe_keys, key, parse, read_json, section, variant


@dataclass
class AseTeacherConfig(Options):
    """Any calculator of ASE."""

    KIND: ClassVar[str] = "ase"

    calculator: str = key(
        doc="the import path of what makes the calculator, as ase.calculators.emt.EMT; modules beside the input are "
        "found, too"
    )
    arguments: dict | None = key(None, "its keyword arguments")
    path: str | None = key(None, "a folder of modules; that of the input unless given")


@dataclass
class ModelTeacherConfig(Options):
    """A model file."""

    KIND: ClassVar[str] = "mdops"

    model: str = key(doc="a model file")
    head: str | None = key(None, "which model of a file of several")
    device: str = key("cpu", "where the teacher computes")
    dtype: str = key("float32", "of its computation", choices=("float32", "float64"))
    overflow: str = key(
        "error",
        "where an atom has more neighbours than the model's `sel`: the structure is set aside, the farthest are "
        "dropped as in the model's training, or all are kept",
        choices=("error", "truncate", "extend"),
    )
    batch_atoms: int = key(4096, "atoms that are labelled at once", low=1)


@dataclass
class CommandTeacherConfig(Options):
    """A command that labels a folder of files in extended XYZ."""

    KIND: ClassVar[str] = "command"

    command: str = key(
        doc="a line for the shell, with {folder} where the folder's name goes; for each NAME.extxyz there the "
        "command writes NAME.labels.extxyz"
    )
    name: str | None = key(None, "what the teacher is called in its labels; the command unless given")
    frames: int = key(0, "structures in a folder; 0: all of a round", low=0)
    path: str | None = key(None, "the folder that the command runs in; that of the input unless given")


_TEACHERS = {kind.KIND: kind for kind in (AseTeacherConfig, ModelTeacherConfig, CommandTeacherConfig)}


@dataclass
class LimitsConfig:
    """Labels that are set aside."""

    force: float = key(100.0, "a label with a larger force is set aside", unit="eV/A", above=0)
    energy: float = key(
        20.0,
        "a label is set aside whose energy, less what its elements have on average, is so many standard deviations "
        "(robust ones) away from the others'",
        above=0,
    )


@dataclass
class StartConfig:
    """Structures that everything begins with, and the first labels."""

    structures: list[str] | str = key(doc="files that ASE reads; all of their frames, or those of FILE@INDEX")
    frames: int = key(40, "structures in the first set", low=10)
    rattle: float = key(0.15, "largest standard deviation of random displacements there", unit="A", low=0)
    strain: float = key(0.04, "standard deviation of random strains there", low=0, below=0.5)
    swap: bool = key(
        False, "exchange atoms of different elements at random, in the first set and in exploration"
    )


@dataclass
class StudentsConfig:
    """The committee, and how it is trained."""

    number: int = key(4, "students in the committee", low=2)
    input: dict | None = key(
        None,
        "sections of a training input (training-input.md) in the place of mdops' own: model, learning_rate, loss, "
        "optimizer, training; data, steps and seeds are set by the loop",
    )
    steps: int = key(4000, "of a training in a round", unit="steps", low=1)
    final_steps: int = key(20000, "of the last training", unit="steps", low=1)


@dataclass
class ExploreConfig:
    """Dynamics with the committee, from every structure at every temperature and pressure."""

    temperatures: list[float] = key(doc="of the runs", unit="K", above=0)
    pressures: list[float] = key([0.0], "of npt", unit="GPa")
    ensemble: str = key("nvt", "nvt or npt", choices=("nvt", "npt"))
    timestep: float = key(1.0, "of the runs", unit="fs", above=0)
    steps: int = key(2000, "of a run in a round", unit="steps", low=1)
    interval: int = key(
        20, "steps between two frames that may be taken; a tenth of it at first", unit="steps", low=1
    )
    strain: float = key(0.0, "standard deviation of the strains that runs begin with", low=0, below=0.5)


@dataclass
class SelectConfig:
    """What of a round is labelled."""

    frames: int = key(30, "structures that are chosen for their deviation and diversity", low=1)
    fresh: int = key(10, "structures that are drawn at random, to test the students on", low=2)


@dataclass
class TargetsConfig:
    """When the students are good: errors on fresh frames of their own dynamics."""

    forces: float = key(0.05, "root mean square error of force components", unit="eV/A", above=0)
    energy: float | None = key(None, "the same of energies", unit="eV/atom", above=0)
    frames: int = key(40, "fresh frames of the last test", low=2)


@dataclass
class BudgetConfig:
    """What may be spent."""

    calls: int = key(400, "structures that the teacher is given, failures included", low=1)
    rounds: int = key(10, "rounds of exploration", low=1)


@dataclass
class ComputeConfig:
    """Where the students compute."""

    device: str = key("cpu", "cpu or cuda")
    processes: int = key(
        0, "processes side by side; 0: one for each processor core that this one may use", low=0
    )
    threads: int = key(1, "threads of each", low=1)


@dataclass
class ReportConfig:
    """What the report may take."""

    steps: int = key(2000, "of dynamics at constant energy with the student and with the teacher", low=0)
    seconds: float = key(
        300.0, "the teacher's dynamics are left out where they would take longer", unit="s", low=0
    )


@dataclass(kw_only=True)
class Config:
    """A whole input."""

    teacher: Any = variant(lambda: _TEACHERS, "ase")
    start: StartConfig = section(StartConfig)
    explore: ExploreConfig = section(ExploreConfig)
    students: StudentsConfig = section(StudentsConfig)
    select: SelectConfig = section(SelectConfig)
    targets: TargetsConfig = section(TargetsConfig)
    budget: BudgetConfig = section(BudgetConfig)
    limits: LimitsConfig = section(LimitsConfig)
    compute: ComputeConfig = section(ComputeConfig)
    report: ReportConfig = section(ReportConfig)
    seed: int = key(0, "of everything random", low=0)


def read_config(path: str | os.PathLike[str]) -> Config:
    """The input of a file: YAML where its name ends in .yaml or .yml, else JSON. Names of files in it are relative to
    its folder.

    Raises ConfigError, which names the file and the place in it."""
    path = Path(path)
    try:
        return parse_config(_tree(path), path.parent)
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if told.startswith(str(path)) else f"{path}: {told}") from None


def parse_config(tree: Mapping[str, Any], folder: str | os.PathLike[str] = ".") -> Config:
    """The input of a tree of JSON, whose names of files are relative to `folder`.

    Raises ConfigError, which names the path of the wrong key."""
    config = parse(Config, tree)
    start = config.start
    given = [start.structures] if isinstance(start.structures, str) else start.structures
    start.structures = [os.path.abspath(os.path.join(folder, name)) for name in given]
    place = "model" if isinstance(config.teacher, ModelTeacherConfig) else "path"
    setattr(
        config.teacher, place, os.path.abspath(os.path.join(folder, getattr(config.teacher, place) or "."))
    )
    if not start.structures or not config.explore.temperatures:
        raise ConfigError("start.structures and explore.temperatures: expected one at least")
    if config.explore.ensemble == "npt" and not config.explore.pressures:
        raise ConfigError("explore.pressures: expected one at least")
    least = start.frames + config.select.fresh + config.targets.frames
    if config.budget.calls < least:
        raise ConfigError(
            f"budget.calls: is {config.budget.calls}, and the first set, the fresh frames of one round and those of "
            f"the last test are {least}"
        )
    _check_input(config.students.input or {})
    return config


_OF_THE_LOOP = ("training_data", "validation_data", "numb_steps", "numb_epoch", "seed")


def _check_input(tree: Mapping[str, Any]) -> None:
    unknown = [
        name for name in tree if name not in ("model", "learning_rate", "loss", "optimizer", "training")
    ]
    if unknown:
        raise ConfigError(f"students.input.{unknown[0]}: is not a section that a student takes")
    for name in tree.get("training", {}):
        if name in _OF_THE_LOOP:
            raise ConfigError(f"students.input.training.{name}: is set by the loop, not by the input")


def _tree(path: Path) -> Any:
    if path.suffix not in (".yaml", ".yml"):
        return read_json(path)
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from None


def keys() -> list[KeyHelp]:
    """Every key of the input with its type, unit, default and meaning; a teacher's as `teacher[ase].calculator`."""
    found = describe_keys(Config)
    for name, kind in _TEACHERS.items():
        found += describe_keys(kind, f"teacher[{name}]")
    return found
