"""Trains a small model of a Cu-Al alloy with your own loop in plain PyTorch; forces are in the loss.

python examples/train_script.py

The command `mdops train` does this from an input file, with validation, a learning curve and restarts.
"""

from pathlib import Path

import numpy as np
import torch

from mdops.data.evaluation import evaluate
from mdops.train import PairLists, load_dataset, make_batch, parse_config
from mdops.train.loop.update import use_training_spline
from mdops.train.model.random import random_potential

DATA = Path(__file__).parents[1] / "tests/data/training/emt"
STEPS = 400
MODEL = {
    "type_map": ["Cu", "Al"],
    "descriptor": {"rcut": 5.0, "neuron": [8, 16, 32], "axis_neuron": 6},
    "fitting_net": {"neuron": [32, 32, 32]},
}

config = parse_config(
    {"model": MODEL, "training": {"training_data": {"systems": str(DATA)}, "numb_steps": STEPS}}
)
data = load_dataset(DATA, config.model.type_map)
lists = PairLists(data, config.model.cutoff)  # makes every neighbour list once
model = random_potential(config, data, lists, seed=1)
use_training_spline(model, model.source["min_nbor_dist"])  # embedding nets are evaluated only at the knots

optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.01 ** (1 / STEPS))
random = np.random.default_rng(1)
for step in range(STEPS):
    batch = make_batch(data, lists, random.choice(len(data), 2, replace=False))
    s, near = batch.system, batch.neighbors
    result = model(s.positions, s.types, s.cell, s.pbc, s.batch, near, forces=True, create_graph=True)
    energy = ((result["energy"] - batch.labels["energy"]) / batch.sizes).square().mean()
    forces = (result["forces"] - batch.labels["forces"]).square().mean()
    weight = 100 * (step / STEPS) ** 2  # forces come first: they contain far more information
    optimizer.zero_grad()
    (weight * energy + forces).backward()  # through the forces: second derivatives
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        print(f"step {step:3d}: energy {energy.sqrt():.4f} eV/atom, forces {forces.sqrt():.4f} eV/A")

model.save("alloy.safetensors")
for name, error in evaluate(model.eval(), data).errors().items():
    print(f"{name}: RMSE {error.rmse:.4f}, MAE {error.mae:.4f}")
