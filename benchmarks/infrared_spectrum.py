"""The infrared spectrum of liquid water from DeePMD-kit's public examples. A model of energies (water/se_e2_a) and one
of dipoles (water_tensor/dipole) are trained; the first moves the atoms, and the second gives the dipoles of the frames.

    python benchmarks/infrared_spectrum.py EXAMPLES [--device cuda] [--json FILE] [--plot FILE]

EXAMPLES is the folder `examples` of DeePMD-kit's repository. The runs start from a frame that no training used, each
with its own velocities. They are equilibrated with a thermostat, and recorded at constant energy. The example's dipoles
are positions: the sum of the four Wannier centres of a molecule, relative to its oxygen. A centre has -2 e, an oxygen's
core +6 e, a hydrogen +1 e.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from cuda_inference import structure
from machine import machine, parser_of

import mdops
from mdops import spectra
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.data.labels import labels_of
from mdops.md import BatchEngine, EnsembleSettings
from mdops.plots import figure
from mdops.potential import Potential
from mdops.spectra import Spectrum
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer

FACTOR, CHARGES = -2.0, {"O": -2.0, "H": 1.0}  # see above; e
TIMESTEP, EVERY = 0.5, 4  # fs, and steps between two frames
RESOLUTION = 40.0  # 1/cm
# Ranges of the peaks, and the peaks in the literature: J. E. Bertie and Z. Lan, Appl. Spectrosc. 50,
# 1047 (1996), for liquid water at 298 K; 1/cm.
BANDS = {
    "libration": ((350.0, 1000.0), 600.0),
    "bend": ((1400.0, 1900.0), 1640.0),
    "stretch": ((2900.0, 3900.0), 3400.0),
}


def trained(source: Path, steps: int, out: Path, device: str) -> tuple[Potential, dict[str, Any]]:
    """The model of an example's input, trained for `steps` steps, in which its learning rate falls to its end; its
    cost, and its errors on the input's validation systems."""
    tree = json.loads(source.read_text())
    training = tree["training"]
    training.pop("stat_file", None)
    for part in ("training_data", "validation_data"):
        systems = training[part]["systems"]
        training[part]["systems"] = [os.path.normpath(source.parent / system) for system in systems]
    training |= {"numb_steps": steps, "disp_freq": max(1, steps // 20), "save_freq": steps}
    tree["learning_rate"] |= {"decay_steps": max(1, steps // 200), "stop_lr": 1e-6}
    start = time.perf_counter()
    Trainer(parse_config(tree), out, device=device).run(lambda report: None)
    seconds = time.perf_counter() - start
    model = mdops.load(out / "model.safetensors", device=device, overflow="extend")
    data = load_dataset(
        training["validation_data"]["systems"], model.type_map, known=labels_of(model.model.outputs)
    )
    errors = {name: one.rmse for name, one in evaluate(model, data).errors().items()}
    found = {
        "input": f"{source.parent.name}/{source.name}",
        "steps": steps,
        "seconds": seconds,
        "rmse": errors,
    }
    print(json.dumps(found), flush=True)
    return model, found


def moved(
    model: Potential, structures: list[Atoms], settle: int, steps: int, temperature: float
) -> tuple[list[list[Atoms]], dict[str, Any]]:
    """The frames of each structure during `steps` steps without a thermostat, after `settle` steps with one."""
    start = time.perf_counter()
    settings = {"temperature": temperature, "timestep": TIMESTEP, "seed": 1}
    engine = BatchEngine(structures, model, EnsembleSettings("nvt", tdamp=50.0, **settings))
    settled = structures
    for frames in engine.run(settle, every=settle):
        settled = [frame.atoms(atoms) for frame, atoms in zip(frames, structures, strict=True)]
    engine = BatchEngine(settled, model, EnsembleSettings("nve", **settings))
    found: list[list[Atoms]] = [[] for _ in structures]
    conserved = []
    for frames in engine.run(steps, every=EVERY):
        conserved.append(np.asarray(frames.conserved))
        for run, frame, atoms in zip(found, frames, structures, strict=True):
            run.append(Atoms(atoms.numbers, frame.positions, cell=atoms.cell, pbc=True))
    drift = np.ptp(np.array(conserved), axis=0).max() / len(structures[0])
    return found, {
        "runs": len(structures),
        "atoms": len(structures[0]),
        "settling, ps": settle * TIMESTEP / 1000,
        "recorded, ps": steps * TIMESTEP / 1000,
        "temperature, K": float(np.mean(engine.mean_temperature)),
        "largest change of the energy, meV/atom": 1000 * float(drift),
        "seconds": time.perf_counter() - start,
    }


def spectrum_of(
    model: Potential, runs: list[list[Atoms]], temperature: float
) -> tuple[Spectrum, dict[str, Any]]:
    """The mean of the runs' spectra."""
    start, found, dipoles = time.perf_counter(), [], 0.0
    for run in runs:
        series = spectra.with_charges(FACTOR * spectra.responses(model, run), run, CHARGES)
        interval = TIMESTEP * EVERY
        volume = run[0].get_volume()
        found.append(spectra.infrared(series, interval, volume, temperature, resolution=RESOLUTION))
        dipoles += len(run)
    mean = np.mean([one.values for one in found], axis=0)
    return Spectrum(found[0].wavenumbers, mean), {
        "dipoles": int(dipoles),
        "resolution, 1/cm": RESOLUTION,
        "seconds": time.perf_counter() - start,
    }


def peaks(spectrum: Spectrum) -> dict[str, dict[str, float]]:
    """The position of the maximum in each band, 1/cm, and the literature's."""
    found = {}
    for name, ((low, high), known) in BANDS.items():
        inside = (spectrum.wavenumbers >= low) & (spectrum.wavenumbers <= high)
        highest = np.where(inside, spectrum.values, -np.inf).argmax()
        own = {"wavenumber": float(spectrum.wavenumbers[highest]), "value": float(spectrum.values[highest])}
        found[name] = {**own, "literature": known}
    return found


def draw(spectrum: Spectrum, bands: dict[str, dict[str, float]], path: Path) -> None:
    drawn = figure(1, 0.75)
    (axes,) = drawn.axes
    axes.plot(spectrum.wavenumbers, spectrum.values, lw=1.2)
    for name, band in bands.items():
        axes.axvline(band["literature"], color="0.6", lw=0.8, ls="--")
        axes.annotate(f"{name} {band['wavenumber']:.0f}", (band["wavenumber"], band["value"]), xytext=(0, 4),
                      textcoords="offset points", ha="center", fontsize=8)  # fmt: skip
    axes.set(xlabel="wavenumber (1/cm); dashed: measured bands", ylabel="absorption x index (1/cm)",
             xlim=(0, spectrum.wavenumbers[-1]), ylim=(0, 1.15 * spectrum.values.max()))  # fmt: skip
    drawn.savefig(path, dpi=150)


def main() -> None:
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("examples", type=Path)
    add("--device", default="cuda")
    add("--energy-steps", type=int, default=30_000)
    add("--dipole-steps", type=int, default=60_000)
    add("--runs", type=int, default=4)
    add("--settle", type=int, default=10_000, help="steps of 0.5 fs with a thermostat")
    add("--steps", type=int, default=40_000, help="steps of 0.5 fs that are recorded")
    add("--temperature", type=float, default=300.0)
    add("--models", type=Path, default=Path("infrared_spectrum"), help="folder of the trainings")
    add("--commit", help="of the measured source, recorded as it is")
    add("--json", type=Path)
    add("--plot", type=Path)
    args = parser.parse_args()
    water, tensor = args.examples / "water", args.examples / "water_tensor" / "dipole"
    for name in ("energies", "dipoles"):
        (args.models / name).mkdir(parents=True, exist_ok=True)
    energies, of_energies = trained(
        water / "se_e2_a" / "input_torch.json", args.energy_steps, args.models / "energies", args.device
    )
    dipoles, of_dipoles = trained(
        tensor / "dipole_input_torch.json", args.dipole_steps, args.models / "dipoles", args.device
    )
    structures = [structure([], folder=water / "data" / "data_3") for _ in range(args.runs)]
    runs, of_runs = moved(energies, structures, args.settle, args.steps, args.temperature)
    print(json.dumps(of_runs), flush=True)
    spectrum, of_spectrum = spectrum_of(dipoles, runs, of_runs["temperature, K"])
    bands = peaks(spectrum)
    for name, band in bands.items():
        print(f"{name}: {band['wavenumber']:.0f} 1/cm (literature {band['literature']:.0f})")
    found = {
        "machine": machine(args.device, args.commit),
        "energies": of_energies,
        "dipoles": of_dipoles,
        "dynamics": of_runs,
        "spectrum": of_spectrum,
        "peaks": bands,
        "wavenumbers": spectrum.wavenumbers.tolist(),
        "values": [float(f"{value:.5g}") for value in spectrum.values],
    }
    if args.json:
        args.json.write_text(json.dumps(found) + "\n")
    if args.plot:
        draw(spectrum, bands, args.plot)


if __name__ == "__main__":
    main()
