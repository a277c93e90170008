"""Models of se_a_mask: clusters that are padded with atoms that are not there, and forces with weights."""

import json

import numpy as np
import pytest
import torch
from ase import Atoms
from small_systems import small_config

from mdops import load
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.data.evaluation import evaluate
from mdops.deepmd import DeepPot
from mdops.errors import ConfigError, DataError, InputError
from mdops.train import PairLists, Trainer, load_dataset, make_batch, parse_config
from mdops.train.loss.base import squared_errors
from mdops.train.loss.energy import EnergyLoss
from mdops.train.loss.weights import Prefactor

TYPES = np.array([0, 0, 0, 1, 1, 1, 1])
MASK = np.array([[1, 1, 0, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]])
WEIGHTS = np.array([[1, 0, 0, 2, 0, 1, 0], [0, 1, 3, 1, 0, 0, 0]])
WEIGHTED = {
    **{f"{end}_pref_{name}": 0 for end in ("start", "limit") for name in "ef"},
    "start_pref_pf": 1.0,
    "limit_pref_pf": 1.0,
}


@pytest.fixture
def folder(tmp_path):
    """Two frames of seven atoms; those that are not there all lie at the origin."""
    rng, place = np.random.default_rng(3), tmp_path / "padded" / "set.000"
    place.mkdir(parents=True)
    grid = 1.6 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3)[:7]
    positions = (3 + grid + rng.normal(0, 0.1, (2, 7, 3))) * MASK[..., None]
    forces = rng.normal(size=(2, 7, 3)) * MASK[..., None]
    (tmp_path / "padded" / "type.raw").write_text("\n".join(map(str, TYPES)) + "\n")
    (tmp_path / "padded" / "nopbc").touch()
    arrays = {"coord": positions, "force": forces, "energy": rng.normal(size=2)}
    for name, array in {**arrays, "aparam": MASK, "atom_pref": WEIGHTS}.items():
        np.save(place / f"{name}.npy", array.reshape(2, -1))
    return tmp_path / "padded"


def config_of(folder, *, loss=None, fitting=None, **keys):
    descriptor = {"type": "se_a_mask", "sel": [3, 4], "neuron": [4, 8], "axis_neuron": 3, "seed": 1, **keys}
    fitting = {"neuron": [8, 8], "numb_aparam": 1, "use_aparam_as_mask": True, **(fitting or {})}
    model = {"type_map": ["Cu", "Al"], "descriptor": descriptor, "fitting_net": fitting}
    data = {"systems": str(folder), "batch_size": 2}
    training = {"training_data": data, "numb_steps": 6, "seed": 1, "precision": "float64"}
    return {"model": model, "loss": WEIGHTED | (loss or {}), "learning_rate": {}, "training": training}


def real(folder, frame):
    """A frame without what is not there."""
    here, place = MASK[frame] == 1, folder / "set.000"
    positions = np.load(place / "coord.npy").reshape(2, 7, 3)[frame][here]
    return Atoms([("Cu", "Al")[t] for t in TYPES[here]], positions)


@pytest.fixture
def trained(folder, tmp_path):
    trainer = Trainer(parse_config(config_of(folder)), folder=tmp_path / "run")
    trainer.run()
    return tmp_path / "run" / "model.safetensors"


def loaded(path):
    return load(path, dtype="float64", spline=False)


def test_a_training_counts_masked_atoms_as_atoms_alone(folder, trained, tmp_path):
    """The answers to padded frames are those to the atoms that are there, and to atoms alone."""
    model = loaded(trained)
    found = evaluate(model, load_dataset(str(folder), ["Cu", "Al"])).predictions
    alone = [float(model.compute(Atoms(symbol, [[0, 0, 0]]))["energy"][0]) for symbol in ("Cu", "Al")]
    for frame in range(2):
        wanted, here = model.compute(real(folder, frame)), MASK[frame] == 1
        rest = sum(alone[t] for t in TYPES[~here])
        np.testing.assert_allclose(found["energy"][frame], wanted["energy"][0] + rest, rtol=1e-12)
        own = found["forces"].reshape(2, 7, 3)[frame]
        np.testing.assert_allclose(own[here], wanted["forces"], rtol=1e-11, atol=1e-13)
        assert (own[~here] == 0).all() and np.abs(own[here]).max() > 1e-4


def test_a_trained_model_learns_from_the_weighted_forces_alone(folder, tmp_path, monkeypatch):
    """Other forces may be anything; with another weight the model is another one."""

    def weights(name):
        trainer = Trainer(parse_config(config_of(folder)), folder=tmp_path / name)
        trainer.run()
        return torch.cat([p.detach().ravel() for p in trainer.potential.parameters()])

    first, place = weights("first"), folder / "set.000"
    forces = np.load(place / "force.npy").reshape(2, 7, 3)
    np.save(place / "force.npy", np.where(WEIGHTS[..., None] > 0, forces, 7.0).reshape(2, -1))
    torch.testing.assert_close(weights("second"), first, rtol=0, atol=0)
    np.save(place / "atom_pref.npy", 1 + WEIGHTS)
    assert (weights("third") - first).abs().max() > 1e-5
    curve = (tmp_path / "first" / "lcurve.out").read_text().splitlines()[0]
    assert "rmse_pf_trn" in curve and "rmse_f_trn" not in curve


@pytest.mark.parametrize("suffix", ["safetensors", "dp", "json"])
def test_a_file_keeps_the_mask(suffix, folder, trained, tmp_path):
    """Also one of DeePMD-kit's, which has se_e2_a without a cutoff."""
    path = tmp_path / f"model.{suffix}"
    loaded(trained).save(path)
    data, again = load_dataset(str(folder), ["Cu", "Al"]), loaded(path)
    wanted, found = (evaluate(model, data).predictions for model in (loaded(trained), again))
    assert again.model.masks and again.model.descriptor.kind == "se_a_mask"
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-13, atol=1e-15)


def test_splines_and_programs_take_masks(folder, trained):
    """DeePMD-kit's interface and tensors have aparam; ASE's atoms are all there."""
    data = load_dataset(str(folder), ["Cu", "Al"])
    wanted = evaluate(loaded(trained), data).predictions
    x = np.load(folder / "set.000" / "coord.npy")
    energy, force, _ = DeepPot(loaded(trained)).eval(x, None, TYPES, aparam=MASK)
    np.testing.assert_allclose(energy[:, 0], wanted["energy"], rtol=1e-12)
    np.testing.assert_allclose(force.reshape(-1, 3), wanted["forces"], rtol=1e-12, atol=1e-14)
    by_splines = evaluate(load(trained, dtype="float64"), data).predictions["forces"]
    np.testing.assert_allclose(by_splines, wanted["forces"], atol=1e-6 * np.abs(wanted["forces"]).max())
    atoms = real(folder, 0)
    atoms.calc = MDOps(trained, dtype="float64", spline=False)
    np.testing.assert_allclose(
        atoms.get_forces(), wanted["forces"].reshape(2, 7, 3)[0][MASK[0] == 1], atol=1e-13
    )
    atoms.arrays["aparam"] = np.ones((len(atoms), 1))
    with pytest.raises(InputError, match="leave out the absent atoms"):
        atoms.calc.calculate(atoms)
    del atoms.arrays["aparam"]
    atoms.set_cell([20, 20, 20])
    atoms.pbc = True
    with pytest.raises(InputError, match="takes clusters alone"):
        loaded(trained).compute(atoms)
    with pytest.raises(InputError, match="takes clusters alone"):
        atoms.get_forces()


def test_the_command_tests_and_goes_on(folder, trained, tmp_path, capsys):
    assert main(["info", str(trained)]) == 0
    assert "none: all pairs of a cluster" in capsys.readouterr().out
    assert main(["test", "-m", str(trained), "-d", str(folder), "--dtype", "float64"]) == 0
    rows = {line[:30].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    weighted, weights = rows["weighted force component"], np.repeat(WEIGHTS[..., None], 3, -1).reshape(-1, 3)
    data = load_dataset(str(folder), ["Cu", "Al"])
    error = evaluate(loaded(trained), data).predictions["forces"] - data.labels["forces"]
    rmse = np.sqrt((weights * error**2).sum() / weights.sum())
    assert float(weighted[4]) == pytest.approx(rmse, rel=1e-3) and weighted[-1] == str((weights > 0).sum())
    path = tmp_path / "more.json"
    path.write_text(json.dumps(config_of(folder)))
    more = ["train", str(path), "-o", str(tmp_path / "more"), "--init-model", str(trained)]
    assert main(more) == 0 and loaded(tmp_path / "more" / "model.safetensors").model.masks


def test_weights_enter_the_loss_as_in_deepmd_kit(folder):
    data = load_dataset(str(folder), ["Cu", "Al"])
    batch = make_batch(data, PairLists(data, 1e6, masks=True), [0, 1])
    error = torch.from_numpy(np.random.default_rng(0).normal(size=(14, 3)))
    weights = torch.from_numpy(WEIGHTS.reshape(-1, 1)).double()
    result = {"forces": batch.labels["forces"] + error}
    for function, wanted in (("mse", weights * error**2), ("mae", weights * error.abs())):
        loss = EnergyLoss({"atom_pref": Prefactor(4.0, 2.0)}, function=function)
        torch.testing.assert_close(loss(result, batch, 0.5), 3 * wanted.mean())
    square, count = squared_errors(result, batch)["atom_pref"]
    assert square / count == pytest.approx(float((weights * error**2).mean()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rcut": 6.0}, r"model.descriptor.rcut: there is no such key"),
        ({"sel": "auto"}, r"model.descriptor.sel: is 'auto', expected a list of whole numbers"),
        ({"fitting": {"use_aparam_as_mask": False}}, r"use_aparam_as_mask has to be true"),
        ({"loss": {"use_huber": True}}, r"loss.use_huber: is not for weighted forces"),
        ({"loss": {"start_pref_h": 1, "limit_pref_h": 1}}, r"loss.start_pref_h: no Hessians are trained"),
    ],
)
def test_wrong_inputs_are_refused(changes, message, folder, tmp_path):
    np.save(folder / "set.000" / "hessian.npy", np.zeros((2, 21 * 21)))
    with pytest.raises(ConfigError, match=message):
        Trainer(parse_config(config_of(folder, **changes)), folder=tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("aparam", MASK * 0.5, "frame 0: aparam has 0.5, expected 1 for each atom that is there"),
        ("aparam", np.repeat(MASK, 2, -1), "frame 0: aparam has 2 numbers an atom"),
        ("atom_pref", -WEIGHTS, "frame 0: atom_pref is -1.0, a weight, which has to be 0 or more"),
        ("force", None, "has atom_pref, which weighs forces, and lacks these"),
    ],
)
def test_wrong_data_is_refused(name, array, message, folder, tmp_path):
    if array is None:
        (folder / "set.000" / f"{name}.npy").unlink()
    else:
        np.save(folder / "set.000" / f"{name}.npy", array)
    with pytest.raises(DataError, match=message):
        Trainer(parse_config(config_of(folder)), folder=tmp_path / "run")


def test_weights_that_a_loss_leaves_out_are_told_of(folder, tmp_path):
    tree = config_of(folder, loss={"start_pref_pf": 0, "start_pref_f": 1, "limit_pref_f": 1})
    with pytest.warns(UserWarning, match=r"2 frames with atom_pref.*limit_pref_pf are to be above 0$"):
        Trainer(parse_config(tree), folder=tmp_path / "run")


def test_masks_need_clusters_and_hybrids_have_none(folder, tmp_path):
    """Without a cutoff no cell is large enough; the descriptor is no part of another."""
    (folder / "nopbc").unlink()
    np.save(folder / "set.000" / "box.npy", np.tile(20 * np.eye(3).ravel(), (2, 1)))
    with pytest.raises(DataError, match="takes clusters alone"):
        Trainer(parse_config(config_of(folder)), folder=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"list\[0\].type: is 'se_a_mask', expected one of"):
        hybrid = {"type": "hybrid", "list": [{"type": "se_a_mask"}]}
        small_config(descriptor=None, model={"descriptor": hybrid})
