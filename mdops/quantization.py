"""Turns a trained model into a low-bit one, and measures the effects (docs/how-to/quantize.md)."""

import copy
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from ase import Atoms

from mdops.data.batch import make_batch
from mdops.data.dataset import Dataset
from mdops.data.evaluation import Evaluation, evaluate
from mdops.data.neighbor_lists import PairLists
from mdops.errors import InputError, UnsupportedModelError
from mdops.md import Engine, EnsembleSettings
from mdops.md.guard import UnstableRunError
from mdops.md.motion import set_velocities
from mdops.models.ener import EnergyFitting
from mdops.nn.quantized import SCHEMES, Scheme, calibrated_net, rounded_net
from mdops.potential import Potential
from mdops.system import from_atoms

__all__ = ["QuantizationReport", "compare", "energy_drift", "quantize"]

CALIBRATION_ROWS = 4096  # how many atoms of a type are used to fit the rounding
_BATCH_ATOMS = 4096
_LOSS = 1.05  # a scheme loses accuracy if its error is more than this times the full model's
_TIMED = 5
_WIDTHS = (10, 12, 13, 12, 12, 8, 22)  # widths of the table's columns


def quantize(potential: Potential, scheme: str, data: Dataset | None = None) -> Potential:
    """A copy of a model in which the hidden layers of the fitting nets are low-bit.

    Args:
        potential: a model with the fitting "ener", of any descriptor.
        scheme: a name of `mdops.nn.quantized.SCHEMES`.
        data: frames, with types of the model, to which the rounding is fitted: the balance between inputs and weights,
            and the mean errors, which biases then correct. Labels are not used. Without data, weights are only rounded.

    Returns:
        the copy, as `mdops.load` would give it; set its `allow_low_bit` to use it for dynamics.

    Raises:
        InputError: the scheme is unknown, or the model has no such nets or is low-bit already.
        UnsupportedModelError: it has magnetic moments.
    """
    found = copy.deepcopy(potential)
    of = _scheme(scheme)
    fittings = _fittings(found)
    if not fittings:
        raise InputError(
            f"{potential.kind} has no fitting net with hidden layers, which are the layers that become low-bit"
        )
    if potential.model.spin is not None:
        raise UnsupportedModelError("models with magnetic moments have no low-bit form")
    if potential.scheme is not None:
        raise InputError(f"the model is low-bit already ({potential.scheme.name}): begin with the full one")
    rows = {} if data is None else _inputs(found, data)
    for fitting in fittings:
        for k, net in enumerate(fitting.nets.nets):
            seen = rows.get(id(net))
            low_bit = rounded_net(net, of) if seen is None else calibrated_net(net, of, seen)
            fitting.nets[k] = low_bit.train(net.training)
    found.source = {**found.source, "quantized": of.name}
    return found


def _scheme(name: str) -> Scheme:
    if name not in SCHEMES:
        raise InputError(f"scheme is {name!r}, expected one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _fittings(potential: Potential) -> list[EnergyFitting]:
    found = [module for module in potential.modules() if isinstance(module, EnergyFitting)]
    return [fitting for fitting in found if len(fitting.net(0).layers) > 1]


@torch.no_grad()
def _inputs(potential: Potential, data: Dataset) -> dict[int, torch.Tensor]:
    """Inputs of each fitting net for frames spread over the data, by the net's id; at most `CALIBRATION_ROWS` each."""
    rows: dict[int, list[torch.Tensor]] = {}

    def keep(net: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        rows.setdefault(id(net), []).append(args[0].detach())

    nets = [net for fitting in _fittings(potential) for net in fitting.nets.nets]
    lists = PairLists(data, potential.cutoff, masks=potential.model.masks)
    with ExitStack() as hooks:
        for net in nets:
            hooks.enter_context(net.register_forward_pre_hook(keep))
        for frames in _spread(data, potential):
            batch = make_batch(data, lists, frames).taken_by(potential).to(potential.device)
            evaluator = potential.evaluator("differentiate")
            evaluator(batch.system, batch.neighbors, batch.fparam, batch.aparam, forces=False)
    return {key: torch.cat(parts)[:CALIBRATION_ROWS] for key, parts in rows.items()}


def _spread(data: Dataset, potential: Potential) -> Iterator[np.ndarray]:
    """Batches of frames spread over the data, until there are enough atoms of every type or no more frames."""
    order = np.random.default_rng(0).permutation(len(data))
    counts = data.composition()[order].cumsum(0)
    enough = np.flatnonzero((counts >= CALIBRATION_ROWS).all(1))
    order = order[: enough[0] + 1] if len(enough) else order
    return data.successive(order, _BATCH_ATOMS)


# -- The effects


@dataclass
class QuantizationReport:
    """Results of a model for frames that were not used to train it.

    Attributes:
        name: its scheme, or its dtype.
        force_rmse, energy_rmse: against the labels, eV/A and eV/atom; None without labels.
        force_off, energy_off: root mean square differences from the full model's results.
        step: the time of a step divided by the full model's, for the first of the frames; median of several.
        drift, drift_error: drift of the energy in constant-energy dynamics, eV/atom/ps, and its standard error; None if
            there was no dynamics, NaN if the dynamics broke.
    """

    name: str
    force_rmse: float | None
    energy_rmse: float | None
    force_off: float
    energy_off: float
    step: float
    drift: float | None = None
    drift_error: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: `broke` says whether the dynamics broke."""
        broke = self.drift is not None and bool(np.isnan(self.drift))
        error = None if self.drift_error is None or np.isnan(self.drift_error) else self.drift_error
        return {**asdict(self), "drift": None if broke else self.drift, "drift_error": error, "broke": broke}


def compare(
    full: Potential,
    others: dict[str, Potential],
    data: Dataset,
    picoseconds: float = 0.0,
    temperature: float = 300.0,
) -> list[QuantizationReport]:
    """Compares models with the full one, which is the first row; runs `picoseconds` of dynamics (at K) with each."""
    models = {str(full.dtype).removeprefix("torch."): full, **others}
    answers = {name: evaluate(model, data) for name, model in models.items()}
    times = step_times(list(models.values()), first_frame(data))
    rows = []
    for (name, model), seconds in zip(models.items(), times, strict=True):
        errors = answers[name].errors()
        force_off, energy_off = _differences(answers[name], next(iter(answers.values())))
        row = QuantizationReport(
            name,
            errors["forces"].rmse if "forces" in errors else None,
            errors["energy"].rmse if "energy" in errors else None,
            force_off,
            energy_off,
            seconds / times[0],
        )
        if picoseconds > 0:
            row.drift, row.drift_error = energy_drift(
                model, first_frame(data), picoseconds, temperature=temperature
            )
        rows.append(row)
    return rows


def _differences(one: Evaluation, other: Evaluation) -> tuple[float, float]:
    """Root mean square differences of forces, and of energies per atom."""
    forces = one.predictions["forces"] - other.predictions["forces"]
    energy = (one.predictions["energy"] - other.predictions["energy"]) / one.data.sizes()
    return float(np.sqrt(np.square(forces).mean())), float(np.sqrt(np.square(energy).mean()))


def first_frame(data: Dataset) -> Atoms:
    """The atoms of a dataset's first frame."""
    atoms = data.atoms(0)
    symbols = [data.type_map[kind] for kind in data.types[atoms]]
    return Atoms(symbols, np.array(data.positions[atoms]), cell=np.array(data.cell[0]), pbc=data.pbc[0])


def step_times(models: list[Potential], atoms: Atoms) -> list[float]:
    """The time of an evaluation of each model, s: medians of several. The models are evaluated in turn."""
    found: list[list[float]] = [[] for _ in models]
    calls = []
    for model in models:
        system = from_atoms([atoms], model.type_map, model.device)
        calls.append((model, system, model.neighbor_list(system)))
    for turn in range(1 + _TIMED):
        for (model, system, pairs), seconds in zip(calls, found, strict=True):
            begin = time.perf_counter()
            float(model.evaluate(system, pairs)["energy"].sum())
            if turn:
                seconds.append(time.perf_counter() - begin)
    return [float(np.median(seconds)) for seconds in found]


def energy_drift(
    model: Potential,
    atoms: Atoms,
    picoseconds: float,
    *,
    temperature: float = 300.0,
    timestep: float = 0.5,
    warm_up: float = 0.25,
    seed: int = 0,
) -> tuple[float, float]:
    """Slope of the total energy in constant-energy dynamics, eV/atom/ps, and its standard error from tenths of the run.

    Args:
        model: low-bit models are allowed here, and neighbours beyond `sel` are kept.
        atoms: the first structure, which gets new velocities.
        picoseconds: the length of the run; a run with a Nose-Hoover chain at `temperature` (K) precedes it, which takes
            `warm_up` times as long.
        timestep: fs.
    """
    model = copy.deepcopy(model)
    model.allow_low_bit, model.overflow, atoms = True, "extend", atoms.copy()
    steps = max(20, round(1000 * picoseconds / timestep))
    physics = EnsembleSettings("nvt", temperature, timestep)
    set_velocities(atoms, physics, np.random.default_rng(seed), anew=True)
    try:
        warm = Engine(atoms, model, physics)
        list(warm.run(max(1, round(warm_up * steps)), every=steps))
        engine = Engine(warm.frame().atoms(atoms), model, EnsembleSettings("nve", temperature, timestep))
        frames = engine.run(steps, every=max(1, min(20, steps // 20)))
        rows = [(1e-3 * timestep * f.step, (f.energy + f.kinetic) / len(atoms)) for f in frames]
    except UnstableRunError:
        return float("nan"), float("nan")
    return slope(*np.array(rows).T)


def slope(times: np.ndarray, energy: np.ndarray, blocks: int = 10) -> tuple[float, float]:
    """Slope of a straight line through energies, and its standard error from the means of blocks, which are almost
    independent."""
    found, offset = np.polyfit(times, energy, 1)
    residual = energy - found * times - offset
    t, means = (np.array([b.mean() for b in np.array_split(a, blocks)]) for a in (times, residual))
    spread = np.sqrt(means @ means / (blocks - 2) / np.square(t - t.mean()).sum())
    return float(found), float(spread)


def table(rows: list[QuantizationReport]) -> str:
    """The effects as text; the first row is the full model."""
    lines = [
        "".join(f"{text:>{width}}" for text, width in zip(line, _WIDTHS, strict=True))
        for line in (
            ("", "force RMSE", "energy RMSE", "forces off", "energy off", "step", "energy drift"),
            ("", "meV/A", "meV/atom", "meV/A", "meV/atom", "", "meV/atom/ps"),
        )
    ]
    for row in rows:
        drift = "-" if row.drift is None else f"{1e3 * row.drift:.3g} +- {1e3 * (row.drift_error or 0):.1g}"
        drift = "the dynamics broke" if row.as_dict()["broke"] else drift
        lines.append(
            f"{row.name:<10}{_milli(row.force_rmse):>12}{_milli(row.energy_rmse):>13}{_milli(row.force_off):>12}"
            f"{_milli(row.energy_off):>12}{row.step:>8.2f}{drift:>22}"
        )
    return "\n".join(lines)


def _milli(value: float | None) -> str:
    return "-" if value is None else f"{1e3 * value:.4g}"


def verdict(full: QuantizationReport, row: QuantizationReport, scheme: Scheme) -> str:
    """What the numbers mean for a user."""
    worse = [
        f"{name} RMSE {_milli(now)} instead of {_milli(before)} {unit}"
        for name, now, before, unit in (
            ("force", row.force_rmse, full.force_rmse, "meV/A"),
            ("energy", row.energy_rmse, full.energy_rmse, "meV/atom"),
        )
        if now is not None and before is not None and now > _LOSS * before
    ]
    if row.force_rmse is None and row.energy_rmse is None:
        accuracy = "the data has no labels: compare its results with the full model's in the table"
    elif worse:
        accuracy = f"it LOSES ACCURACY: {', '.join(worse)}"
    else:
        accuracy = f"its errors on this data are within {100 * (_LOSS - 1):.0f}% of the full model's"
    forces = "its forces are the derivatives of its energy"
    if not scheme.has_exact_forces:
        others = [s.name for s in SCHEMES.values() if s.weights == scheme.weights and s.has_exact_forces]
        forces = (
            "its forces ignore the rounding of inputs, so they are not exactly the derivatives of its energy, which "
            f"drifts: use a thermostat, or the scheme {others[0]}, whose inputs are not rounded"
        )
    return f"{scheme.name} ({scheme.words}): {accuracy}; {forces}"
