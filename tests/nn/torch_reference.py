"""The energy model of a serialised se_e2_a tree, dense and plain: an independent reference for the tests.

Everything is float64, neighbours are found by brute force, every neighbour slot up to `sel` is evaluated
(padding included, as the formulas define it) and forces come from autograd. Slow and short on purpose.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def evaluate(
    tree: Mapping[str, Any],
    positions: torch.Tensor,
    types: torch.Tensor,
    cell: torch.Tensor | None = None,
    fparam: torch.Tensor | None = None,
    aparam: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Energy (), forces (n, 3), virial (3, 3) and atom_energy (n,) of one system of n atoms."""
    positions = positions.detach().double().requires_grad_()
    strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    deformation = torch.eye(3, dtype=torch.float64) + strain
    strained_cell = None if cell is None else cell.double() @ deformation
    atom_energy = _atom_energies(tree, positions @ deformation, types, strained_cell, fparam, aparam)
    energy = atom_energy.sum()
    grad_positions, grad_strain = torch.autograd.grad(energy, [positions, strain])
    return {
        "energy": energy.detach(),
        "forces": -grad_positions,
        "virial": -grad_strain,
        "atom_energy": atom_energy.detach(),
    }


def _atom_energies(tree, positions, types, cell, fparam, aparam):
    descriptor = tree["descriptor"]
    excluded = [set(pair) for pair in tree["pair_exclude_types"]]
    result = []
    for i, t in enumerate(types.tolist()):
        if t < 0 or t in tree["atom_exclude_types"]:
            result.append(positions.new_zeros(()))
            continue
        slots = _slots(descriptor, positions, types, cell, i, t, excluded)
        d = _descriptor(descriptor, slots, t)
        own = None if aparam is None else aparam[i]
        bias = float(tree["@variables"]["out_bias"].reshape(-1)[t])
        result.append(_fit(tree["fitting"], d, t, fparam, own) + bias)
    return torch.stack(result) if result else positions.new_zeros(0)


def _slots(descriptor, positions, types, cell, i, t, excluded):
    """Per neighbour type the pair vectors kept: the nearest sum(sel) of all, then the nearest sel of each."""
    cutoff, sel = descriptor["rcut"], descriptor["sel"]
    vectors, kinds = neighbors(positions, types, cell, i, cutoff)
    order = torch.argsort(vectors.detach().norm(dim=-1))[: sum(sel)]
    vectors, kinds = vectors[order], kinds[order]
    kept = [vectors[kinds == s][: sel[s]] for s in range(len(sel))]
    return [v[:0] if {t, s} in excluded else v for s, v in enumerate(kept)]


def neighbors(positions, types, cell, i, cutoff):
    """Vectors to, and types of, every atom and image within the cutoff of atom i, itself left out."""
    shifts = [(0, 0, 0)]
    if cell is not None:
        heights = 1 / torch.linalg.inv(cell.detach()).norm(dim=0)
        spread = positions.detach() @ torch.linalg.inv(cell.detach())
        reach = np.ceil((cutoff / heights + spread.max(0).values - spread.min(0).values).numpy()).astype(int)
        shifts = list(itertools.product(*(range(-n, n + 1) for n in reach)))
    shift = torch.tensor(shifts, dtype=torch.float64)
    offset = shift @ cell if cell is not None else shift
    vectors = (positions[None] - positions[i] + offset[:, None]).reshape(-1, 3)
    kinds = types.repeat(len(shifts))
    itself = (shift == 0).all(-1)[:, None] & (torch.arange(len(positions)) == i)
    keep = (vectors.detach().norm(dim=-1) <= cutoff) & (kinds >= 0) & ~itself.reshape(-1)
    return vectors[keep], kinds[keep]


def switch(r, smooth, cutoff):
    """w(r): 1 up to `smooth`, 0 from `cutoff` on, u^3 (-6 u^2 + 15 u - 10) + 1 between."""
    u = ((r - smooth) / (cutoff - smooth)).clamp(0, 1)
    return u**3 * (-6 * u**2 + 15 * u - 10) + 1


def env_rows(vectors, smooth, cutoff, protection=0.0):
    """w(r) (1/(r+p), x/(r+p)^2, y/(r+p)^2, z/(r+p)^2), (n, 4), before normalisation."""
    r = vectors.norm(dim=-1, keepdim=True)
    w = switch(r, smooth, cutoff)
    return torch.cat([w / (r + protection), w * vectors / (r + protection) ** 2], -1)


def _descriptor(descriptor, slots, t):
    sel, count = descriptor["sel"], len(descriptor["sel"])
    davg, dstd = (torch.as_tensor(descriptor["@variables"][k]).double()[t] for k in ("davg", "dstd"))
    excluded = [set(pair) for pair in descriptor["exclude_types"]]
    nets = descriptor["embeddings"]["networks"]
    total, start = 0, 0
    for s, vectors in enumerate(slots):
        stop = start + sel[s]
        rows = env_rows(vectors, descriptor["rcut_smth"], descriptor["rcut"], descriptor["env_protection"])
        rows = torch.cat([rows, rows.new_zeros(sel[s] - len(rows), 4)])
        rows = (rows - davg[start:stop]) / dstd[start:stop]
        if {t, s} in excluded:
            rows = torch.cat([rows[: len(vectors)] * 0, rows[len(vectors) :]])
        net = nets[s] if descriptor["type_one_side"] else nets[t + count * s]
        total = total + rows.T @ _net(net, rows[:, :1])
        start = stop
    total = total / sum(sel)
    return (total.T @ total[:, : descriptor["axis_neuron"]]).reshape(-1)


def _fit(fitting, d, t, fparam, aparam):
    variables = fitting["@variables"]
    extra = []
    if fitting["numb_fparam"]:
        value = torch.tensor(fitting["default_fparam"], dtype=torch.float64) if fparam is None else fparam
        extra.append(_standardised(value, variables, "fparam"))
    if fitting["numb_aparam"]:
        extra.append(_standardised(aparam, variables, "aparam"))
    if fitting["dim_case_embd"]:
        extra.append(torch.as_tensor(variables["case_embd"]).double())
    net = fitting["nets"]["networks"][0 if fitting["mixed_types"] else t]
    energy = _net(net, torch.cat([d, *extra]))[0]
    vacuum = fitting.get("atom_ener") or []
    if any(e is not None for e in vacuum) and (fitting["mixed_types"] or vacuum[t] is not None):
        energy = energy - _net(net, torch.cat([d * 0, *extra]))[0]
    return energy + float(variables["bias_atom_e"][t, 0])


def _standardised(value, variables, name):
    average, inverse = (torch.as_tensor(variables[f"{name}_{part}"]).double() for part in ("avg", "inv_std"))
    return (value.double() - average) * inverse


def _net(net, x):
    for layer in net["layers"]:
        v = layer["@variables"]
        y = x @ torch.as_tensor(v["w"]).double()
        if v["b"] is not None:
            y = y + torch.as_tensor(v["b"]).double()
        y = activation(layer["activation_function"], y)
        if v["idt"] is not None:
            y = y * torch.as_tensor(v["idt"]).double()
        if layer["resnet"] and y.shape[-1] == x.shape[-1]:
            y = y + x
        elif layer["resnet"] and y.shape[-1] == 2 * x.shape[-1]:
            y = y + torch.cat([x, x], -1)
        x = y
    return x


def activation(name, x):
    """The activation by its formula; a silut goes over to a tanh that continues value and slope."""
    name = name.lower()
    if name.startswith(("silut", "custom_silu")):
        threshold = torch.tensor(float(name.split(":")[1]) if ":" in name else 3.0, dtype=torch.float64)
        silu = lambda z: z * torch.sigmoid(z)  # noqa: E731
        slope = torch.func.grad(silu)(threshold)
        return torch.where(x < threshold, silu(x), torch.tanh(slope * (x - threshold)) + silu(threshold))
    return {
        "tanh": torch.tanh,
        "relu": lambda z: z * (z > 0),
        "relu6": lambda z: z.clamp(0, 6),
        "gelu": lambda z: 0.5 * z * (1 + torch.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3))),
        "gelu_tf": lambda z: 0.5 * z * (1 + torch.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3))),
        "softplus": lambda z: torch.log1p(torch.exp(z)),
        "sigmoid": lambda z: 1 / (1 + torch.exp(-z)),
        "silu": lambda z: z / (1 + torch.exp(-z)),
        "linear": lambda z: z,
        "none": lambda z: z,
    }[name](x)
