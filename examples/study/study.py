"""The whole way from a reference calculator to a report."""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ase.io
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator

from mdops import Potential
from mdops.calculator import MDOps
from mdops.data.evaluation import Errors, evaluate
from mdops.html import processor, write_page
from mdops.md.compare import Run, simulate
from mdops.md.compare_plot import conservation_plot, distribution_plot
from mdops.train import load_dataset
from mdops.train.report.learning_curve import read_curve
from mdops.train.report.plots import learning_curve_plot, parity_plot
from study.figures import structure_picture
from study.sampling import write_splits
from study.training import train, write_input


@dataclass(frozen=True)
class Study:
    """The subject and the length of a study.

    Attributes:
        title, text: of the report.
        reference: the name of the reference calculator; `calculator` makes one.
        sample: makes the data: frames of each of many runs.
        start: makes the atoms with velocities for the dynamics. timestep: fs. steps: of the dynamics.
        type_map, cutoff (A), training_steps, batch (frames), loss: of the training; see `write_input`.
        reach, width: of the pair distributions, A.
        temperature: K, for the commands shown.
    """

    title: str
    text: str
    reference: str
    calculator: Callable[[], Calculator]
    sample: Callable[[], list[list[Atoms]]]
    start: Atoms
    timestep: float
    steps: int
    type_map: list[str]
    cutoff: float
    training_steps: int
    batch: int
    loss: Mapping[str, float]
    reach: float
    width: float
    temperature: float


def parse_arguments(
    description: str | None, *, out: str, runs: int, training_steps: int, steps: int
) -> argparse.Namespace:
    """The command line of a study, with its defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(out), help=f"folder to write into; default: {out}")
    add("--runs", type=int, default=runs, help=f"of the reference data; default: {runs}")
    add("--training-steps", type=int, default=training_steps, help=f"default: {training_steps}")
    add("--steps", type=int, default=steps, help=f"of the dynamics; default: {steps}")
    return parser.parse_args()


class Clock:
    """Names of parts of the work, and their times, s."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        print(f"\n{name}", flush=True)
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def run_study(study: Study, folder: Path) -> dict[str, str]:
    """Writes data, model, plots and report.html into the folder, prints the figures and returns them."""
    torch.set_num_threads(1)  # for so few atoms, more threads would mostly wait
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock()
    with clock.part(f"reference data by {study.reference}"):
        splits = write_splits(study.sample(), folder / "data")
    with clock.part("training"):
        args = (study.type_map, study.cutoff, study.training_steps, study.batch, study.loss)
        model = train(write_input(folder, *args), folder / "model")
    with clock.part("test on frames not seen"):
        errors = _test(model, folder)
    with clock.part(f"dynamics with the model and with {study.reference}"):
        ours, theirs = (run.settled() for run in _dynamics(study, model, folder))
    with clock.part("report"):
        difference = _plots(study, ours, theirs, folder)
    table = {
        "frames for training, validation and test": ", ".join(f"{len(f):,}" for f in splits.values()),
        **_accuracy(errors, splits["test"]),
        **_simulation(ours, theirs, difference),
        **{f"time: {name}": f"{seconds:.1f} s" for name, seconds in clock.seconds.items()},
        "time in all": f"{sum(clock.seconds.values()):.0f} s",
    }
    _report(study, table, folder)
    return table


def _test(model: Potential, folder: Path) -> dict[str, Errors]:
    """The errors on the test frames, and their plots beside the learning curve."""
    evaluation = evaluate(model, load_dataset(folder / "data/test.extxyz", model.type_map))
    (folder / "plots").mkdir(exist_ok=True)
    parity_plot(evaluation, folder / "plots/parity.png")
    learning_curve_plot(read_curve(folder / "model/lcurve.out"), folder / "plots/learning_curve.png")
    return evaluation.errors()


def _dynamics(study: Study, model: Potential, folder: Path) -> tuple[Run, Run]:
    """Dynamics from the same start, with the model and with the reference."""
    ase.io.write(folder / "start.extxyz", study.start)
    calculators = {"model": MDOps(model), study.reference: study.calculator()}
    ours, theirs = (
        simulate(study.start, calculator, label, timestep=study.timestep, steps=study.steps)
        for label, calculator in calculators.items()
    )
    ase.io.write(folder / "model.extxyz", ours.frames)
    ase.io.write(folder / "reference.extxyz", theirs.frames)
    return ours, theirs


def _plots(study: Study, ours: Run, theirs: Run, folder: Path) -> float:
    """Pictures of the dynamics; returns the difference of the pair distributions, 0 .. 1."""
    conservation_plot(ours, theirs, folder / "plots/energy.png")
    structure_picture(ours.frames[-1], folder / "plots/structure.png")
    return distribution_plot(ours, theirs, study.reach, study.width, folder / "plots/distribution.png")


def _accuracy(errors: Mapping[str, Errors], test: list[Atoms]) -> dict[str, str]:
    """Table rows with errors; those of forces are shown with the size of the forces."""
    size = (sum((f.get_forces() ** 2).sum() for f in test) / sum(3 * len(f) for f in test)) ** 0.5
    energy, forces = errors["energy"], errors["forces"]
    rows = {
        "energy RMSE, frames not seen": f"{1000 * energy.rmse:.2f} meV/atom",
        "force RMSE, frames not seen": f"{forces.rmse:.3f} eV/Å, {100 * forces.rmse / size:.1f} % of the forces",
    }
    if "virial" in errors:
        rows["virial RMSE, frames not seen"] = f"{1000 * errors['virial'].rmse:.1f} meV/atom"
    return rows


def _simulation(ours: Run, theirs: Run, difference: float) -> dict[str, str]:
    """Table rows about the dynamics."""
    rows = {"difference of the pair distributions": f"{100 * difference:.1f} % of their area"}
    for run in (ours, theirs):
        cost = run.step_seconds / len(run.frames[0]) * 1e6
        rows[f"{run.label}: energy drift, constant energy"] = f"{run.drift * 1e6:+.1f} µeV/atom/ps"
        rows[f"{run.label}: time of a step"] = f"{cost:.1f} µs/atom"
    rows["speed of the model"] = f"{theirs.step_seconds / ours.step_seconds:.1f} times {theirs.label}"
    return rows


def machine() -> str:
    """The machine on which times were measured."""
    return f"{processor()}, PyTorch {torch.__version__}, {torch.get_num_threads()} threads"


def _report(study: Study, table: dict[str, str], folder: Path) -> None:
    """Writes report.html and prints the figures."""
    plots = folder / "plots"
    figures = {
        "Learning curve": plots / "learning_curve.png",
        "Test on frames that the training never saw": plots / "parity.png",
        f"Constant energy: the model and {study.reference} from the same start": plots / "energy.png",
        "Distances between atoms in both runs": plots / "distribution.png",
    }
    path, model = folder / "report.html", folder / "model/model.safetensors"
    commands = (
        "source .venv/bin/activate",
        f"mdops info {model}",
        f"mdops test --model {model} --data {folder / 'data/test.extxyz'} --plots {folder / 'test'}",
        f"mdops md {folder / 'start.extxyz'} --model {model} --ensemble nvt "
        f"--temperature {study.temperature:g} --time 20 --trajectory {folder / 'nvt.extxyz'}",
        f"mdops train {folder / 'input.json'} --output {folder / 'again'}",
    )
    write_page(
        path,
        study.title,
        study.text,
        {"Figures": table},
        figures,
        commands,
        machine(),
        plots / "structure.png",
    )
    print()
    for name, value in table.items():
        print(f"{name:<48} {value}")
    print(f"\n{machine()}\nReport: {path}")
