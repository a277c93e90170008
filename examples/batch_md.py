"""Molecular dynamics of many small structures side by side: clusters of a Cu-Al alloy at 400 K, each with its own
thermostat. One small structure cannot fill a GPU; a thousand in one batch do.

python examples/batch_md.py
"""

import numpy as np
from alloy import MODEL, alloy

import mdops
from mdops.md import BatchEngine, EnsembleSettings
from mdops.md.motion import set_velocities

potential = mdops.load(MODEL, device="cpu")  # or "cuda"
physics = EnsembleSettings("nvt", temperature=400, timestep=2)

random = np.random.default_rng(0)
clusters = []
for _ in range(8):
    cluster = alloy(repeat=3)
    radii = np.linalg.norm(cluster.positions - cluster.positions.mean(axis=0), axis=1)
    cluster = cluster[np.argsort(radii)[: random.integers(13, 43)]]
    cluster.pbc = False
    set_velocities(cluster, physics, random, anew=True)
    clusters.append(cluster)

engine = BatchEngine(clusters, potential, physics)
for frames in engine.run(200, every=50):
    print(f"{frames.step:4d} steps, eV per cluster: " + " ".join(f"{energy:.2f}" for energy in frames.energy))
print("K: " + " ".join(f"{temperature:.0f}" for temperature in engine.mean_temperature))

for cluster, frame in zip(clusters, engine.frame(), strict=True):
    last = frame.atoms(cluster)  # with energies, forces and velocities
    print(
        f"{last.get_chemical_formula():9s} largest force {np.linalg.norm(last.get_forces(), axis=1).max():.2f} eV/A"
    )
