"""A time step's two halves in cells that follow a pressure: against their formulas, and over long runs."""

import math

import pytest
import torch
from step_cases import DT, KT, SIZES, TAU, advanced, chain, close, make

from mdops.ops import begin_cell_step, end_cell_step, neighbor_pairs

PRESSURE, PERIOD, CUTOFF = 0.3, 4.0, 6.0
ATOMS = ("positions", "momenta", "forces", "inverse_mass", "batch", "scale", "flow")
CELLS = ("virial", "cell", "cell_momenta", "xi", "xi_momenta", "eta", "eta_momenta", "freedom", "inertia")
MEASURED = (
    "positions",
    "reference",
    "momenta",
    "forces",
    "inverse_mass",
    "batch",
    "atom_energy",
    "nearest",
    "within",
)
PLACES = [0, 4, 8, 5, 2, 1]  # of xx, yy, zz, yz, xz, xy in nine


def make_cells(device, links=3, flexible=True, sizes=SIZES):
    p = make("cpu", links, sizes)
    gen, systems = torch.Generator().manual_seed(7), len(sizes)

    def random(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    one = torch.eye(3, dtype=torch.float64)
    rate = random(systems, 3, 3)
    rate = rate + rate.mT if flexible else random(systems, 1, 1) * one
    heat = random(systems, 3, 3)
    p |= {
        "flow": packed(heat @ heat.mT),
        "virial": random(systems, 3, 3),
        "cell": 4 * one + 0.3 * random(systems, 3, 3),
        "cell_momenta": packed(rate),
        "xi": random(systems, links),
        "xi_momenta": random(systems, links),
        "inertia": (torch.tensor(sizes).double() + 1) * KT * PERIOD**2,
    }
    p["reference_cell"] = p["cell"] @ (one + 0.01 * random(systems, 3, 3))
    return {name: value.to(device) for name, value in p.items()}


def packed(matrix):
    return matrix.flatten(1)[:, PLACES]


def matrix(six):
    return six[:, [0, 5, 4, 5, 1, 3, 4, 3, 2]].view(-1, 3, 3)


def first_half(p, flexible, dt=DT):
    scalars = (dt, KT, TAU, PRESSURE, PERIOD, flexible)
    return begin_cell_step(*(p[name] for name in (*ATOMS, *CELLS)), *scalars)


def end(p, flexible, dt=DT):
    names = (*MEASURED, "sel", "moves", "reference_cell", *CELLS, "tally")
    return end_cell_step(*(p[name] for name in names), dt, KT, TAU, PRESSURE, PERIOD, CUTOFF, flexible)


def cell_chain(p, momenta, flexible):
    """Half a step of the cells' chains: places, momenta, factor of the cells' momenta, (S, 3, 3)."""
    goal = KT * torch.ones_like(p["xi"])
    mass = goal * PERIOD**2
    goal[:, :1] *= 6 if flexible else 1
    mass[:, :1] *= 9
    twice = momenta.square().sum((1, 2)) / p["inertia"]
    return advanced(p["xi"], p["xi_momenta"], goal, mass, twice)


def kicked(p, momenta, flow, flexible):
    """The cells' momenta after half a step of their force; `flow`: (S, 3, 3)."""
    one = torch.eye(3).to(flow)
    volume, trace = torch.linalg.det(p["cell"]).abs(), flow.diagonal(dim1=1, dim2=2).sum(1)
    force = (p["virial"] + p["virial"].mT) / 2 + flow
    force = force + (trace / p["freedom"] - PRESSURE * volume)[:, None, None] * one
    if not flexible:
        force = force.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * one
    return momenta + DT / 2 * force


def mean_exponential(x):
    """(exp(x) - 1) / x of symmetric matrices, by their eigenvalues."""
    values, vectors = torch.linalg.eigh(x)
    return vectors @ ((values.expm1() / values)[:, :, None] * vectors.mT)


def occupied(p):
    return p["batch"].bincount(minlength=len(p["freedom"])) > 0


def same(got, want, before, p):
    """`want` in systems with atoms, what was before in others."""
    close(got, torch.where(occupied(p).view(-1, *[1] * (got.dim() - 1)), want, before))


def same_chains(got, p, **wanted):
    for name, want in wanted.items():
        same(getattr(got, name), want, p[name], p)


CASES = [(0, True), (1, False), (2, True), (3, True), (3, False), (4, False)]


@pytest.mark.parametrize(("links", "flexible"), CASES)
def test_the_first_half(device, links, flexible):
    p = make_cells(device, links, flexible)
    got, momenta, flow = first_half(p, flexible), matrix(p["cell_momenta"]), matrix(p["flow"])
    factor = p["scale"]
    if links:
        xi, xi_momenta, of_cell = cell_chain(p, momenta, flexible)
        eta, eta_momenta, of_atoms = chain(p, p["flow"][:, :3].sum(1))
        same_chains(got, p, xi=xi, xi_momenta=xi_momenta, eta=eta, eta_momenta=eta_momenta)
        factor, momenta = factor * of_atoms, momenta * of_cell[:, None, None]
        flow = flow * of_atoms.square()[:, None, None]
    momenta = kicked(p, momenta, flow, flexible)
    same(got.cell_momenta, packed(momenta), p["cell_momenta"], p)
    rate = momenta / p["inertia"][:, None, None]
    drag = rate + (rate.diagonal(dim1=1, dim2=2).sum(1) / p["freedom"])[:, None, None] * torch.eye(3).to(rate)
    same(got.cell, p["cell"] @ torch.matrix_exp(DT * rate), p["cell"], p)
    s, half = p["batch"].long(), DT / 2
    moved = (p["momenta"] * factor[s, None])[:, None] @ torch.matrix_exp(-half * drag)[s]
    moved = moved + half * p["forces"][:, None] @ mean_exponential(-half * drag)[s]
    close(got.momenta, moved[:, 0])
    drift = (moved * p["inverse_mass"][:, None, None]) @ (DT * mean_exponential(DT * rate))[s]
    close(got.positions, (p["positions"][:, None] @ torch.matrix_exp(DT * rate)[s] + drift)[:, 0])


@pytest.mark.parametrize(("links", "flexible"), CASES)
def test_the_second_half(device, links, flexible):
    p = make_cells(device, links, flexible)
    p["moves"] = first_half(p, flexible).moves
    got, s = end(p, flexible), p["batch"].long()
    by_momenta, by_forces = (matrix(p["moves"][:, k : k + 6]) for k in (0, 6))
    momenta = (p["momenta"][:, None] @ by_momenta[s] + p["forces"][:, None] @ by_forces[s])[:, 0]
    close(got.momenta, momenta)
    rows = momenta[:, :, None] * momenta[:, None] * p["inverse_mass"][:, None, None]
    flow = torch.zeros_like(p["virial"]).index_add_(0, s, rows)
    cell_momenta = kicked(p, matrix(p["cell_momenta"]), flow, flexible)
    factor = torch.ones_like(p["freedom"])
    if links:
        xi, xi_momenta, of_cell = cell_chain(p, cell_momenta, flexible)
        eta, eta_momenta, factor = chain(p, flow.diagonal(dim1=1, dim2=2).sum(1))
        same_chains(got, p, xi=xi, xi_momenta=xi_momenta, eta=eta, eta_momenta=eta_momenta)
        cell_momenta = cell_momenta * of_cell[:, None, None]
    same(got.cell_momenta, packed(cell_momenta), p["cell_momenta"], p)
    flow = flow * factor.square()[:, None, None]
    same(got.flow, packed(flow), torch.zeros_like(got.flow), p)
    same(got.scale, factor, torch.ones_like(factor), p)
    kinetic = flow.diagonal(dim1=1, dim2=2).sum(1) / 2
    same(got.kinetic, kinetic, torch.zeros_like(kinetic), p)
    close(got.energy, torch.zeros_like(kinetic).index_add_(0, s, p["atom_energy"]))
    own = occupied(p)
    close(got.tally[own, 5], (p["tally"][:, 5] + kinetic)[own])
    strain = torch.linalg.solve(p["reference_cell"], p["cell"])
    shrunk = (1 - torch.linalg.svdvals(strain).amin(1)).clamp(min=0)
    ways = p["positions"] - (p["reference"][:, None] @ strain[s])[:, 0]
    furthest = torch.zeros_like(kinetic).scatter_reduce_(0, s, ways.norm(dim=1), "amax")
    least, found = furthest + shrunk * CUTOFF / 2, got.tally[:, 0].sqrt()
    assert (found >= least - 1e-12)[own].all()
    assert (found <= least + 0.015 * CUTOFF)[own].all()


def test_a_strain_of_the_volume_alone_counts_as_it_is():
    p = make_cells("cpu", 0, False, [5])
    p["moves"] = first_half(p, False).moves
    p["cell"] = 0.98 * p["reference_cell"]
    p["positions"], p["tally"] = 0.98 * p["reference"], p["tally"] - math.inf
    assert float(end(p, False).tally[0, 0]) ** 0.5 == pytest.approx(0.02 * CUTOFF / 2, rel=0.02)
    p["cell"], p["positions"] = 1.02 * p["reference_cell"], 1.02 * p["reference"]
    assert float(end(p, False).tally[0, 0]) < 1e-24, "what grows brings no atoms together"
    p["cell"], p["positions"] = p["reference_cell"], p["reference"]
    assert float(end(p, False).tally[0, 0]) == 0


def test_a_tally_within_half_the_skin_means_that_no_pair_is_missing():
    """Pairs within the cutoff in strained and shaken crystals, against those of the list before: never one more."""
    gen, skin, limits = torch.Generator().manual_seed(3), 1.0, []
    for trial in range(60):
        p = make_cells("cpu", 0, True, [40])
        p["moves"] = first_half(p, True).moves
        old = 9 * torch.eye(3).double() + 0.5 * torch.randn(3, 3, generator=gen).double()
        strain = torch.eye(3) + 0.06 * (trial / 60) * torch.randn(3, 3, generator=gen).double()
        p["reference_cell"], p["cell"] = old[None], (old @ strain)[None]
        p["reference"] = torch.rand(40, 3, generator=gen).double() @ old
        shift = torch.randn(40, 3, generator=gen).double()
        p["positions"] = p["reference"] @ strain + 0.4 * shift / shift.norm(dim=1, keepdim=True)
        p["tally"] -= math.inf
        within = {}
        for name, x, h, cutoff in (
            ("list", p["reference"], old, CUTOFF),
            ("now", p["positions"], old @ strain, CUTOFF - skin),
        ):
            pbc, types = torch.ones(1, 3, dtype=torch.bool), torch.zeros(40, dtype=torch.int32)
            i, j, images = neighbor_pairs(x, h[None], pbc, p["batch"], types, cutoff)
            within[name] = set(zip(i.tolist(), j.tolist(), map(tuple, images.tolist()), strict=True))
        limits.append(float(end(p, True).tally[0, 0]) ** 0.5 <= skin / 2)
        if limits[-1]:
            assert within["now"] <= within["list"]
    assert 5 < sum(limits) < 55


@pytest.mark.parametrize("flexible", [True, False])
def test_what_is_no_number_stays_in_its_system(device, flexible):
    p = make_cells(device, 3, flexible)
    p["moves"] = first_half(p, flexible).moves
    clean, spoilt = end(p, flexible), p["forces"].clone()
    spoilt[60] = math.nan
    got, own = end(p | {"forces": spoilt}, flexible), int(p["batch"][60])
    for k in range(len(SIZES)):
        assert bool(got.tally[k].isnan().any()) == bool(got.cell_momenta[k].isnan().any()) == (k == own)
        assert k == own or torch.equal(got.tally[k], clean.tally[k])


def test_too_fast_a_strain_is_no_number(device):
    p = make_cells(device, 0, True, [5, 5])
    p["cell_momenta"][1] *= 1e4
    got = first_half(p, True)
    assert got.positions[:5].isfinite().all() and got.positions[5:].isnan().all()


def simulate(p, flexible, dt, steps):
    """Free atoms (no forces): volumes, conserved energies, and squared momenta of the cells over their inertia."""
    state, seen = dict(p), []
    weights = torch.tensor([1.0, 1, 1, 2, 2, 2], dtype=torch.float64)
    goal, goal_xi = KT * torch.ones_like(p["eta"]), KT * torch.ones_like(p["xi"])
    mass_xi = goal_xi * PERIOD**2
    goal[:, 0] *= p["freedom"]
    goal_xi[:, 0] *= 6 if flexible else 1
    mass_xi[:, 0] *= 9
    for _ in range(steps):
        state |= first_half(state, flexible, dt)._asdict()
        state["reference"], state["reference_cell"] = state["positions"], state["cell"]
        ended = end(state, flexible, dt)
        state |= ended._asdict()
        volume = torch.linalg.det(state["cell"]).abs()
        rate = ended.cell_momenta.square() @ weights / p["inertia"]
        bath = (goal * ended.eta + ended.eta_momenta.square() / (2 * goal * TAU**2)).sum(1)
        bath = bath + (goal_xi * ended.xi + ended.xi_momenta.square() / (2 * mass_xi)).sum(1)
        seen.append(torch.stack([volume, ended.kinetic + bath + rate / 2 + PRESSURE * volume, rate]))
    return torch.stack(seen).unbind(1)


def ideal_gas(systems, atoms, flexible):
    """At rest on the whole, in cells of the right volume."""
    p = make_cells("cpu", 3, flexible, [atoms] * systems)
    gen = torch.Generator().manual_seed(11)
    p["momenta"] = (KT / p["inverse_mass"]).sqrt()[:, None] * torch.randn(
        systems * atoms, 3, generator=gen
    ).double()
    own = p["momenta"].view(systems, atoms, 3)
    p["momenta"] = (own - own.mean(1, keepdim=True)).view(-1, 3)
    rows = p["momenta"][:, :, None] * p["momenta"][:, None] * p["inverse_mass"][:, None, None]
    p["flow"] = packed(torch.zeros(systems, 3, 3).double().index_add_(0, p["batch"].long(), rows))
    edge = (atoms * KT / PRESSURE) ** (1 / 3)
    p["cell"] = edge * torch.eye(3, dtype=torch.float64).repeat(systems, 1, 1)
    p["freedom"] = torch.full((systems,), 3.0 * atoms - 3, dtype=torch.float64)
    p["inertia"] = torch.full((systems,), (atoms + 1) * KT * PERIOD**2, dtype=torch.float64)
    p["scale"], p["tally"] = torch.ones_like(p["scale"]), 0 * p["tally"]
    for name in ("forces", "virial", "cell_momenta", "eta", "eta_momenta", "xi", "xi_momenta"):
        p[name] = 0 * p[name]
    return p


@pytest.mark.parametrize("flexible", [True, False])
def test_steps_conserve_their_energy_to_second_order(flexible):
    p, spread = ideal_gas(3, 12, flexible), {}
    for parts in (1, 2):
        _, conserved, _ = simulate(p, flexible, DT / parts, 200 * parts)
        spread[parts] = (conserved - conserved[0]).abs().amax(0)
    assert (spread[1] < 0.05).all()
    assert ((spread[1] / spread[2] - 4).abs() < 0.8).all()


@pytest.mark.parametrize("flexible", [True, False])
def test_an_ideal_gas_has_its_volume(flexible):
    """Momenta at rest on the whole leave V^(N-1) exp(-PV/kT): mean N kT / P, variance N (kT / P)^2. And the cell's
    momenta, six of a matrix or one, have the temperature, which tells their number."""
    systems, atoms = 200, 8
    volume, _, rate = simulate(ideal_gas(systems, atoms, flexible), flexible, 0.4, 2500)
    volume, rate, unit = volume[500:], rate[500:], KT / PRESSURE
    # Systems are independent, and fluctuate some 20 times in a run.
    error = 4 / math.sqrt(20 * systems)
    assert float(volume.mean()) == pytest.approx(atoms * unit, rel=error / math.sqrt(atoms))
    assert float((volume - atoms * unit).square().mean()) == pytest.approx(atoms * unit**2, rel=3 * error)
    freedom = 6 if flexible else 1
    assert float(rate.mean()) == pytest.approx(freedom * KT, rel=2 * error)
