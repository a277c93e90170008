"""The loss is DeePMD-kit's, for batches of any sizes and with labels that are missing."""

import numpy as np
import pytest
import torch
from small_systems import alloy, write_system

from mdops.errors import ConfigError
from mdops.train import PairLists, load_dataset, make_batch
from mdops.train.loss.base import label_counts, squared_errors
from mdops.train.loss.energy import EnergyLoss
from mdops.train.loss.weights import Prefactor

ALL = {name: Prefactor(1.0, 1.0) for name in ("energy", "forces", "virial", "atom_energy")}


@pytest.fixture
def data(tmp_path):
    for name, repeat in (("a", (1, 1, 1)), ("b", (2, 1, 1))):
        write_system(tmp_path / name, alloy(2, repeat=repeat))
    (tmp_path / "a" / "set.000" / "virial.npy").unlink()
    np.save(tmp_path / "b" / "set.000" / "atom_ener.npy", np.zeros((2, 8)))
    return load_dataset(tmp_path, ["Cu", "Al"])


@pytest.fixture
def batch(data):
    return make_batch(data, PairLists(data, 4.0), [0, 2, 3])  # of 4, 8 and 8 atoms


def answer(batch, seed=0):
    """Labels with errors, of every kind."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"energy": (3,), "forces": (20, 3), "virial": (3, 3, 3), "atom_energy": (20,)}
    errors = {n: torch.randn(s, generator=rng, dtype=torch.float64) for n, s in shapes.items()}
    return {n: batch.labels[n] + e for n, e in errors.items()}, errors


def term(name, **options):
    return EnergyLoss({name: ALL[name]}, **options)


@pytest.mark.parametrize("intensive", [False, True])
def test_squares_have_deepmd_kits_normalisation(batch, intensive):
    result, error = answer(batch)
    sizes = torch.tensor([4.0, 8, 8], dtype=torch.float64) ** (2 if intensive else 1)
    options = {"intensive": intensive}
    expected = {
        "energy": (error["energy"] ** 2 / sizes).mean(),
        "forces": (error["forces"] ** 2).mean(),
        "virial": ((error["virial"] ** 2).mean((1, 2)) / sizes)[1:].mean(),
        "atom_energy": (error["atom_energy"][4:] ** 2).mean(),
    }
    for name, value in expected.items():
        torch.testing.assert_close(term(name, **options)(result, batch), value)
    whole = EnergyLoss(ALL, **options)(result, batch)
    torch.testing.assert_close(whole, sum(expected.values()))


def test_absolute_errors_and_norms(batch):
    result, error = answer(batch)
    sizes = torch.tensor([4.0, 8, 8], dtype=torch.float64)
    mae = (error["energy"].abs() / sizes).mean()
    torch.testing.assert_close(term("energy", function="mae")(result, batch), mae)
    torch.testing.assert_close(term("forces", function="mae")(result, batch), error["forces"].abs().mean())
    norm = error["forces"].norm(dim=1).mean()
    torch.testing.assert_close(term("forces", force_norm=True)(result, batch), norm)


def test_huber_takes_errors_per_atom(batch):
    result, error = answer(batch)

    def huber(x, delta):
        return torch.nn.functional.huber_loss(x, torch.zeros_like(x), delta=delta)

    sizes = torch.tensor([4.0, 8, 8], dtype=torch.float64)
    options = {"huber": True, "huber_delta": (0.1, 0.7, 0.3)}
    for name, value in {
        "energy": huber(error["energy"] / sizes, 0.1),
        "forces": huber(error["forces"], 0.7),
        "virial": huber(error["virial"][1:] / 8, 0.3),
        "atom_energy": huber(error["atom_energy"][4:], 0.1),
    }.items():
        torch.testing.assert_close(term(name, **options)(result, batch), value)
    norms = huber(error["forces"].norm(dim=1), 0.7)
    torch.testing.assert_close(term("forces", force_norm=True, **options)(result, batch), norms)


def test_prefactors_follow_the_learning_rate(batch):
    result, error = answer(batch)
    loss = EnergyLoss({"forces": Prefactor(1000.0, 1.0)})
    squares = (error["forces"] ** 2).mean()
    for fraction, factor in ((1.0, 1000.0), (0.0, 1.0), (0.5, 500.5)):
        torch.testing.assert_close(loss(result, batch, fraction), factor * squares)
    off = EnergyLoss({"forces": Prefactor(1.0, 0.0)})
    assert off.terms == [] and off(result, batch) == 0


def test_two_halves_have_the_loss_of_the_whole(data, batch):
    result, _ = answer(batch)
    lists = PairLists(data, 4.0)
    halves = [make_batch(data, lists, [0]), make_batch(data, lists, [2, 3])]
    parts = [
        {n: v[:1] if v.shape[0] == 3 else v[:4] for n, v in result.items()},
        {n: v[1:] if v.shape[0] == 3 else v[4:] for n, v in result.items()},
    ]
    found = [label_counts(half) for half in halves]
    mean = {n: sum(c.get(n, 0.0) for c in found) / 2 for n in label_counts(batch)}
    loss = EnergyLoss(ALL)
    values = [loss(part, half, counts=mean) for part, half in zip(parts, halves, strict=True)]
    torch.testing.assert_close(sum(values) / 2, loss(result, batch))


def test_missing_label_and_wrong_options(data):
    batch = make_batch(data, PairLists(data, 4.0), [0])
    assert term("virial")({"virial": torch.zeros(1, 3, 3)}, batch) == 0
    with pytest.raises(ConfigError, match="loss_func is 'rmse'"):
        EnergyLoss(function="rmse")
    with pytest.raises(ConfigError, match="no term force;"):
        EnergyLoss({"force": Prefactor(1, 1)})


def test_squared_errors_are_per_atom_for_energies(batch):
    result, error = answer(batch)
    total, count = squared_errors(result, batch)["energy"]
    sizes = torch.tensor([4.0, 8, 8], dtype=torch.float64)
    assert count == 3 and total == pytest.approx(float((error["energy"] / sizes).square().sum()))
    total, count = squared_errors(result, batch)["virial"]
    assert count == 18 and total == pytest.approx(float((error["virial"][1:] / 8).square().sum()))


def test_gradient_of_a_perfect_norm_is_finite(batch):
    forces = batch.labels["forces"].clone().requires_grad_()
    term("forces", force_norm=True)({"forces": forces}, batch).backward()
    assert (forces.grad == 0).all()


@pytest.mark.parametrize("function", ["mse", "mae"])
def test_generalized_forces_are_sums_over_the_atoms_of_a_frame(function, tmp_path):
    """Squares also beside absolute errors, and the mean over frames that have the derivatives, and coordinates."""
    random = np.random.default_rng(1)
    for name, repeat in (("a", (1, 1, 1)), ("b", (2, 1, 1))):
        write_system(tmp_path / name, alloy(2, repeat=repeat))
    drdq = random.normal(size=(2, 8, 3, 2))
    np.save(tmp_path / "b" / "set.000" / "drdq.npy", drdq.reshape(2, -1))
    data = load_dataset(tmp_path, ["Cu", "Al"])
    lists = PairLists(data, 4.0)
    batch = make_batch(data, lists, [0, 3])  # of 4 and 8 atoms
    error = torch.from_numpy(random.normal(size=(12, 3)))
    result = {"forces": batch.labels["forces"] + error}
    wanted = torch.einsum("idg,id->g", torch.from_numpy(drdq[1]), error[4:]).square().mean()
    loss = EnergyLoss({"drdq": Prefactor(4.0, 2.0)}, function=function, coordinates=2)
    torch.testing.assert_close(loss(result, batch, 0.5), 3 * wanted)
    square, count = squared_errors(result, batch)["drdq"]
    assert count == 2 and square / count == pytest.approx(float(wanted)) and label_counts(batch)["drdq"] == 1
    loss.check(data)
    with pytest.raises(ConfigError, match="numb_generalized_coord: is 1, and drdq of the data has 2"):
        EnergyLoss({"drdq": Prefactor(1.0, 1.0)}, coordinates=1).check(data)
    options = EnergyLoss.Options(start_pref_gf=1.0, limit_pref_gf=1.0, use_huber=True)
    with pytest.raises(ConfigError, match=r"loss.use_huber: is not for generalized forces"):
        EnergyLoss.make(options, EnergyLoss.labels)
