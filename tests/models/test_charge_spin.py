"""Charge and multiplicity of each system, for descriptors with embeddings of these (tests/data/make_charges.py)."""

import copy
import shutil

import ase
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from kind_cases import DATA, EMT, KINDS, alloy, training_input

import mdops
from mdops.calculator import MDOps
from mdops.data.evaluation import evaluate
from mdops.deepmd import DeepPot
from mdops.errors import DataError, InputError
from mdops.io import read_model
from mdops.md import Engine, EnsembleSettings, Output, Relaxation, run
from mdops.md.relax import relax
from mdops.train import PairLists, load_dataset, make_batch
from mdops.train.loop.trainer import Trainer

REPFLOW = {
    "n_dim": 6, "e_dim": 5, "a_dim": 4, "nlayers": 1, "axis_neuron": 2, "smooth_edge_update": True,
    "e_rcut": 4.0, "e_rcut_smth": 3.0, "e_sel": "auto", "a_rcut": 3.0, "a_rcut_smth": 2.5, "a_sel": "auto:2",
}  # fmt: skip
CHARGED = {"type": "dpa3", "repflow": REPFLOW, "seed": 1, "add_chg_spin_ebd": True}


@pytest.fixture(scope="module")
def answers():
    with np.load(DATA / "charges/dpa3_charged.npz") as file:
        return dict(file)


def frames_of(answers):
    frames = []
    for positions, cell, pair in zip(
        *(answers[n] for n in ("positions", "cell", "charge_spin")), strict=True
    ):
        symbols = [["Cu", "Al"][t] for t in answers["types"]]
        frames.append(ase.Atoms(symbols, positions, cell=cell, pbc=True, info={"charge_spin": pair}))
    return frames


def assert_answers(found, answers, dtype="float64"):
    for name in ("energy", "forces", "virial"):
        wanted = answers[name].reshape(found[name].shape)
        limit = 1e-9 if dtype == "float64" else 3e-5
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=limit * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_answers_are_those_of_deepmd_kit(answers, dtype):
    potential = mdops.load(KINDS / "dpa3_charged/model.dp", dtype=dtype, overflow="extend")
    assert_answers(potential.compute(frames_of(answers)), answers, dtype)


def test_charges_under_other_names_are_refused(answers):
    """The default would stand for them without a word."""
    path, (atoms, *_) = KINDS / "dpa3_charged/model.dp", frames_of(answers)
    given = atoms.info.pop("charge_spin")
    potential = mdops.load(path, overflow="extend")
    calculator, physics = MDOps(potential), EnsembleSettings("nve", timestep=1)
    calls = potential.compute, calculator.get_potential_energy, lambda a: Engine(a, potential, physics)
    for name, default in (("charge", -2), ("spin", 3)):
        atoms.info = {name: 1}
        for call in calls:
            words = rf"info\['charge_spin'\] = .* has only '{name}' = 1, and .* default is {default}:"
            with pytest.raises(InputError, match=words):
                call(atoms)
    atoms.info = {"charge": -2, "multiplicity": 3.0}  # which the default says, too
    for call in calls:
        call(atoms)
    atoms.info["charge_spin"] = given
    potential.compute(atoms)
    neutral = mdops.load(KINDS / "dpa3_base/model.dp", overflow="extend")
    neutral.compute(atoms)
    del atoms.info["charge_spin"]
    neutral.compute(atoms)


def test_deep_pot_takes_them(answers):
    model = DeepPot(KINDS / "dpa3_charged/model.dp")
    given = (answers[name] for name in ("positions", "cell", "types"))
    found = model.eval(*given, charge_spin=answers["charge_spin"])
    assert_answers(dict(zip(("energy", "forces", "virial"), found, strict=True)), answers)


def test_data_has_them(answers, tmp_path):
    """Batches of frames from files, in another order."""
    place = tmp_path / "set.000"
    place.mkdir()
    np.savetxt(tmp_path / "type.raw", answers["types"], fmt="%d")
    (tmp_path / "type_map.raw").write_text("Cu\nAl\n")
    for name, file in (("positions", "coord"), ("cell", "box"), ("energy", "energy"), ("forces", "force"),
                       ("charge_spin", "charge_spin")):  # fmt: skip
        np.save(place / f"{file}.npy", answers[name].reshape(3, -1))
    potential = mdops.load(KINDS / "dpa3_charged/model.dp", dtype="float64", overflow="extend")
    data = load_dataset(tmp_path, potential.type_map)
    batch = make_batch(data, PairLists(data, potential.cutoff), [2, 0, 1]).to("cpu")
    np.testing.assert_array_equal(batch.system.charge_spin, answers["charge_spin"][[2, 0, 1]])
    found = potential.evaluate(batch.system, batch.neighbors)
    np.testing.assert_allclose(found["energy"], answers["energy"][[2, 0, 1]], rtol=1e-9)
    answers["charge_spin"][1] = [0.0, 100.0]
    np.save(place / "charge_spin.npy", answers["charge_spin"])
    with pytest.raises(DataError, match=r"charge_spin is \[0.0, 100.0\], expected a charge"):
        load_dataset(tmp_path, potential.type_map)


def test_data_with_charges_under_other_names_is_refused(answers, tmp_path):
    potential = mdops.load(KINDS / "dpa3_charged/model.dp", overflow="extend")
    config = training_input({**CHARGED, "default_chg_spin": [-2.0, 3.0]}, 1)
    for charges in ((-2, -2, -2), (-2, 0, 1)):
        frames = frames_of(answers)
        for atoms, charge in zip(frames, charges, strict=True):
            atoms.info = {"charge": charge, "spin": 3}
            atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((len(atoms), 3)))
        file = tmp_path / "frames.extxyz"
        write(file, frames)
        config.training.training_data.systems = [str(file)]
        data = load_dataset(file, potential.type_map)
        if set(charges) == {-2}:
            evaluate(potential, data)
            Trainer(config, tmp_path / "taken", device="cpu")
            continue
        words = r"frames.extxyz, frame 1: .*has only 'charge' = 0, .* is -2:"
        with pytest.raises(DataError, match=words):
            evaluate(potential, data)
        with pytest.raises(DataError, match=words):
            Trainer(config, tmp_path / "refused", device="cpu")


def test_a_training_learns_the_charges_that_its_data_has(tmp_path):
    shutil.copytree(EMT, tmp_path / "data")
    (place,) = (tmp_path / "data").glob("set.*")
    frames = len(np.load(place / "energy.npy"))
    np.save(place / "charge_spin.npy", np.tile([2.0, 3.0], (frames, 1)))
    config = training_input(CHARGED, 2)
    config.training.training_data.systems = [str(tmp_path / "data")]
    trainer = Trainer(config, tmp_path / "own", device="cpu")
    (descriptor,) = trainer.potential.model.descriptors
    before = descriptor.charge_embedding().detach().clone()
    trainer.run()
    changed = (descriptor.charge_embedding().detach() != before).any(1).nonzero()[:, 0].tolist()
    assert changed == [102]


def charged(default, kind="dpa3_charged"):
    tree = copy.deepcopy(read_model(KINDS / kind / "model.dp").model)
    tree["descriptor"]["default_chg_spin"] = default
    return mdops.Potential(mdops.models.model_of_tree(tree), overflow="extend")


@pytest.mark.parametrize("kind", ["dpa3_charged", "dpa4_bridged"])
def test_each_system_may_have_its_charge_and_multiplicity(kind):
    """Those of a system are as if they were the model's default."""
    potential, frames = charged(None, kind), [alloy(), alloy()[:7]]
    given = [[-2, 3], [1, 2]]
    for atoms, pair in zip(frames, given, strict=True):
        atoms.info["charge_spin"] = pair
    found, first = potential.compute(frames), 0
    for k, (atoms, pair) in enumerate(zip(frames, given, strict=True)):
        wanted = charged(pair, kind).compute(alloy()[: len(atoms)])
        np.testing.assert_allclose(found["energy"][k], wanted["energy"][0], rtol=1e-13)
        own = found["forces"][first : first + len(atoms)]
        np.testing.assert_allclose(own, wanted["forces"], rtol=1e-10, atol=1e-13)
        first += len(atoms)
    # A system's own go before the default.
    np.testing.assert_allclose(
        charged([0, 1], kind).compute(frames[0])["energy"][0], found["energy"][0], rtol=1e-13
    )
    assert abs(charged([0, 1], kind).compute(alloy())["energy"][0] - found["energy"][0]) > 1e-5


def test_charge_and_multiplicity_in_a_calculator_and_an_engine():
    potential, atoms = charged(None), alloy()
    atoms.info["charge_spin"] = np.array([1, 2])
    atoms.calc = MDOps(potential)
    first = atoms.get_potential_energy()
    frame = Engine(atoms, potential, EnsembleSettings(ensemble="nve", timestep=0.5)).frame()
    wanted = charged([1, 2]).compute(alloy())["energy"][0]
    np.testing.assert_allclose([first, frame.energy], wanted, rtol=1e-12)
    atoms.info["charge_spin"] = [0, 1]
    assert abs(atoms.get_potential_energy() - first) > 1e-5


def test_a_restart_with_another_charge_is_refused(tmp_path):
    """A checkpoint is of one charge and multiplicity: with others the rest would be another system's."""
    potential, start = charged(None), alloy()
    for name, steps in (("md", 2), ("relax", 20)):  # the latter has its first checkpoint at the start

        def go_on(pair, steps, name=name):
            atoms = start.copy()
            atoms.info["charge_spin"] = pair
            atoms.calc = MDOps(potential)
            output = Output(steps, tmp_path / name, restart=True)
            if name == "relax":
                relax([atoms], potential, Relaxation(), output)
            else:
                run(atoms, EnsembleSettings("nve", 100, timestep=0.5), output)

        go_on([1, 2], steps // 2)
        with pytest.raises(InputError, match=r"other charge_spin \(.*1.0, 2.0.*, now .*0.0, 1.0"):
            go_on([0, 1], steps)
        go_on([1, 2], steps)


def test_charge_and_spin_need_a_value():
    atoms, potential = alloy(), charged(None)
    with pytest.raises(InputError, match=r"no default: give them with each system, as `atoms\.info"):
        potential.compute(atoms)
    for wrong in ([100, 1], [0, -1], [0.5, 1], [1, 2, 3], [1], 1, "cation", [np.nan, 1]):
        atoms.info["charge_spin"] = wrong
        with pytest.raises(InputError, match=r"charge_spin is .*expected a charge, -100 to 99"):
            potential.compute(atoms)
    atoms.info["charge_spin"] = [0, 1]
    with pytest.raises(InputError, match="system 1 has no `charge_spin`"):
        potential.compute([atoms, alloy()])
