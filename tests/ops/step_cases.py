"""Systems of all sizes for the tests of time steps, and chains of thermostats written once more."""

import torch

# Without atoms, one, whole and broken windows of 128 atoms, and a large one.
SIZES = [3, 0, 1, 128, 127, 129, 24, 24, 0, 40_000, 5, 0]
DT, KT, TAU = 0.2, 0.8, 2.5  # about the temperature of what `make` gives


def make(device, links=3, sizes=SIZES, seed=0):
    gen = torch.Generator().manual_seed(seed)
    n, systems = sum(sizes), len(sizes)

    def random(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    batch = torch.repeat_interleave(torch.arange(systems), torch.tensor(sizes)).int()
    made = {
        "positions": random(n, 3),
        "momenta": random(n, 3),
        "forces": random(n, 3),
        "inverse_mass": 0.1 + random(n).abs(),
        "batch": batch,
        "scale": 1 + 0.1 * random(systems),
        "kinetic": 0.1 + random(systems).abs(),
        "eta": random(systems, links),
        "eta_momenta": random(systems, links),
        "freedom": 3.0 * batch.bincount(minlength=systems).double().clamp(min=1),
        "reference": random(n, 3),
        "atom_energy": random(n),
        "nearest": 0.5 + random(n).abs().float(),
        "within": torch.randint(0, 50, (n, 2), generator=gen).int(),
        "sel": torch.tensor([46, 40], dtype=torch.int32),
        "tally": 0.1 * random(systems, 6),
    }
    return {name: value.to(device) for name, value in made.items()}


def chain(p, twice_kinetic):
    """Half a step of the atoms' chains: eta, momenta, factor."""
    goal = KT * torch.ones_like(p["eta"])
    goal[:, :1] *= p["freedom"][:, None]
    return advanced(p["eta"], p["eta_momenta"], goal, goal * TAU**2, twice_kinetic)


def advanced(eta, momenta, goal, mass, twice_kinetic):
    """Half a step of chains, from the equations of the source in source/op/dynamics/chain.h."""
    eta, momenta = eta.clone(), momenta.clone()
    links, scale = eta.shape[1], torch.ones(len(eta)).to(eta)
    twice_kinetic = twice_kinetic.expand(len(eta))
    outer = 1 / (2 - 2 ** (1 / 3))

    def kick(j, h):
        drive = twice_kinetic if j == 0 else momenta[:, j - 1] ** 2 / mass[:, j - 1]
        last = j == links - 1
        drag = 1.0 if last else torch.exp(-h / 4 * momenta[:, j + 1] / mass[:, j + 1])
        momenta[:, j] = (momenta[:, j] * drag + h / 2 * (drive - goal[:, j])) * drag

    for part in (outer, 1 - 2 * outer, outer):
        h = part * DT / 2
        for j in reversed(range(links)):
            kick(j, h)
        eta += h * momenta / mass
        factor = torch.exp(-h * momenta[:, 0] / mass[:, 0])
        scale, twice_kinetic = scale * factor, twice_kinetic * factor**2
        for j in range(links):
            kick(j, h)
    return eta, momenta, scale


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
