"""The infrared spectrum of liquid water from DeePMD-kit's public data of density functional theory.

    python benchmarks/water_spectrum.py --examples examples --out FOLDER [--json FILE] [--picture FILE]

`--examples` is the folder of that name in DeePMD-kit's repository: water/data has energies and forces of 64
molecules, water_tensor/dipole the places of their Wannier centroids. A model is trained on each (data_3, and the
validation data of the dipoles, are left out), 64 molecules run at 300 K, with a thermostat and then at constant energy,
and the spectrum is that of the second part. Its halves tell how much of it is noise. A stage whose file is there is not
done again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import torch
from ase import Atoms
from machine import machine

import mdops
from mdops import spectra
from mdops.cli import main as mdops_command
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.data.labels import labels_of
from mdops.spectra import Spectrum

TYPES = ["O", "H"]
CHARGES, CENTROID = (
    {"O": -2.0, "H": 1.0},
    -8.0,
)  # e: at the atoms, with oxygen's centroid there, and of the centroid
TEMPERATURE, TIMESTEP, EVERY = 300.0, 0.5, 4  # K, fs, steps between frames
# Peaks are looked for in these windows, 1/cm.
BANDS = {"libration": (300, 1100), "bend": (1400, 1900), "stretch": (2800, 3900)}


def training(systems: list[str], fitting: dict[str, Any], loss: dict[str, Any], steps: int) -> dict[str, Any]:
    """The input of a model of water."""
    descriptor = {"type": "se_e2_a", "sel": [46, 92], "rcut": 6.0, "rcut_smth": 0.5, "neuron": [16, 32, 64],
                  "axis_neuron": 8, "type_one_side": True}  # fmt: skip
    return {
        "model": {"type_map": TYPES, "descriptor": descriptor, "fitting_net": {"neuron": [80, 80, 80], **fitting}},
        "loss": loss,
        "learning_rate": {"type": "exp", "start_lr": 2e-3, "stop_lr": 1e-6, "decay_steps": max(steps // 100, 1)},
        "training": {"training_data": {"systems": systems, "batch_size": 1}, "numb_steps": steps, "seed": 1,
                     "disp_freq": max(steps // 20, 1), "save_freq": steps},
    }  # fmt: skip


def trained(folder: Path, tree: dict[str, Any]) -> Path:
    """The model of an input, trained here unless it is there."""
    model = folder / "model.safetensors"
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "input.json").write_text(json.dumps(tree, indent=1))
        _run("train", folder / "input.json", "-o", folder, "--restart")
    return model


def simulated(out: Path, model: Path, start: Path, steps: int, warm: int) -> Path:
    """The trajectory at constant energy, after `warm` steps with a thermostat."""
    common = ["-m", model, "--timestep", TIMESTEP, "--temperature", TEMPERATURE]
    if not (out / "warm.xyz").exists():
        kept = ["--checkpoint", out / "warm.npz", "--restart"]
        _run("md", start, *common, "--ensemble", "nvt", "--thermostat", "langevin", "--steps", warm,
             "--trajectory", out / "warm.extxyz", "--interval", warm, *kept)  # fmt: skip
        ase.io.write(out / "warm.xyz", ase.io.read(out / "warm.extxyz", -1), format="extxyz")
    run = out / "run.extxyz"
    if not (out / "run.done").exists():
        _run("md", out / "warm.xyz", *common, "--ensemble", "nve", "--steps", steps, "--trajectory", run,
             "--interval", EVERY, "--log", out / "run.csv", "--checkpoint", out / "run.npz", "--restart")  # fmt: skip
        (out / "run.done").touch()
    return run


def _run(*words: Any) -> None:
    if mdops_command([str(word) for word in words]) != 0:
        raise SystemExit(f"mdops {' '.join(map(str, words))} failed")


def total_dipoles(model: Path, frames: list[Atoms]) -> np.ndarray:
    """(T, 3), e A."""
    return spectra.with_charges(CENTROID * spectra.responses(mdops.load(model), frames), frames, CHARGES)


def peaks(spectrum: Spectrum) -> dict[str, float]:
    """The highest value's wavenumber in each band, by the parabola through it and its neighbours."""
    found = {}
    for name, (low, high) in BANDS.items():
        inside = np.flatnonzero((spectrum.wavenumbers > low) & (spectrum.wavenumbers < high))
        k = int(inside[spectrum.values[inside].argmax()])
        x, y = spectrum.wavenumbers[k - 1 : k + 2], spectrum.values[k - 1 : k + 2]
        a, b, _ = np.polyfit(x - x[1], y, 2)
        found[name] = float(x[1] - b / (2 * a))
    return found


def rmse(model: Path, systems: list[str]) -> dict[str, float]:
    """Errors on data that was left out, in the units of the labels (meV/atom: eV/atom here)."""
    potential = mdops.load(model)
    silent = [t for t, answers in zip(TYPES, potential.model.has_energy.tolist(), strict=True) if not answers]
    data = load_dataset(systems, TYPES, known=labels_of(potential.model.outputs), silent=silent)
    return {name: error.rmse for name, error in evaluate(potential, data).errors().items()}


def draw(spectrum: Spectrum, found: dict[str, float], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    axes.plot(spectrum.wavenumbers, spectrum.values / 1000, color="#1f5fa8", linewidth=1.2)
    for name in ("bend", "stretch"):
        height = float(np.interp(found[name], spectrum.wavenumbers, spectrum.values)) / 1000
        axes.annotate(f"{name}\n{found[name]:.0f}", (found[name], height), (0, 6), textcoords="offset points",
                      ha="center", fontsize=9)  # fmt: skip
    axes.set(xlim=(0, 4000), ylim=(0, 1.2 * float(spectrum.values.max()) / 1000),
             xlabel="wavenumber (1/cm)", ylabel="absorption times refractive index (1000/cm)")  # fmt: skip
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--energy-steps", type=int, default=6_000)
    parser.add_argument("--dipole-steps", type=int, default=3_000)
    parser.add_argument("--picoseconds", type=float, default=20.0)
    parser.add_argument("--warm", type=float, default=3.0, help="ps")
    a = parser.parse_args()
    water, dipoles = a.examples / "water" / "data", a.examples / "water_tensor" / "dipole"
    energies = training(
        [str(water / f"data_{k}") for k in range(3)],
        {},
        {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 1000, "limit_pref_f": 1},
        a.energy_steps,
    )
    places = training(
        [str(dipoles / "training_data_reformat" / "atomic_system")],
        {"type": "dipole", "dipole_type": [0]},
        {"type": "tensor", "pref": 0.0, "pref_atomic": 1.0},
        a.dipole_steps,
    )
    a.out.mkdir(parents=True, exist_ok=True)
    models = trained(a.out / "dipole", places), trained(a.out / "energy", energies)
    start = a.out / "start.xyz"
    if not start.exists():
        place = water / "data_0" / "set.000"
        kinds = np.loadtxt(water / "data_0" / "type.raw", dtype=int)
        symbols = [(water / "data_0" / "type_map.raw").read_text().split()[t] for t in kinds]
        positions, cell = (np.load(place / f"{name}.npy")[0].reshape(-1, 3) for name in ("coord", "box"))
        ase.io.write(start, Atoms(symbols, positions, cell=cell, pbc=True), format="extxyz")
    steps, warm = (round(1000 * time / TIMESTEP) for time in (a.picoseconds, a.warm))
    frames = ase.io.read(simulated(a.out, models[1], start, steps, warm), ":")
    temperatures = [atoms.get_temperature() for atoms in frames[::10]]
    volume, moments = frames[0].get_volume(), total_dipoles(models[0], frames)
    options = (EVERY * TIMESTEP, volume, float(np.mean(temperatures)))
    spectrum = spectra.infrared(moments, *options, resolution=30)
    halves = [peaks(spectra.infrared(part, *options, resolution=30)) for part in np.array_split(moments, 2)]
    result = {
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "steps": {"energy": a.energy_steps, "dipole": a.dipole_steps},
        "picoseconds": a.picoseconds,
        "temperature": float(np.mean(temperatures)),
        "volume": volume,
        "rmse": {
            "energy": rmse(models[1], [str(water / "data_3")]),
            "dipole": rmse(models[0], [str(dipoles / "validation_data_reformat" / "atomic_system")]),
        },
        "peaks": peaks(spectrum),
        "peaks of the halves": halves,
    }
    print(json.dumps(result, indent=1))
    np.savetxt(
        a.out / "spectrum.csv", np.column_stack([spectrum.wavenumbers, spectrum.values]), delimiter=","
    )
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n")
    if a.picture:
        draw(spectrum, result["peaks"], a.picture)


if __name__ == "__main__":
    main()
