"""The loss dens, which trains dpa4 models to find noise: against DeePMD-kit, and in trainings."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.emt import EMT as EMTCalculator
from processes import together
from reference_cases import relative_error
from small_systems import EMT, alloy, interrupted, write_system, write_two_sizes

import mdops
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.cli.train import _announcement
from mdops.data.batch import Batch, make_batch
from mdops.data.labels import labels_of
from mdops.errors import ConfigError, DataError, ModelFileError, UnsupportedModelError
from mdops.io import read_model
from mdops.io.hdf5 import read_hdf5
from mdops.io.upgrade import upgrade
from mdops.md import Engine, EnsembleSettings
from mdops.models import model_of_tree
from mdops.models.contract import DIRECT
from mdops.models.neighborhood import Neighborhood
from mdops.system import Noise, System
from mdops.train.config.read import parse_config
from mdops.train.loop import branch as branches
from mdops.train.loop.prediction import predict
from mdops.train.loop.trainer import Trainer
from mdops.train.loss import dens
from mdops.train.loss.base import label_counts, squared_errors
from mdops.train.loss.dens import DenoisingLoss
from mdops.train.report.learning_curve import read_curve

FOLDER = Path(__file__).parents[1] / "data" / "denoising"
HALF_TURN = np.array([-1.0, 1.0, -1.0])  # about y: of DeePMD-kit's axes of vectors
OPTIONS = {
    "start_pref_e": 3.0,
    "limit_pref_e": 2.0,
    "start_pref_f": 5.0,
    "limit_pref_f": 1.0,
    "dens_std": 0.05,
    "dens_denoising_pos_coefficient": 7.0,
}


@pytest.fixture(scope="module")
def answers():
    with np.load(FOLDER / "answers.npz") as file:
        return {name: torch.from_numpy(value) for name, value in file.items()}


def training(loss=None, model=None, **more):
    """An input of a small model, with the loss dens by default."""
    descriptor = {"rcut": 4.0, "channels": 4, "n_radial": 4, "lmax": 1, "n_blocks": 1, "mixing_layers": 1}
    descriptor |= {"edge_norm": False, "precision": "float64", "seed": 1}
    fitting = {"neuron": [4], "precision": "float64", "seed": 1}
    usual = {"start_pref_e": 20, "limit_pref_e": 20, "start_pref_f": 20, "limit_pref_f": 20}
    return {
        "model": {
            "type": "dpa4",
            "type_map": ["Cu", "Al"],
            "descriptor": descriptor,
            "fitting_net": fitting,
            **(model or {}),
        },
        "loss": {"type": "dens", **usual} if loss is None else loss,
        "learning_rate": {"start_lr": 3e-3},
        "optimizer": {"type": "HybridMuon"},
        "training": {
            "training_data": {"systems": str(EMT), "batch_size": 2, "leave_out": 5},
            "validation_data": {"systems": str(EMT), "left_out": True, "leave_out": 5},
            "numb_steps": 6,
            "disp_freq": 2,
            "save_freq": 3,
            "seed": 5,
            "precision": "float64",
            "enable_ema": True,
            **more,
        },
    }


ENERGY = {"type": "ener", "start_pref_e": 1, "limit_pref_e": 1}


def train(folder, tree, **begin):
    trainer = Trainer(parse_config(tree), folder, **begin)
    trainer.run()
    return trainer


def load(ending="dp"):
    with pytest.warns(UserWarning, match="do not turn with the atoms"):
        return mdops.load(FOLDER / f"model.{ending}", dtype="float64")


def batch_of(potential, answers, noisy):
    """The two frames of the file, with DeePMD-kit's noise or without."""

    forces, shift = answers["force"].reshape(-1, 3), answers["shift"].reshape(-1, 3)
    noise = Noise(answers["moved"].flatten(), shift, forces) if noisy else None
    system = System(
        answers["coord"].reshape(-1, 3) + (shift if noisy else 0),
        answers["atype"].flatten().int(),
        answers["box"].reshape(2, 3, 3),
        torch.ones(2, 3, dtype=torch.bool),
        torch.arange(2, dtype=torch.int32).repeat_interleave(8),
        noise=noise,
    )
    labels = {"energy": answers["energy"].flatten(), "forces": forces}
    present = dict.fromkeys(labels, torch.ones(2, dtype=torch.bool))
    near = potential.neighbor_list(system)
    return Batch(system, near, torch.tensor([8, 8]), labels, present, None, None, known=labels_of(DIRECT))


def loss_of(potential, **options):
    config = parse_config(training({"type": "dens", **OPTIONS, **options}))
    loss = DenoisingLoss.make(config.loss, labels_of(DIRECT))
    loss.take_statistics(potential.model)
    return loss


@pytest.mark.parametrize("ending", ["dp", "pt"])
@pytest.mark.parametrize("name", ["clean", "noisy"])
def test_heads_and_loss_are_deepmd_kits(name, ending, answers):
    potential = load(ending)
    batch = batch_of(potential, answers, name == "noisy")
    found = potential.predict(batch.system, batch.neighbors)
    pairs = {"energy": "energy", "atom_energy": "atom_energy", "forces": "force"}
    pairs |= {"noise": "denoising_force_norm"}
    assert set(found) == set(pairs)
    for own, theirs in pairs.items():
        assert relative_error(found[own], answers[f"{name}_{theirs}"].reshape(found[own].shape)) < 1e-11
    for function in ("mae", "mse"):
        found = potential.predict(batch.system, batch.neighbors)
        value = loss_of(potential, loss_func=function)(found, batch, 0.4)
        assert relative_error(value, answers[f"{name}_{function}"]) < 1e-11
        weights = dict(potential.model.named_parameters())
        start = f"{name}_{function}/"
        given = {of[len(start) :]: wanted for of, wanted in answers.items() if of.startswith(start)}
        assert len(given) == 6
        own = [weights[_own_name(weight)] for weight in given]
        for weight, gradient in zip(given, torch.autograd.grad(value, own), strict=True):
            assert relative_error(gradient, given[weight]) < 1e-9, weight


def _own_name(name):
    return name.replace("dens_fitting_net", "heads").replace("filter_layers.networks", "nets")


def right(potential):
    """The model with the atoms' axes."""
    potential.model.heads.turned = False
    return potential


def test_vectors_turn_with_the_atoms(answers):
    potential = right(load())
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    turn[0] *= np.linalg.det(turn)
    turn = torch.from_numpy(turn)
    batch = batch_of(potential, answers, True)
    s = batch.system
    noise = Noise(s.noise.moved, s.noise.displacements @ turn.T, s.noise.forces @ turn.T)
    turned = dataclasses.replace(s, positions=s.positions @ turn.T, cell=s.cell @ turn.T, noise=noise)
    wanted = potential.predict(s, batch.neighbors)
    found = potential.predict(turned, potential.neighbor_list(turned))
    assert relative_error(found["energy"], wanted["energy"]) < 1e-12
    for name in ("forces", "noise"):
        assert relative_error(found[name], wanted[name] @ turn.T) < 1e-11
    # What DeePMD-kit says of these forces, it says of other axes.
    clean = batch_of(potential, answers, False)
    forces = potential.predict(clean.system, clean.neighbors)["forces"]
    assert relative_error(forces * torch.from_numpy(HALF_TURN), answers["clean_force"].reshape(-1, 3)) < 1e-11


def test_gradients_of_the_loss_are_its_slopes(answers):
    potential = right(load())
    loss, batch = loss_of(potential), batch_of(potential, answers, True)

    def value():
        return loss(potential.predict(batch.system, batch.neighbors), batch, 0.7)

    random = torch.Generator().manual_seed(0)
    weights = [p for p in potential.model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value(), weights, allow_unused=True, materialize_grads=True)
    steps = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in weights]
    wanted = sum(float((g * d).sum()) for g, d in zip(gradients, steps, strict=True))
    ends = []
    for size in (1e-6, -1e-6):
        with torch.no_grad():
            for p, d in zip(weights, steps, strict=True):
                p.add_(d, alpha=size)
            ends.append(float(value()))
            for p, d in zip(weights, steps, strict=True):
                p.sub_(d, alpha=size)
    assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(wanted, rel=1e-6)


def trained_by(folder, tree, device, *, graphs=True):
    """The trainer, and the longest displacement of each step."""
    with nullcontext() if graphs else mock.patch.object(branches, "step_graphs", lambda *_, **__: None):
        trainer = Trainer(parse_config(tree), folder, device=device)
    (branch,) = trainer.branches.values()
    assert (branch._graphs is not None) == graphs
    longest, displacements = [], branch.loss.displacements

    def seen(*given):
        found = displacements(*given)
        longest.append(0.0 if found is None else float(found.norm(dim=1).max()))
        return found

    with mock.patch.object(branch.loss, "displacements", seen):
        trainer.run()
    assert 0 < longest.count(0.0) < len(longest) == trainer.steps
    return trainer, longest


NOISE = {"loss_func": "mse", "dens_std": 0.05}


@pytest.mark.parametrize("options", [{}, NOISE, {"dens_corrupt_ratio": None}], ids=["mae", "mse", "all"])
def test_steps_in_graphs_are_the_steps_of_the_host(options, recorded, tmp_path):
    device, replays = recorded
    tree = training(numb_steps=8)
    tree["loss"] |= options
    found, _ = trained_by(tmp_path / "graphs", tree, device)
    assert len(replays) == 2 * 8
    wanted, _ = trained_by(tmp_path / "host", tree, device, graphs=False)
    assert len(replays) == 2 * 8
    same(found, wanted, tmp_path)


def test_steps_on_frames_without_a_label_in_graphs(recorded, tmp_path):
    device, replays = recorded
    write_two_sizes(tmp_path / "data", (6, 6), ("energy", "force"))
    tree = training(numb_steps=12, training_data={"systems": str(tmp_path / "data"), "batch_size": 2})
    tree["training"]["validation_data"] = None
    found, _ = trained_by(tmp_path / "graphs", tree, device)
    assert len(replays) == 2 * 12 and len(found.branches[""]._graphs.groups) == 2
    wanted, _ = trained_by(tmp_path / "host", tree, device, graphs=False)
    same(found, wanted, tmp_path)


def same(found, wanted, folder):
    """Whether two trainings ended with the same weights, and wrote the same errors."""
    own = found.potential.state_dict()
    for name, value in wanted.potential.state_dict().items():
        torch.testing.assert_close(own[name], value, rtol=1e-7, atol=1e-9, msg=name)
    curves = [read_curve(trainer.folder / "lcurve.out") for trainer in (found, wanted)]
    assert curves[0].keys() == curves[1].keys()
    for name, value in curves[1].items():
        np.testing.assert_allclose(curves[0][name], value, rtol=1e-3, atol=1e-6, err_msg=name)


def test_farther_displacements_go_by_the_host(recorded, tmp_path, monkeypatch):
    device, replays = recorded
    tree = training(numb_steps=8)
    monkeypatch.setattr(dens, "_DEVIATIONS", 3)  # some steps have a longer one
    found, longest = trained_by(tmp_path / "graphs", tree, device)
    fits = [length <= 3 * 0.025 for length in longest]
    assert 2 * longest.count(0.0) < len(replays) == 2 * sum(fits) < 2 * 8
    wanted, _ = trained_by(tmp_path / "host", tree, device, graphs=False)
    same(found, wanted, tmp_path)


def test_wide_noise_goes_by_the_host(recorded, tmp_path):
    device, replays = recorded
    tree = training(numb_steps=8)
    tree["loss"]["dens_std"] = 0.2
    found, longest = trained_by(tmp_path / "graphs", tree, device)
    assert len(replays) == 2 * longest.count(0.0)
    wanted, _ = trained_by(tmp_path / "host", tree, device, graphs=False)
    same(found, wanted, tmp_path)


def test_lists_with_a_skin_have_all_neighbours_of_displaced_atoms(recorded, tmp_path):
    device, _ = recorded
    tree = training()
    tree["model"]["descriptor"]["rcut"] = 4.4  # in a shell of many
    trainer = Trainer(parse_config(tree), tmp_path, device=device)
    potential, (branch,) = trainer.potential, trainer.branches.values()
    (group,), reach = branch._graphs.groups, branch.loss.reach
    assert reach == 5.5 * 0.025
    random = torch.Generator().manual_seed(0)
    shift = torch.randn(2 * group.atoms, 3, generator=random, dtype=torch.float64)
    shift *= reach / shift.norm(dim=1, keepdim=True)
    group.prepare(2)
    batch = group.batch(torch.tensor([3, 7], device=device), shift.to(device))
    within = [
        Neighborhood.of(batch.system, pairs, potential.cutoff, potential.dtype).report(
            potential.model.neighbors
        )
        for pairs in (batch.neighbors, potential.neighbor_list(batch.system))
    ]
    assert torch.equal(within[0].within[0], within[1].within[0])
    still = group.batch(torch.tensor([3, 7], device=device)).neighbors.graph_room
    room = batch.neighbors.graph_room
    assert still[0] < room[0] <= 1.5 * still[0] and int(within[0].within[0].sum()) <= room[0]


def test_a_restart_in_graphs_goes_on(recorded, tmp_path):
    device, replays = recorded
    whole = train(tmp_path / "whole", training(), device=device)
    with interrupted(3), pytest.raises(KeyboardInterrupt):
        train(tmp_path / "part", training(), device=device)
    again = train(tmp_path / "part", training(), restart=True, device=device)
    assert replays
    same(again, whole, tmp_path)


def test_a_restart_ends_with_the_same_bits(tmp_path):
    whole = train(tmp_path / "whole", training())
    with interrupted(3), pytest.raises(KeyboardInterrupt):
        train(tmp_path / "part", training())
    again = train(tmp_path / "part", training(), restart=True)
    wanted, found = whole.potential.state_dict(), again.potential.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    first, second = ((tmp_path / name / "lcurve.out").read_text() for name in ("whole", "part"))
    assert first == second and "rmse_f_val" in first


def test_the_same_frames_get_the_same_noise_in_a_step(tmp_path):
    trainer = Trainer(parse_config(training()), tmp_path)
    frames, loss = trainer.frames, loss_of(trainer.potential, dens_prob=1.0)
    assert len(frames.data) == 16

    def corrupted(chosen, step, loss=loss):
        batch = make_batch(frames.data, frames.lists, np.array(chosen))
        shift = loss.displacements(frames.data, np.array(chosen), [5, 9, step])
        return batch, batch if shift is None else batch.displaced(shift)

    batch, found = corrupted([3, 7], 1)
    noise, half = found.system.noise, len(found.system.types) // 2
    assert torch.equal(found.system.positions, batch.system.positions + noise.displacements)
    assert torch.equal(noise.forces, batch.labels["forces"]) and found.labels is batch.labels
    assert torch.equal(noise.displacements.any(1), noise.moved) and 0 < int(noise.moved.sum()) < 2 * half
    _, other = corrupted([7], 1)
    assert torch.equal(other.system.noise.displacements, noise.displacements[half:])
    _, later = corrupted([3, 7], 2)
    assert not torch.equal(later.system.noise.moved, noise.moved)
    _, every = corrupted([3, 7], 1, loss_of(trainer.potential, dens_prob=1.0, dens_corrupt_ratio=None))
    assert every.system.noise.moved.all()
    assert float(every.system.noise.displacements.std()) == pytest.approx(0.05, rel=0.2)
    never, often = loss_of(trainer.potential, dens_prob=0.0), loss_of(trainer.potential, dens_prob=0.3)
    batch, found = corrupted([3, 7], 1, never)
    assert found is batch
    taken = sum(corrupted([3], step, often)[1].system.noise is not None for step in range(200))
    assert 35 < taken < 85


def test_errors_of_forces_are_of_atoms_at_their_places(answers):
    potential = right(load())
    batch = batch_of(potential, answers, True)
    found = {name: value.detach() for name, value in potential.predict(batch.system, batch.neighbors).items()}
    still = ~batch.system.noise.moved
    wanted = (found["forces"] - batch.labels["forces"])[still]
    square, number = squared_errors(found, batch)["forces"]
    assert number == 3 * int(still.sum()) and square == pytest.approx(float(wanted.square().sum()))
    assert label_counts(batch) == {"energy": 2, "forces": 16}


def test_energies_without_error_have_no_loss(answers):
    """Also where the types have deviations of their own, as models have that were trained on energies of atoms."""
    potential = right(load())
    potential.model.out_std.copy_(torch.tensor([1.0, 2.0]))
    batch = batch_of(potential, answers, False)
    found = potential.predict(batch.system, batch.neighbors)
    batch.labels["energy"] = found["energy"].detach()
    assert loss_of(potential)(found, batch, 1.0, {"energy": 2.0}).item() == pytest.approx(0, abs=1e-12)


def test_errors_of_no_forces_are_not_0(tmp_path):
    every = {"type": "dens", "dens_prob": 1.0, "dens_corrupt_ratio": None}
    train(tmp_path, training(every, numb_steps=2))
    curve = read_curve(tmp_path / "lcurve.out")
    assert np.isnan(curve["rmse_f_trn"]).all()
    assert (curve["rmse_e_trn"] > 0).all() and (curve["rmse_f_val"] > 0).all()


def test_the_unit_of_forces_is_their_mean_length(tmp_path):
    trainer = Trainer(parse_config(training(model={"atom_exclude_types": [1]})), tmp_path)
    data = trainer.frames.data
    forces = data.labels["forces"][data.types == 0]
    wanted = np.sqrt(np.square(forces).sum() / len(forces))
    assert float(trainer.potential.model.heads.force_rms) == pytest.approx(wanted)


def test_forces_are_learned(tmp_path):
    tree = training(numb_steps=120, save_freq=1000, disp_freq=1000, enable_ema=False)
    tree["optimizer"] = {"type": "Adam"}
    tree["learning_rate"]["start_lr"] = 2e-2
    trainer = train(tmp_path, tree)
    frames = trainer.validation
    batch = make_batch(frames.data, frames.lists, np.arange(len(frames.data)))
    found = predict(trainer.potential, batch, create_graph=False)["forces"]
    wanted = batch.labels["forces"]
    # With DeePMD-kit's axes 0.9 is left.
    assert float((found - wanted).norm() / wanted.norm()) < 0.7


def halves(folder):
    trainer = Trainer(parse_config(training(numb_steps=3, enable_ema=False)), folder / "run")
    trainer.run()
    if trainer.processes.is_first:
        torch.save(trainer.potential.state_dict(), folder / "found.pt")


def test_two_processes_train_as_one(tmp_path):
    assert together(tmp_path, halves, tmp_path) == [0, 0]
    wanted = train(tmp_path / "one", training(numb_steps=3, enable_ema=False)).potential.state_dict()
    found = torch.load(tmp_path / "found.pt")
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-7, err_msg=name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The file of a model that the loss dens trained."""
    folder = tmp_path_factory.mktemp("dens")
    train(folder, training())
    return folder / "model.safetensors"


@pytest.mark.parametrize("way", ["finetune", "init_model"])
def test_a_training_goes_on_with_energies(way, trained, tmp_path):
    before = read_model(trained).model
    assert before["active_mode"] == "dens"
    trainer = Trainer(parse_config(training(ENERGY)), tmp_path, **{way: trained})
    own = trainer.potential.model
    assert own.heads is None and all(p.requires_grad for p in own.fitting.parameters())
    for part in ("descriptor", "fitting"):
        for name, value in own.to_tree()[part]["@variables"].items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, before[part]["@variables"][name])
    trainer.run()
    after = read_model(tmp_path / "model.safetensors").model
    assert after["active_mode"] is None and after["dens_fitting"] is None
    found = mdops.load(tmp_path / "model.safetensors").compute(bulk("Cu", cubic=True))
    assert set(found) == {"energy", "atom_energy", "forces", "virial"}


def test_an_input_of_data_alone_goes_on_with_energies(trained, tmp_path):
    tree = {"training": training()["training"]}
    trainer = Trainer(parse_config(tree), tmp_path, finetune=trained, use_pretrain_script=True)
    assert trainer.potential.model.heads is None and trainer.potential.answers_energies


@pytest.mark.parametrize("way", ["finetune", "init_model"])
def test_a_training_with_noise_begins_with_any_model(way, trained, tmp_path):
    wanted = read_model(trained).model["dens_fitting"]
    trainer = Trainer(parse_config(training()), tmp_path / "same", **{way: trained})
    found = trainer.potential.model.to_tree()["dens_fitting"]
    for name, value in wanted["@variables"].items():
        np.testing.assert_array_equal(found["@variables"][name], value)
    train(tmp_path / "energies", training(ENERGY))
    begun = Trainer(
        parse_config(training()), tmp_path / "new", **{way: tmp_path / "energies" / "model.safetensors"}
    )
    heads = begun.potential.model.heads
    assert float(heads.force_rms) == pytest.approx(float(trainer.potential.model.heads.force_rms))
    assert all(p.any() for name, p in heads.named_parameters() if "bias" not in name)
    begun.run()


def test_a_new_fit_of_the_energies_of_types_shifts_them_alone(trained, tmp_path):
    before = mdops.load(trained, dtype="float64")
    trainer = Trainer(parse_config(training()), tmp_path, finetune=trained)
    after, data = trainer.potential, trainer.frames.data
    batch = make_batch(data, trainer.frames.lists, np.arange(len(data)))
    was, now = (own.evaluate(batch.system, batch.neighbors)["energy"] for own in (before, after))
    shift = torch.from_numpy(data.composition()).double() @ (after.model.out_bias - before.model.out_bias)
    torch.testing.assert_close(now - was, shift.view(-1), rtol=0, atol=1e-10)
    assert float((now - batch.labels["energy"]).mean()) == pytest.approx(0, abs=1e-9)


def test_new_heads_have_the_energies_of_types_fitted(tmp_path):
    train(tmp_path / "energies", training(ENERGY))
    path = tmp_path / "energies" / "model.safetensors"
    wide = mdops.load(path, dtype="float64")
    wide.model.out_std.fill_(50.0)
    trainer = Trainer(
        parse_config(training()), tmp_path / "run", finetune=saved(wide, tmp_path / "wide.safetensors")
    )
    data, potential = trainer.frames.data, trainer.potential
    batch = make_batch(data, trainer.frames.lists, np.arange(len(data)))
    error = potential.evaluate(batch.system, batch.neighbors)["energy"] - batch.labels["energy"]
    assert float(error.mean()) == pytest.approx(0, abs=1e-9)


def saved(potential, path):
    potential.save(path)
    return path


def test_the_command_tells_how_many_parameters_are_trained(tmp_path):
    trainer = Trainer(parse_config(training()), tmp_path)
    trained = sum(p.numel() for group in trainer.optimizer.param_groups for p in group["params"])
    every = sum(p.numel() for p in trainer.potential.parameters())
    assert (
        trained < every
        and f"training {trained:,} parameters of a model of {every:,}, on" in _announcement(trainer)
    )


def test_adapters_train_the_heads_alone(trained, tmp_path):
    tree = training(model={"lora": {"rank": 2}})
    tree["model"]["fitting_net"]["trainable"] = False
    model = Trainer(parse_config(tree), tmp_path, finetune=trained).potential.model
    assert all(p.requires_grad for p in model.heads.parameters())
    assert not any(p.requires_grad for p in model.fitting.parameters())


def test_a_process_may_have_no_energies(answers):
    potential = right(load())
    batch, loss = batch_of(potential, answers, False), loss_of(potential)
    counts = label_counts(batch)
    own = dataclasses.replace(
        batch, labels={"forces": batch.labels["forces"]}, present={"forces": batch.present["forces"]}
    )
    found = potential.predict(batch.system, batch.neighbors)
    without = {**counts, "energy": 0.0}
    assert loss(found, own, 1.0, counts).item() == loss(found, batch, 1.0, without).item() > 0


@pytest.mark.parametrize("ending", ["dp", "pt"])
@pytest.mark.parametrize("loss", [None, ENERGY])
def test_a_training_begins_with_a_model_of_deepmd_kit(ending, loss, tmp_path):
    definition = json.loads((FOLDER / "definition.json").read_text())
    tree = training(loss, definition)
    with pytest.warns(UserWarning, match="goes on with the atoms' axes"):
        trainer = Trainer(parse_config(tree), tmp_path, init_model=FOLDER / f"model.{ending}")
    model = trainer.potential.model
    assert (model.heads is None) == (loss is not None)
    if model.heads is not None:
        assert not model.heads.turned and float(model.heads.force_rms) == 1.3
    trainer.run()


def test_a_model_of_fewer_types_has_the_same_answers(trained, tmp_path):
    tree = training(model={"type_map": ["Al"]})
    data = write_system(tmp_path / "data", [fcc(seed) for seed in range(4)], ("Al",))
    tree["training"] |= {"training_data": {"systems": str(data)}, "validation_data": None}
    found = Trainer(parse_config(tree), tmp_path, finetune=trained).potential
    whole = mdops.load(trained, dtype="float64")
    assert found.type_map == ["Al"] and len(whole.type_map) == 2
    atoms = fcc(9)
    np.testing.assert_allclose(found.compute(atoms)["forces"], whole.compute(atoms)["forces"], atol=1e-12)


def fcc(seed):
    (atoms,) = alloy(1, seed)
    atoms.symbols[:] = "Al"
    atoms.calc = EMTCalculator()
    atoms.get_forces(), atoms.get_stress()
    return atoms


@pytest.mark.parametrize("source", ["deepmd", "mdops"])
@pytest.mark.parametrize("ending", ["dp", "yaml", "json", "safetensors"])
def test_saved_models_have_the_same_answers(source, ending, trained, tmp_path):
    potential = load() if source == "deepmd" else mdops.load(trained, dtype="float64")
    potential.save(tmp_path / f"again.{ending}")
    with nullcontext() if source == "mdops" else pytest.warns(UserWarning, match="do not turn"):
        again = mdops.load(tmp_path / f"again.{ending}", dtype="float64")
    atoms = bulk("Cu", cubic=True)
    wanted, found = potential.compute(atoms), again.compute(atoms)
    assert set(found) == {"energy", "atom_energy", "forces"}
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


def test_the_command_tells_what_it_answers(trained, capsys):
    assert main(["info", str(trained)]) == 0
    found = capsys.readouterr().out
    assert "energy; forces (3), of atoms alone" in found
    assert "16 with energy, 16 with forces)" in found and "pressures" not in found


def test_the_calculator_has_energies_and_forces(trained):
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=1)
    atoms.calc = MDOps(trained, dtype="float64")
    wanted = atoms.calc.models[0].compute(atoms)
    assert atoms.get_potential_energy() == wanted["energy"][0]
    np.testing.assert_array_equal(atoms.get_forces(), wanted["forces"])
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    with pytest.raises(UnsupportedModelError, match=r"simulation needs energies and conservative forces"):
        Engine(atoms, atoms.calc.models[0], EnsembleSettings())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("loss.dens_prob", 1.5, r"loss\.dens_prob: is 1\.5, expected a number from 0 to 1"),
        ("loss.dens_corrupt_ratio", 2, r"loss\.dens_corrupt_ratio: is 2, expected"),
        ("loss.dens_std", 0, r"loss\.dens_std"),
        ("loss.dens_denoising_pos_coefficient", -1, r"loss\.dens_denoising_pos_coefficient"),
        ("loss.dens_fixed_noise_std", False, r"loss\.dens_fixed_noise_std"),
        ("loss.start_pref_v", 1, r"loss\.start_pref_v"),
        ("loss.loss_func", "huber", r"loss\.loss_func"),
        ("model.bridging_method", "zbl", r"model\.bridging_method: with the loss dens, expected 'none'"),
        ("model.descriptor.lmax", 0, r"model\.descriptor\.lmax: with the loss dens"),
        ("model.spin", {"scheme": "native", "use_spin": ["Cu"]}, r"model\.spin: with the loss dens"),
        (
            "model.fitting_net.type",
            "ener",
            r"model\.fitting_net\.type: with the loss dens, expected 'dpa4_ener'",
        ),
        ("model.fitting_net.dim_case_embd", 1, r"model\.fitting_net\.dim_case_embd: with the loss dens"),
    ],
)
def test_inputs_that_are_refused(place, value, message):
    tree = training()
    *sections, last = place.split(".")
    node = tree
    for name in sections:
        node = node[name]
    node[last] = value
    if last == "lmax":
        node["kmax"] = 0
    with pytest.raises(ConfigError, match=message):
        parse_config(tree)


def test_other_models_are_refused():
    tree = training()
    tree["model"] |= {"type": "standard", "descriptor": {"type": "se_e2_a"}, "fitting_net": {}}
    with pytest.raises(
        ConfigError, match=r"loss\.type: is 'dens', a loss of dpa4 models, and model\.type is 'st"
    ):
        parse_config(tree)


def test_data_without_forces_or_with_one_energy_are_refused(tmp_path):
    data = write_system(tmp_path / "data", alloy(4))
    tree = training(validation_data=None, training_data={"systems": str(data)})
    np.save(data / "set.000" / "energy.npy", np.ones(4))
    with pytest.raises(DataError, match="energies of all frames"):
        Trainer(parse_config(tree), tmp_path / "energies")
    (data / "set.000" / "force.npy").unlink()
    with pytest.raises(DataError, match="needs forces"), pytest.warns(UserWarning, match="forces"):
        Trainer(parse_config(tree), tmp_path / "forces")


def test_a_restart_with_another_loss_is_refused(trained):
    with pytest.raises(ConfigError, match=r"loss\.type is another and was dens\. A restart"):
        Trainer(parse_config(training(ENERGY)), trained.parent, restart=True)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda tree: tree.update(dens_fitting=None), "lacks its heads"),
        (
            lambda tree: tree["dens_fitting"]["@variables"].pop("direct_force_head.proj.weight"),
            "lacks 'direct",
        ),
        (
            lambda tree: tree["dens_fitting"]["@variables"].pop("energy_head.bias_atom_e"),
            "lack 'energy_head.bias",
        ),
        (lambda tree: tree["dens_fitting"].pop("@variables"), "have no arrays"),
    ],
)
def test_files_without_their_heads_are_refused(edit, message):
    tree = read_hdf5(FOLDER / "model.dp").model
    edit(tree["atomic_model"])
    with pytest.raises(ModelFileError, match=message):
        model_of_tree(upgrade(tree), torch.float64)
