"""Models of dipoles and of charges with random weights, for the C core and LAMMPS."""

from pathlib import Path

import numpy as np
import torch
from ase import Atoms

import mdops
from mdops.models.registry import find
from mdops.potential import Potential
from mdops.system import from_atoms
from mdops.train import parse_config

SE_E2_A = {
    "type": "se_e2_a", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [6, 12], "axis_neuron": 3, "sel": [40, 60],
}  # fmt: skip
DPA1 = SE_E2_A | {"type": "dpa1", "sel": 100, "attn_layer": 0}


def random_model(descriptor, fitting, seed: int = 3, **more) -> Potential:
    """Of water, in float64, with statistics that are not those of any data; `more`: of the section model."""
    model = {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": {"neuron": [12, 12], **fitting}}
    loss = {"type": "ener" if fitting.get("type", "ener") == "ener" else "tensor"}
    if loss["type"] == "tensor":
        loss |= {"pref": 0, "pref_atomic": 1}
    training = {"training_data": {"systems": "none"}, "numb_steps": 1}
    options = parse_config({"model": model | more, "loss": loss, "training": training}).model
    made = find("model", options.KIND).random(options, seed, torch.float64)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in made.descriptors:
            if not part.mixed:
                part.mean.copy_(0.1 * torch.rand(part.mean.shape, generator=random, dtype=torch.float64))
            part.std.copy_(0.2 + 0.2 * torch.rand(part.std.shape, generator=random, dtype=torch.float64))
    potential = Potential(made).eval()
    potential.use_spline()
    return potential


def dipole_model(descriptor=SE_E2_A, types=(0,), **more) -> Potential:
    return random_model(descriptor, {"type": "dipole", "dipole_type": list(types), **more})


def with_charges(folder: Path) -> Path:
    """A model of energies and charges, whose file has both of its models, and its dipole model dw.dp beside it; the
    energies alone, without what the core computes with, are in alone.safetensors."""
    dipole_model().save(folder / "dw.dp")
    energies = random_model(SE_E2_A, {}, seed=5)
    section = {"model_charge_map": [-8.0], "sys_charge_map": [6.0, 1.0], "ewald_h": 0.5, "ewald_beta": 0.4}
    energies.source["modifier"] = {"type": "dipole_charge", "model_name": str(folder / "dw.dp"), **section}
    energies.save(folder / "alone.safetensors")
    mdops.load(folder / "alone.safetensors", dtype="float64").save(folder / "model.safetensors")
    return folder / "model.safetensors"


def in_fields(potential: Potential, atoms: Atoms, field: np.ndarray, fparam=None) -> dict[str, np.ndarray]:
    """By PyTorch's derivatives: the dipoles mu, U = -sum F . mu in fields F, its forces and its virial."""
    given = from_atoms([atoms], potential.type_map)
    x = given.positions.clone().requires_grad_()
    strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    box = given.cell[0] + given.cell[0] @ strain
    more = {} if fparam is None else {"fparam": torch.tensor([fparam])}
    dipole = potential(x + x @ strain, given.types.int(), box, **more)["atom_dipole"]
    energy = -(torch.from_numpy(field) * dipole).sum()
    slopes = torch.autograd.grad(energy, (x, strain))
    found = {"dipole": dipole, "energy": energy, "forces": -slopes[0], "virial": -slopes[1]}
    return {name: value.detach().numpy() for name, value in found.items()}
