"""Small models of several parts, and what is asked of their evaluators."""

import dataclasses
import itertools

import numpy as np
import torch
from ase.build import bulk
from reference_cases import relative_error

from mdops import Potential
from mdops.models import DescriptorFitting
from mdops.models.standard import StandardOptions
from mdops.options import parse
from mdops.system import from_atoms

SPLINES, FLOAT32 = 1e-7, 3e-5

A = {"type": "se_e2_a", "rcut": 4.5, "rcut_smth": 1.0, "sel": [90, 70], "neuron": [6, 12], "axis_neuron": 4}
R = {"type": "se_e2_r", "rcut": 3.6, "rcut_smth": 0.8, "sel": [50, 40], "neuron": [5, 9]}
T = {"type": "se_e3", "rcut": 3.4, "rcut_smth": 1.0, "sel": [40, 30], "neuron": [3, 6]}
D = {
    "type": "dpa1", "rcut": 4.0, "rcut_smth": 1.0, "sel": 90, "neuron": [6, 12], "axis_neuron": 3, "tebd_dim": 4,
    "attn_layer": 0,
}  # fmt: skip
V = {**D, "type": "se_atten_v2", "rcut": 3.5, "sel": 60, "axis_neuron": 2}
ATTENTIVE = {**D, "attn_layer": 1, "attn": 8, "rcut": 3.6}


def hybrid(*parts):
    return {"type": "hybrid", "list": list(parts)}


def model_of(descriptor, elements=("Cu", "Al"), seed=0, dtype=torch.float64, fitting=None, model=None):
    """Random weights, and statistics that are not zero."""
    sections = {
        "type_map": list(elements),
        "descriptor": descriptor,
        "fitting_net": {"neuron": [20, 20, 20], **(fitting or {})},
        **(model or {}),
    }
    found = DescriptorFitting.random(parse(StandardOptions, sections), seed, torch.float64)
    random, n = np.random.default_rng(seed), len(elements)
    for part in (part for part in found.descriptors if hasattr(part, "set_statistics")):
        std = np.stack([random.uniform(0.1, 0.16, n), random.uniform(0.06, 0.1, n)], 1)
        part.set_statistics(random.uniform(0.03, 0.07, n), std)
    found.out_bias += torch.from_numpy(random.normal(0, 1, n))
    return found.to(dtype)


def potential_of(descriptor, *args, spline=True, overflow="error", **keys):
    potential = Potential(model_of(descriptor, *args, **keys), overflow=overflow).eval()
    if spline:
        potential.use_spline()
    return potential


def alloy(elements=("Cu", "Al"), repeat=2, seed=1):
    atoms = bulk("Cu", cubic=True, a=3.9) * (repeat, repeat, repeat)
    order = np.random.default_rng(seed).permutation(len(atoms))
    atoms.symbols = [elements[k % len(elements)] for k in order]
    atoms.rattle(0.08, seed=seed)
    return atoms


def systems_of(potential, elements=("Cu", "Al")):
    """Two systems whose first atoms have different types; one that lacks a type."""
    first, second = alloy(elements, seed=1), alloy(elements, seed=2)
    first.symbols[0], second.symbols[0] = elements[0], elements[-1]
    for frames in ((first, second), (alloy(elements[-1:], seed=3),)):
        yield from_atoms(frames, potential.type_map)


def parameters_of(potential, system):
    sizes, random = potential.parameter_sizes, torch.Generator().manual_seed(5)
    shapes = {"fparam": (system.count, sizes["fparam"]), "aparam": (system.atoms, sizes["aparam"])}
    return {
        name: torch.randn(shape, generator=random, dtype=torch.float64).to(system.types.device)
        if shape[1]
        else None
        for name, shape in shapes.items()
    }


def loss_of(answers, seed=3):
    """Of energies, forces and virials, so that second derivatives are in its gradient."""
    random = np.random.default_rng(seed)
    parts = (answers[name] for name in ("atom_energy", "forces", "virial"))
    return sum((x * torch.from_numpy(random.normal(size=x.shape)).to(x)).sum() for x in parts)


def gradients_of(potential, evaluator, system, **options):
    """Of a loss, by every weight."""
    potential.zero_grad()
    parameters = parameters_of(potential, system)
    pairs = potential.neighbor_list(system)
    answers, _ = evaluator(system, pairs, parameters["fparam"], parameters["aparam"], **options)
    loss_of(answers).backward()
    return {name: p.grad.clone() for name, p in potential.named_parameters() if p.grad is not None}


def change_weights(potential, system):
    """The answers of a model after all its weights have changed, which are others than before."""
    before = potential.evaluate(system)["energy"]
    with torch.no_grad():
        for weight in potential.parameters():
            weight.mul_(1.02)
    after = potential.evaluate(system)
    assert not torch.allclose(before, after["energy"], rtol=1e-5)
    return after


def check_virial(potential, system):
    """It is minus the slope of the energy by strain, by central differences."""
    virial = potential.evaluate(system)["virial"]
    h, found = 1e-5, torch.zeros_like(virial)
    for a, b, sign in itertools.product(range(3), range(3), (1, -1)):
        strain = torch.eye(3, dtype=torch.float64)
        strain[a, b] += sign * h
        moved = dataclasses.replace(system, positions=system.positions @ strain, cell=system.cell @ strain)
        found[:, a, b] -= sign * potential.evaluate(moved)["energy"] / (2 * h)
    assert relative_error(found, virial) < 1e-6
