"""Molecular dynamics of a Cu-Al alloy with a model that DeePMD-kit trained: NVT, then NVE, and a picture of
how well energy is conserved. `make demo` runs it."""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from ase import Atoms
from ase.build import bulk

from mdops.calculator import MDOps
from mdops.md import Output, Physics, run

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MODEL = Path(__file__).parents[1] / "tests/data/formats/model.dp"
TEMPERATURE = 600.0  # K
TIMESTEP = 2.0  # fs


def alloy(cells: int, seed: int = 1) -> Atoms:
    """A random fcc alloy, 70 % Cu, as in the data the model was trained on."""
    atoms = bulk("Cu", "fcc", a=3.85, cubic=True).repeat(cells)
    chosen = np.random.default_rng(seed).permutation(len(atoms))[: round(0.3 * len(atoms))]
    atoms.symbols[chosen] = "Al"
    return atoms


def read_log(path: Path) -> dict[str, np.ndarray]:
    """Columns by name."""
    with path.open() as file:
        names = file.readline().split()
        columns = np.loadtxt(file, ndmin=2).T
    return dict(zip(names, columns, strict=True))


def drift(time_ps: np.ndarray, energy: np.ndarray) -> float:
    """Slope of the straight line through it."""
    return float(np.polyfit(time_ps, energy, 1)[0]) if len(time_ps) > 2 else float("nan")


def picture(logs: dict[str, dict[str, np.ndarray]], n: int, path: Path) -> None:
    """Three panels: exchange of energy in NVE, what must stay constant in both runs, and temperature."""
    figure, (exchange, kept, heat) = plt.subplots(3, 1, figsize=(7, 7.5), sharex=True, layout="constrained")
    nve = logs["nve"]
    for name, label in (("Epot", "potential"), ("Ekin", "kinetic"), ("Etot", "total")):
        energy = nve[f"{name}/eV"] / n * 1e3
        start = energy.mean() if name != "Etot" else energy[0]
        exchange.plot(nve["time/ps"], energy - start, label=label, lw=2 if name == "Etot" else 1)
    exchange.set(ylabel="energy, NVE (meV/atom)", title=f"Cu-Al, {n} atoms, {TIMESTEP:g} fs a step")
    largest = 0.0
    for k, (ensemble, what) in enumerate((("nve", "total energy"), ("nvt", "conserved quantity"))):
        log = logs[ensemble]
        energy = (log["conserved/eV"] - log["conserved/eV"][0]) / n * 1e6
        largest = max(largest, float(abs(energy).max()))
        slope = drift(log["time/ps"], energy)
        text = f"{ensemble.upper()}, {what}: drift {slope:+.2f} µeV/atom/ps"
        kept.plot(log["time/ps"], energy, color=f"C{k + 2}", lw=1, label=text)
        heat.plot(log["time/ps"], log["T/K"], color=f"C{k + 2}", lw=1, label=ensemble.upper())
    kept.set(
        ylabel="change since start (µeV/atom)", ylim=(-1.8 * largest, 2.2 * largest) if largest else None
    )
    heat.axhline(TEMPERATURE, color="0.6", lw=1, ls="--", label=f"bath, {TEMPERATURE:g} K")
    heat.set(xlabel="time (ps)", ylabel="temperature (K)", xlim=(0, nve["time/ps"][-1]))
    for axes in (exchange, kept, heat):
        axes.legend(loc="upper right", ncols=1 if axes is kept else 3, frameon=False)
        axes.margins(y=0.25)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write into")
    parser.add_argument("--steps", type=int, default=2000, help="of each run")
    parser.add_argument("--cells", type=int, default=4, help="edge of the box in unit cells of 4 atoms")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    atoms = alloy(args.cells)
    atoms.calc = MDOps(MODEL)
    logs = {}
    for ensemble in ("nvt", "nve"):
        files = {
            part: args.out / f"{ensemble}.{end}" for part, end in (("trajectory", "traj"), ("log", "log"))
        }
        output = Output(args.steps, args.out / f"{ensemble}.checkpoint", interval=10, overwrite=True, **files)
        formula, length = atoms.get_chemical_formula(), args.steps * TIMESTEP / 1000
        print(f"{ensemble.upper()} of {formula}, {length:g} ps at {TEMPERATURE:g} K", flush=True)
        done = run(atoms, Physics(ensemble, TEMPERATURE, TIMESTEP), output)
        log = logs[ensemble] = read_log(files["log"])
        slope = drift(log["time/ps"], log["conserved/eV"] / len(atoms))
        print(
            f"  {done.seconds / done.steps / len(atoms) * 1e6:.1f} us a step and atom, "
            f"{done.ns_per_day:.3g} ns/day; mean temperature {done.temperature:.0f} K; "
            f"energy drift {slope:.1e} eV/atom/ps",
            flush=True,
        )
    picture(logs, len(atoms), args.out / "energy.png")
    print(f"Wrote trajectories and logs of both runs, and energy.png, into {args.out}/")


if __name__ == "__main__":
    main()
