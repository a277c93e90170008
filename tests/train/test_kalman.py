"""The optimizer LKF, against DeePMD-kit's own steps."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import together
from small_systems import EMT, write_two_sizes
from test_trainer import stop_after, tree

import mdops
from mdops import load
from mdops.data.batch import make_batch
from mdops.data.dataset import load_dataset
from mdops.data.neighbor_lists import PairLists
from mdops.errors import ConfigError
from mdops.train.config.read import parse_config, parse_input
from mdops.train.loop import kalman
from mdops.train.loop.factories import restore_optimizer
from mdops.train.loop.kalman import KalmanFilter
from mdops.train.loop.prediction import predict
from mdops.train.loop.trainer import Trainer

DATA = Path(__file__).parents[1] / "data"
MODEL = DATA / "reference" / "base" / "model.dp"
with np.load(DATA / "lkf.npz") as file:
    FOUND = {name: file[name] for name in file.files}
SETS = json.loads(str(FOUND.pop("options")))
LOSS = {"type": "ener", "start_pref_v": 0, "limit_pref_v": 0}


def lkf(steps=17, **training):
    """An input like those of other trainings, with LKF."""
    own = {
        **tree(**{"numb_steps": steps, "precision": "float64", **training}),
        "loss": LOSS,
        "optimizer": {"type": "LKF"},
    }
    del own["training"]["gradient_max_norm"]
    return own


@pytest.fixture
def frames(tmp_path):
    """The frames of losses.npz, as a system."""
    (tmp_path / "set.000").mkdir()
    with np.load(DATA / "losses.npz") as given:
        (tmp_path / "type.raw").write_text("\n".join(map(str, given["types"])))
        for name, array in {
            "coord": "positions",
            "box": "cell",
            "energy": "energy",
            "force": "force",
        }.items():
            np.save(tmp_path / "set.000" / f"{name}.npy", given[array].reshape(2, -1))
    return tmp_path


@pytest.mark.parametrize("name", SETS)
def test_steps_are_deepmd_kits(name, frames, monkeypatch):
    potential = load(MODEL, dtype="float64", spline=False)
    monkeypatch.setattr(kalman, "draw", lambda seed, atoms: FOUND["drawn"][seed[-1] - 1])
    inputs = lkf(len(FOUND["drawn"]), disp_freq=1, spline=False, enable_ema=False)
    inputs["training"] |= {"training_data": {"systems": str(frames), "batch_size": 2}}
    del inputs["training"]["validation_data"]
    inputs |= {"model": {"type_map": potential.type_map}, "optimizer": {"type": "LKF", **SETS[name]}}
    trainer = Trainer(parse_config(inputs), frames / "run", init_model=MODEL, use_pretrain_script=True)
    reports = []
    trainer.run(reports.append)
    for report, (energy, force) in zip(reports, FOUND[f"{name}/curve"], strict=True):
        assert report.training["energy"] == pytest.approx(energy, rel=1e-9)
        assert report.training["forces"] == pytest.approx(force, rel=1e-9)
    data = load_dataset(frames, potential.type_map)
    batch = make_batch(data, PairLists(data, potential.cutoff), [0, 1])
    after = predict(trainer.potential, batch, create_graph=False)
    np.testing.assert_allclose(after["energy"], FOUND[f"{name}/energies"], rtol=1e-8)
    np.testing.assert_allclose(after["forces"].reshape(2, 5, 3), FOUND[f"{name}/forces"], atol=1e-9)


@pytest.mark.parametrize(
    ("sizes", "most", "wanted"),
    [
        ([3, 4, 5], 12, [12]),
        ([3, 4, 5], 11, [7, 5]),
        ([3, 24, 2, 6], 10, [3, 10, 10, 4, 8]),
        ([10, 10, 20, 1], 10, [10, 10, 10, 10, 1]),
    ],
)
def test_weights_are_divided_into_blocks_as_in_deepmd_kit(sizes, most, wanted):
    assert kalman._block_lengths(sizes, most) == wanted


def test_two_stops_change_no_bit(tmp_path):
    """Also with weights in float32, whose covariances are in float64."""
    for precision in ("float32", "float64"):
        config = parse_config(lkf(8, precision=precision, save_freq=3))
        whole, stopped = tmp_path / precision / "whole", tmp_path / precision / "stopped"
        expected = Trainer(config, whole).run()
        for at in (4, 7):
            with pytest.raises(KeyboardInterrupt):
                Trainer(config, stopped, restart=at > 4).run(stop_after(at))
        again = Trainer(config, stopped, restart=True)
        assert again.step == 6
        found = again.run()
        for a, b in zip(expected.state_dict().values(), found.state_dict().values(), strict=True):
            assert torch.equal(a, b)
        assert (whole / "lcurve.out").read_bytes() == (stopped / "lcurve.out").read_bytes()


def test_covariances_of_a_checkpoint_stay_in_float64():
    weights = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2)]
    optimizers = [KalmanFilter([w]) for w in weights]
    for k in (0, 0, 1):
        weights[k].grad = torch.arange(6.0).view(3, 2) / 7
        optimizers[k].step(0.1)
    restore_optimizer(optimizers[1], optimizers[0].state_dict())
    one, two = (o.state[w] for o, w in zip(optimizers, weights, strict=True))
    assert one["memory"] == two["memory"] and two["block_0"].dtype == torch.float64
    assert torch.equal(one["block_0"], two["block_0"])


def test_a_filter_of_a_linear_model_finds_its_weights():
    random = np.random.default_rng(0)
    wanted = torch.from_numpy(random.normal(size=(4, 3)))
    weight = torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.float64))
    optimizer = KalmanFilter([weight])
    for _ in range(200):
        given = torch.from_numpy(random.normal(size=(4, 3)))
        error = (given * (wanted - weight.detach())).sum()
        weight.grad = -given
        optimizer.step(float(error))
    assert (weight - wanted).abs().max() < 1e-3 * wanted.abs().max()


def test_energies_with_coefficients_of_atoms_are_trained(frames, tmp_path):
    """With halved energies and coefficients, a doubled prefactor gives the same steps."""
    plain, scaled = tmp_path / "plain", tmp_path / "scaled"
    for place in (plain, scaled):
        shutil.copytree(frames / "set.000", place / "set.000")
        shutil.copy(frames / "type.raw", place)
    np.save(scaled / "set.000/energy.npy", np.load(plain / "set.000/energy.npy") / 2)
    np.save(scaled / "set.000/atom_ener_coeff.npy", np.full((2, 5), 0.5))
    found = []
    for place, prefactor in ((plain, 1), (scaled, 2)):
        inputs = lkf(3, training_data={"systems": str(place), "batch_size": 2}, spline=False)
        del inputs["training"]["validation_data"]
        inputs["loss"] = {**LOSS, "enable_atom_ener_coeff": True}
        inputs["optimizer"] |= {"kf_start_pref_e": prefactor, "kf_limit_pref_e": prefactor}
        inputs["model"] = {"type_map": load(MODEL).type_map}
        trainer = Trainer(parse_config(inputs), place / "run", init_model=MODEL, use_pretrain_script=True)
        found.append(trainer.run().state_dict())
    for a, b in zip(*(state.values() for state in found), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def train(config, folder):
    Trainer(config, folder).run()


@pytest.mark.long
def test_two_processes_do_as_one(tmp_path):
    """With frames of two sizes, some without energies and some without forces, of which a process gets one or two."""
    write_two_sizes(tmp_path / "data", (5, 6), ("energy", "force"))
    data = {"systems": str(tmp_path / "data"), "batch_size": "mixed:3"}
    config = parse_config(lkf(6, training_data=data, validation_data={**data, "batch_size": 1}))
    train(config, tmp_path / "one")
    (tmp_path / "two").mkdir()
    assert together(tmp_path, train, config, tmp_path / "two") == [0, 0]
    one, two = (mdops.load(tmp_path / way / "model.safetensors", dtype="float64") for way in ("one", "two"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_training_learns_and_averages_its_weights(tmp_path):
    config = parse_config(lkf(12, ema_decay=0.5))
    reports = []
    trainer = Trainer(config, tmp_path)
    trainer.run(reports.append)
    first, last = reports[0].validation, reports[-1].validation
    assert last["energy"] < 0.5 * first["energy"] and trainer.average.updates == 12


VIRIALS = {"type": "ener", "start_pref_v": 1, "limit_pref_v": 1}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss": {"type": "ener", "start_pref_f": 0, "limit_pref_f": 0}},
         r"'LKF' trains on forces, .*: set loss\.start_pref_f and loss\.limit_pref_f above 0"),
        ({"training": {**lkf()["training"], "smoothing": 0.1}}, r"training\.smoothing: changes gradients .* to 0"),
        ({"loss": VIRIALS}, r"optimizer\.type: 'LKF' .* not on virial: set loss\.start_pref_v and"),
        ({"loss": {"type": "dos"}, "model": {"type_map": ["Cu"], "descriptor": {},
          "fitting_net": {"type": "dos", "numb_dos": 3}}}, r"optimizer\.type: 'LKF' needs the loss 'ener', not 'dos'"),
        ({"optimizer": {"type": "LKF", "kf_start_pref_e": 0}}, r"optimizer\.kf_start_pref_e"),
        ({"optimizer": {"type": "LKF", "kf_blocksize": 0}}, r"optimizer\.kf_blocksize"),
    ],
)  # fmt: skip
def test_what_the_filter_cannot_train_is_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        parse_config({**lkf(), **changes})


def test_missing_sections_fit_the_filter(tmp_path):
    config = parse_config(
        {name: value for name, value in lkf().items() if name not in ("learning_rate", "loss")}
    )
    assert (config.training.smoothing, config.loss.start_pref_v, config.loss.start_pref_f) == (0, 0, 1000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Trainer(config, tmp_path)
    (told,) = [str(one.message) for one in caught if "frames with virial" in str(one.message)]
    assert "does not use; pressures" in told and "loss" not in told


def test_sections_that_do_not_fit_are_refused_or_warned_of():
    several = {name: value for name, value in lkf().items() if name not in ("model", "training", "loss")}
    several |= {"model": {"model_dict": {"a": lkf()["model"]}}, "loss_dict": {"a": LOSS}}
    several["training"] = {"data_dict": {"a": {"training_data": {"systems": str(EMT)}}}, "numb_steps": 1}
    with pytest.raises(ConfigError, match=r"optimizer\.type: 'LKF' trains a single model"):
        parse_input(several)
    with pytest.warns(
        UserWarning, match=r"training\.gradient_max_norm: has no effect with the optimizer 'LKF'"
    ):
        parse_config(
            lkf(gradient_max_norm=1.0) | {"training": {**lkf()["training"], "gradient_max_norm": 1.0}}
        )
    with pytest.warns(UserWarning, match=r"optimizer\.adam_beta1: has no effect with the type 'LKF'"):
        parse_config({**lkf(), "optimizer": {"type": "LKF", "adam_beta1": 0.5}})
