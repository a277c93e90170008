"""Molecular dynamics and relaxation of many systems in TorchSim. Needs TorchSim: pip install "mdops[torchsim]"

python examples/torchsim_md.py
"""

import time

import torch_sim as ts
from alloy import MODEL, alloy

from mdops.torchsim import MDOpsModel

model = MDOpsModel(MODEL, device="cpu")  # or "cuda"
systems = []
for k in range(8):
    atoms = alloy(repeat=1 + k % 2)
    atoms.rattle(0.05, seed=k)
    systems.append(atoms)

# The number of atoms evaluated together; TorchSim's own estimate, `autobatcher=True`, fills a GPU.
batch = {"memory_scales_with": "n_atoms", "max_memory_scaler": 100}
nvt = ts.Integrator.nvt_langevin if hasattr(ts, "Integrator") else ts.nvt_langevin  # TorchSim 0.3
begin = time.perf_counter()
final = ts.integrate(
    system=systems, model=model, integrator=nvt, n_steps=50, temperature=300, timestep=0.002,
    autobatcher=ts.BinningAutoBatcher(model=model, **batch),
)  # fmt: skip
wall = time.perf_counter() - begin
print(f"{final.n_systems} systems, 50 steps: {1e6 * wall / 50 / final.n_atoms:.0f} us an atom and step")
print("eV: " + " ".join(f"{energy:.2f}" for energy in final.energy))

fire = ts.Optimizer.fire if hasattr(ts, "Optimizer") else ts.unit_cell_fire
relaxed = ts.optimize(
    system=final.to_atoms(), model=model, optimizer=fire, max_steps=200,
    autobatcher=ts.InFlightAutoBatcher(model=model, **batch),
)  # fmt: skip
print("relaxed: " + " ".join(f"{energy:.2f}" for energy in model(relaxed)["energy"]))
