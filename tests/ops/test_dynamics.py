"""A time step's two halves against their formulas, over systems of all sizes."""

import math

import pytest
import torch
from step_cases import DT, KT, SIZES, TAU, chain, close, make

from mdops.ops import begin_step, end_step, next_step


def first_half(p, noise=None, keep=1.0):
    none = p["momenta"][:0] if noise is None else noise
    names = ("positions", "momenta", "forces", "inverse_mass", "batch", "scale", "kinetic", "eta")
    return begin_step(*(p[n] for n in names), p["eta_momenta"], p["freedom"], none, DT, KT, TAU, keep)


def end(p):
    names = (
        "positions", "reference", "momenta", "forces", "inverse_mass", "batch", "atom_energy", "nearest",
        "within", "sel", "eta", "eta_momenta", "freedom", "tally",
    )  # fmt: skip
    return end_step(*(p[n] for n in names), DT, KT, TAU)


@pytest.mark.parametrize("links", [0, 1, 2, 3, 4])
def test_the_first_half(device, links):
    p = make(device, links)
    got = first_half(p)
    factor, system = p["scale"], p["batch"].long()
    has_atoms = p["batch"].bincount(minlength=len(SIZES)) > 0
    if links:
        eta, momenta, by_chain = chain(p, 2 * p["kinetic"])
        factor = factor * by_chain
        close(got.eta, torch.where(has_atoms[:, None], eta, p["eta"]))
        close(got.eta_momenta, torch.where(has_atoms[:, None], momenta, p["eta_momenta"]))
    kicked = factor[system, None] * p["momenta"] + DT / 2 * p["forces"]
    close(got.momenta, kicked)
    close(got.positions, p["positions"] + DT * kicked * p["inverse_mass"][:, None])


@pytest.mark.parametrize("times", [0.01, 30.0])
def test_chains_of_small_and_of_large_momenta(device, times):
    p = make(device, 3)
    p["eta_momenta"] *= times
    eta, momenta, _ = chain(p, 2 * p["kinetic"])
    got, has_atoms = first_half(p), (p["batch"].bincount(minlength=len(SIZES)) > 0).tolist()
    close(got.eta[has_atoms], eta[has_atoms])
    close(got.eta_momenta[has_atoms], momenta[has_atoms])


def test_noise_comes_in_the_middle_of_the_drift(device):
    p = make(device, 0)
    xi, keep, w = torch.randn_like(p["momenta"]), 0.8, p["inverse_mass"][:, None]
    got = first_half(p, xi, keep)
    kicked = p["scale"][p["batch"].long(), None] * p["momenta"] + DT / 2 * p["forces"]
    noisy = keep * kicked + math.sqrt((1 - keep**2) * KT) * xi / w.sqrt()
    close(got.momenta, noisy)
    close(got.positions, p["positions"] + DT / 2 * w * (kicked + noisy))


@pytest.mark.parametrize("links", [0, 1, 2, 3, 4])
def test_the_second_half(device, links):
    p = make(device, links)
    got = end(p)
    kicked = p["momenta"] + DT / 2 * p["forces"]
    close(got.momenta, kicked)
    moved2 = (p["positions"] - p["reference"]).square().sum(1)
    heat = kicked.square().sum(1) * p["inverse_mass"] / 2
    over = (p["within"] - p["sel"]).amax(1).clamp(min=0).double()
    for s, size in enumerate(SIZES):
        own, before = p["batch"] == s, p["tally"][s]
        kinetic, energy = heat[own].sum(), p["atom_energy"][own].sum()
        factor = 1.0
        if size and links:
            eta, momenta, scale = (value[s] for value in chain(p, 2 * kinetic))
            factor = float(scale)
            close(got.eta[s], eta)
            close(got.eta_momenta[s], momenta)
        else:
            assert torch.equal(got.eta[s], p["eta"][s])
        assert float(got.scale[s]) == pytest.approx(factor, rel=1e-12)
        close(got.kinetic[s], kinetic * factor**2)
        close(got.energy[s], energy)
        close(got.tally[s, 5], before[5] + kinetic * factor**2)
        worst = [energy.abs(), kinetic * factor**2]
        if size:
            worst = [moved2[own].max(), over[own].max(), -p["nearest"][own].min().double(), *worst]
            close(got.tally[s, :5], torch.maximum(before[:5], torch.stack(worst)))
        else:
            close(got.tally[s, :3], before[:3])


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("sizes", [SIZES, [3, 0, 1, 128, 127, 0], [192]])
def test_both_halves_at_once_are_both(device, sizes, noisy):
    p = make(device, 0 if noisy else 3, sizes)
    noise = torch.randn_like(p["momenta"]) if noisy else p["momenta"][:0]
    names = ("positions", "reference", "momenta", "forces", "inverse_mass", "batch", "atom_energy", "nearest")
    names += ("within", "sel", "eta", "eta_momenta", "freedom", "tally")
    got = next_step(*(p[n] for n in names), noise, DT, KT, TAU, 0.9)
    ended = end(p)
    begun = first_half(p | ended._asdict(), noise if noisy else None, 0.9)
    for a, b in zip((*got[0], *got[1]), (*ended, *begun), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["forces", "positions", "atom_energy", "nearest"])
def test_what_is_no_number_stays_in_its_system_and_in_the_tally(device, name):
    p = make(device)
    clean, spoilt = end(p), p[name].clone()
    spoilt[60] = math.nan
    got, own = end(p | {name: spoilt}), int(p["batch"][60])
    for k in range(len(SIZES)):
        assert bool(got.tally[k].isnan().any()) == (k == own)
        if k != own:
            assert torch.equal(got.tally[k], clean.tally[k])
    assert end(p | {"tally": got.tally}).tally[own].isnan().any()


def test_steps_of_a_spring_conserve_their_energy(device):
    """E + K + the thermostats' energy of two systems of springs, to the second order of the time step."""
    p = make(device, sizes=[40, 7])
    p["positions"], p["eta"], p["eta_momenta"] = 0.2 * p["positions"], 0 * p["eta"], 0 * p["eta_momenta"]
    p |= {"scale": torch.ones_like(p["scale"]), "momenta": 0.2 * p["momenta"], "tally": 0 * p["tally"]}
    p["forces"] = -p["positions"]
    heat = p["momenta"].square().sum(1) * p["inverse_mass"] / 2
    p["kinetic"] = torch.stack([heat[p["batch"] == s].sum() for s in range(2)])
    goal = KT * torch.ones_like(p["eta"])
    goal[:, 0] *= p["freedom"]
    spread = {}
    for parts in (4, 8):
        state, energies = dict(p), []
        for _ in range(50 * parts):
            names = ("positions", "momenta", "forces", "inverse_mass", "batch", "scale", "kinetic", "eta")
            first = begin_step(
                *(state[n] for n in names), state["eta_momenta"], state["freedom"], state["momenta"][:0],
                DT / parts, KT, TAU, 1.0,
            )  # fmt: skip
            state |= first._asdict() | {"forces": -first.positions}
            state["atom_energy"] = first.positions.square().sum(1) / 2
            rest = ("atom_energy", "nearest", "within", "sel", "eta", "eta_momenta", "freedom", "tally")
            last = end_step(
                state["positions"], state["reference"], state["momenta"], state["forces"],
                state["inverse_mass"], state["batch"], *(state[n] for n in rest), DT / parts, KT, TAU,
            )  # fmt: skip
            state |= last._asdict()
            bath = (goal * last.eta + last.eta_momenta.square() / (2 * goal * TAU**2)).sum(1)
            energies.append(last.energy + last.kinetic + bath)
        spread[parts] = torch.stack(energies).std(0)
    assert (spread[4] < 1e-2).all()
    assert ((spread[4] / spread[8] - 4).abs() < 0.5).all()
