"""The thermal conductivity of a Cu-Al alloy from the fluctuations of its heat current (Green and Kubo), with a plot.

python examples/thermal_conductivity.py [PICOSECONDS]     (default: 40, some minutes on a CPU; see heat.md)
"""

import dataclasses
import sys

import matplotlib.pyplot
import numpy as np
from alloy import MODEL, alloy

import mdops
from mdops.md import BatchEngine, EnsembleSettings
from mdops.md.heat import green_kubo, heat_current
from mdops.md.motion import set_velocities

matplotlib.use("agg")
RUNS, EVERY = 4, 5  # runs side by side; steps between two currents
length = 1000 * float(sys.argv[1] if len(sys.argv) > 1 else 40)  # fs

potential = mdops.load(MODEL, device="cpu")  # or "cuda"
nvt = EnsembleSettings("nvt", temperature=300, timestep=2)
nve = dataclasses.replace(nvt, ensemble="nve")
crystals = [alloy(repeat=3) for _ in range(RUNS)]
for seed, crystal in enumerate(crystals):
    set_velocities(crystal, nvt, np.random.default_rng(seed), anew=True)

# First with thermostats; then without, because they would change the currents.
warm = BatchEngine(crystals, potential, nvt)
list(warm.run(round(0.1 * length / nvt.timestep)))
crystals = [frame.atoms(crystal) for crystal, frame in zip(crystals, warm.frame(), strict=True)]
engine = BatchEngine(crystals, potential, nve, atom_virial=True)

masses, volume = crystals[0].get_masses(), crystals[0].get_volume()
# The mean energy of each element's atoms is subtracted: it moves with the atoms, and is not heat.
energies, symbols = engine.frame()[0].atom_energy, np.array(crystals[0].get_chemical_symbols())
usual = np.array([energies[symbols == symbol].mean() for symbol in symbols])
frames = engine.run(round(length / nve.timestep), EVERY)
currents = np.array([[heat_current(frame, masses, usual).sum(0) for frame in batch] for batch in frames])

kelvin, apart = engine.mean_temperature.mean(), EVERY * nve.timestep
of_runs = [green_kubo(run, apart, volume, kelvin, length / 20) for run in currents.swapaxes(0, 1)]
times = of_runs[0].times / 1000
conductivity = np.array([run.conductivity.mean(1) for run in of_runs])
mean, error = conductivity.mean(0), conductivity.std(0, ddof=1) / np.sqrt(RUNS)
for k in range(len(times) // 5, len(times), len(times) // 5):
    print(f"integral up to {times[k]:.2f} ps: {mean[k]:.2f} +- {error[k]:.2f} W/(m K)")

figure, (left, right) = matplotlib.pyplot.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
correlation = np.mean([run.correlation.mean(1) for run in of_runs], axis=0)
left.plot(times, correlation / correlation[0])
left.set(xlabel="t (ps)", ylabel=r"$\langle J(0) J(t) \rangle \,/\, \langle J(0)^2 \rangle$")
right.plot(times, mean)
right.fill_between(times, mean - error, mean + error, alpha=0.3)
right.set(xlabel="t (ps)", ylabel=r"$\kappa$ (W m$^{-1}$ K$^{-1}$)")
figure.savefig("thermal_conductivity.png", dpi=150)
