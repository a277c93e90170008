"""A step of active learning with dpdata: a model labels candidates, a committee finds the new ones among them, and
these are written as a system of DeePMD-kit. Needs dpdata: pip install "mdops[dpdata]"

python examples/dpdata_labels.py
"""

import tempfile
from pathlib import Path

import dpdata
import numpy as np
import torch
from alloy import MODEL, alloy

import mdops
import mdops.dpdata  # registers the driver
from mdops.deepmd import model_deviation
from mdops.train import load_dataset

candidates = []
for k in range(12):
    atoms = alloy()
    atoms.rattle(0.03 * (k + 1), seed=k)  # less and less like the training data
    candidates.append(dpdata.System(atoms, fmt="ase/structure"))
system = candidates[0]
for other in candidates[1:]:
    system.append(other)

labelled = system.predict(MODEL, driver="mdops")  # all frames in one call
print(
    f"{len(labelled)} frames of {labelled.get_natoms()} atoms, {labelled['energies'].min():.2f} eV at least"
)

# A committee would come from trainings with several seeds; here the weights of one model are shifted.
committee = []
for seed in range(4):
    model = mdops.load(MODEL, dtype="float64")
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.002 * torch.randn_like(weight)
    committee.append(model)

with tempfile.TemporaryDirectory() as folder:
    labelled.to("deepmd/npy", folder)
    deviation = model_deviation(committee, load_dataset(folder, committee[0].type_map)).table()[:, 3]
    print("largest deviations of a force, eV/A: " + " ".join(f"{value:.3f}" for value in deviation))
    chosen = np.flatnonzero(deviation > np.median(deviation))
    labelled.sub_system(chosen).to("deepmd/npy", Path(folder) / "new")
    print(f"{len(chosen)} of them are new")
