"""The input of `mdops learn`: its sections and keys."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mdops.errors import ConfigError
from mdops.files.published import model_of_input
from mdops.options import KeyHelp, Options, describe_keys, key, parse, read_tree, section, variant


@dataclass
class AseTeacherConfig(Options):
    """Any ASE calculator."""

    KIND: ClassVar[str] = "ase"

    calculator: str = key(
        doc="import path of the class or function that makes the calculator, such as "
        "ase.calculators.emt.EMT; modules beside the input are found, too"
    )
    arguments: dict | None = key(None, "keyword arguments of the calculator")
    path: str | None = key(None, "folder of modules; default: the input's folder")


@dataclass
class ModelTeacherConfig(Options):
    """A model file."""

    KIND: ClassVar[str] = "mdops"

    model: str = key(doc="a model file")
    head: str | None = key(None, "name of the model in a multi-task file")
    device: str = key("cpu", "device of the teacher")
    dtype: str = key("float32", "precision of the computation", choices=("float32", "float64"))
    overflow: str = key(
        "error",
        "if an atom has more neighbours than the model's `sel`: set the structure aside, drop the"
        " farthest as in the model's training, or keep all",
        choices=("error", "truncate", "extend"),
    )
    batch_atoms: int = key(4096, "number of atoms labelled at once", low=1)


@dataclass
class CommandTeacherConfig(Options):
    """A command that labels a folder of files in extended XYZ."""

    KIND: ClassVar[str] = "command"

    command: str = key(
        doc="shell command, in which {folder} is replaced by the folder's name; for each NAME.extxyz "
        "there it must write NAME.labels.extxyz"
    )
    name: str | None = key(None, "name of the teacher in its labels; default: the command")
    frames: int = key(0, "number of structures in a folder; 0: all of a round", low=0)
    path: str | None = key(None, "folder in which the command runs; default: the input's folder")


_TEACHERS = {kind.KIND: kind for kind in (AseTeacherConfig, ModelTeacherConfig, CommandTeacherConfig)}


@dataclass
class LimitsConfig:
    """Labels that are set aside."""

    force: float = key(100.0, "a label with a larger force is set aside", unit="eV/A", above=0)
    energy: float = key(
        20.0,
        "a label is set aside if its energy, minus the average energies of its elements, deviates"
        " from the others by more than this number of (robust) standard deviations",
        above=0,
    )


@dataclass
class StartConfig:
    """The initial structures, and the first labels."""

    structures: list[str] | str = key(doc="files that ASE reads; all frames, or those selected by FILE@INDEX")
    frames: int = key(40, "number of structures in the first set", low=10)
    rattle: float = key(
        0.15, "largest standard deviation of random displacements in the first set", unit="A", low=0
    )
    strain: float = key(0.04, "standard deviation of random strains in the first set", low=0, below=0.5)
    swap: bool = key(
        False, "exchange atoms of different elements at random, in the first set and in exploration"
    )


@dataclass
class StudentsConfig:
    """The committee, and how it is trained."""

    number: int = key(4, "number of students in the committee", low=2)
    input: dict | None = key(
        None,
        "sections of a training input (training-input.md) that replace mdops' own: model, "
        "learning_rate, loss, optimizer, training; the loop sets data, steps and seeds",
    )
    steps: int = key(4000, "steps of each training in a round", unit="steps", low=1)
    final_steps: int = key(20000, "steps of the final training", unit="steps", low=1)


@dataclass
class ExploreConfig:
    """Dynamics with the committee, from every structure at every temperature and pressure."""

    temperatures: list[float] = key(doc="temperatures of the runs", unit="K", above=0)
    pressures: list[float] = key([0.0], "pressures of npt runs", unit="GPa")
    ensemble: str = key("nvt", "ensemble of the runs", choices=("nvt", "npt"))
    timestep: float = key(1.0, "time step of the runs", unit="fs", above=0)
    steps: int = key(2000, "steps of each run in a round", unit="steps", low=1)
    interval: int = key(
        20,
        "steps between two frames that may be selected; a tenth of this in the first round",
        unit="steps",
        low=1,
    )
    strain: float = key(0.0, "standard deviation of random strains at the start of runs", low=0, below=0.5)


@dataclass
class SelectConfig:
    """How many frames of a round are labelled."""

    frames: int = key(30, "number of structures selected by deviation and diversity", low=1)
    fresh: int = key(10, "number of structures drawn at random to test the students", low=2)


@dataclass
class TargetsConfig:
    """When the students are good enough: errors on fresh frames of their own dynamics."""

    forces: float = key(0.05, "largest RMSE of force components", unit="eV/A", above=0)
    energy: float | None = key(None, "largest RMSE of energies", unit="eV/atom", above=0)
    frames: int = key(40, "number of fresh frames in the last test", low=2)


@dataclass
class BudgetConfig:
    """The largest cost."""

    calls: int = key(400, "number of structures given to the teacher, including failures", low=1)
    rounds: int = key(10, "number of exploration rounds", low=1)


@dataclass
class ComputeConfig:
    """Device and processes of the students."""

    device: str = key("cpu", "cpu or cuda")
    processes: int = key(0, "number of parallel processes; 0: one for each available processor core", low=0)
    threads: int = key(1, "number of threads of each process", low=1)


@dataclass
class ReportConfig:
    """The cost of the report."""

    steps: int = key(2000, "steps of NVE dynamics with the student and with the teacher", low=0)
    seconds: float = key(
        300.0, "the teacher's dynamics are omitted if they would take longer", unit="s", low=0
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
    seed: int = key(0, "seed of all random numbers", low=0)


def read_config(path: str | os.PathLike[str]) -> Config:
    """The input of a file: YAML if its name ends in .yaml or .yml, else JSON. File names are relative to its folder.

    Raises ConfigError, which names the file and the key."""
    path = Path(path)
    try:
        return parse_config(read_tree(path), path.parent)
    except ConfigError as error:
        told = str(error)
        raise ConfigError(told if told.startswith(str(path)) else f"{path}: {told}") from None


def parse_config(tree: Mapping[str, Any], folder: str | os.PathLike[str] = ".") -> Config:
    """The input of a tree of JSON, whose file names are relative to `folder`.

    Raises ConfigError, which names the path of the wrong key."""
    config = parse(Config, tree)
    start = config.start
    given = [start.structures] if isinstance(start.structures, str) else start.structures
    start.structures = [os.path.abspath(os.path.join(folder, name)) for name in given]
    if isinstance(config.teacher, ModelTeacherConfig):
        config.teacher.model = model_of_input(config.teacher.model, folder)
    else:
        config.teacher.path = os.path.abspath(os.path.join(folder, config.teacher.path or "."))
    if not start.structures or not config.explore.temperatures:
        raise ConfigError("start.structures and explore.temperatures: expected one at least")
    if config.explore.ensemble == "npt" and not config.explore.pressures:
        raise ConfigError("explore.pressures: expected one at least")
    least = start.frames + config.select.fresh + config.targets.frames
    if config.budget.calls < least:
        raise ConfigError(
            f"budget.calls: is {config.budget.calls}, but the first set, the fresh frames of one round and "
            f"those of the last test need {least}"
        )
    _check_input(config.students.input or {})
    return config


_OF_THE_LOOP = ("training_data", "validation_data", "numb_steps", "numb_epoch", "seed")


NO_MOMENTS = (
    "`mdops learn` has no models with magnetic moments, because moments stay as they are in its dynamics, so it cannot "
    "explore others: label structures with different moments, and train with `mdops train`"
)


def _check_input(tree: Mapping[str, Any]) -> None:
    unknown = [
        name for name in tree if name not in ("model", "learning_rate", "loss", "optimizer", "training")
    ]
    if unknown:
        raise ConfigError(f"students.input.{unknown[0]}: is not a section that a student takes")
    if (tree.get("model") or {}).get("spin") is not None:
        raise ConfigError(f"students.input.model.spin: {NO_MOMENTS}")
    for name in tree.get("training", {}):
        if name in _OF_THE_LOOP:
            raise ConfigError(f"students.input.training.{name}: is set by the loop, not by the input")


def keys() -> list[KeyHelp]:
    """Every key of the input with its type, unit, default and meaning; for a teacher as `teacher[ase].calculator`."""
    found = describe_keys(Config)
    for name, kind in _TEACHERS.items():
        found += describe_keys(kind, f"teacher[{name}]")
    return found
