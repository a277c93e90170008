"""Models of dipoles, polarizabilities, densities of states, properties and populations are trained as by DeePMD-kit."""

import dataclasses

import numpy as np
import pytest
import torch
from small_systems import alloy, small_config, write_system

import mdops
from mdops.cli import main
from mdops.data.evaluation import evaluate
from mdops.data.labels import labels_of
from mdops.data.statistics import output_statistics
from mdops.errors import ConfigError, DataError, InputError, UnsupportedModelError
from mdops.models.contract import Output
from mdops.models.registry import outputs_of
from mdops.train import PairLists, Trainer, load_dataset, make_batch
from mdops.train.loop.distributed import Processes
from mdops.train.loop.factories import make_loss
from mdops.train.loss.base import label_counts, squared_errors

POINTS = 5
# Fitting, loss, the labels' files and their widths: of frames, of atoms.
KINDS = {
    "dipole": ({}, {"type": "tensor", "pref": 2.0, "pref_atomic": 0.5}, {"dipole": 3, "atomic_dipole": 3}),
    "polar": (
        {},
        {"type": "tensor", "pref": 1.0, "pref_atomic": 3.0},
        {"polarizability": 9, "atom_polarizability": 9},
    ),
    "dos": (
        {"numb_dos": POINTS},
        {"type": "dos", "start_pref_dos": 2, "limit_pref_dos": 1, "start_pref_cdf": 0.5, "limit_pref_cdf": 0.5,
         "start_pref_acdf": 0.3, "limit_pref_acdf": 0.1},
        {"dos": POINTS, "atom_dos": POINTS},
    ),
    "property": ({"property_name": "gap", "task_dim": 2}, {"type": "property"}, {"gap": 2}),
    "population": ({}, {"type": "population", "start_pref_pop": 7}, {"atomic_population": 2}),
}  # fmt: skip


def write_labels(folder, widths, seed=0):
    rng = np.random.default_rng(seed)
    for place in folder.glob("set.*"):
        positions = np.load(place / "coord.npy")
        atoms = positions.shape[1] // 3
        for name, width in widths.items():
            size = width * atoms if name.startswith("atom") else width
            np.save(place / f"{name}.npy", rng.normal(size=(len(positions), size)))


def config_of(kind, folder, *, fitting=None, loss=None, model=None, rate=1e-3, **training):
    own, given, _ = KINDS[kind]
    return small_config(
        fitting={"type": kind, **own, **(fitting or {})},
        loss={**given, **(loss or {})},
        model=model,
        learning_rate={"start_lr": rate},
        training={
            "training_data": {"systems": str(folder), "batch_size": 2},
            "precision": "float64",
            **training,
        },
    )


def test_a_fitting_of_vectors_on_a_descriptor_without_any_is_not_trained(folder, tmp_path):
    write_labels(folder / "a", KINDS["dipole"][2])
    config = config_of("dipole", folder / "a", model={"descriptor": {"type": "se_e2_r", "sel": "auto"}})
    with pytest.raises(UnsupportedModelError, match="the fitting dipole needs some vectors"):
        Trainer(config, tmp_path / "out").run()


@pytest.fixture
def folder(tmp_path):
    """Two systems, of 8 and 16 atoms; the second has no labels of atoms where a kind has others."""
    for name, repeat, seed in (("a", (2, 1, 1), 0), ("b", (2, 2, 1), 1)):
        write_system(tmp_path / "data" / name, alloy(3, seed=seed, repeat=repeat))
    return tmp_path / "data"


def read(kind, folder, **options):
    config = config_of(kind, folder, **options)
    known = labels_of(outputs_of(config.model))
    silent = tuple(config.model.atom_exclude_types)
    return config, dataclasses.replace(load_dataset(str(folder), ["Cu", "Al"], known=known), silent=silent)


def answers(batch, outputs, seed=1):
    """Random ones of a model of these outputs."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {}
    for output in outputs:
        shapes[f"atom_{output.name}"] = (batch.system.atoms, *output.shape)
        shapes[output.name] = (batch.system.count, *output.shape)
    return {n: torch.randn(s, generator=rng, dtype=torch.float64) for n, s in shapes.items()}


def tensor_loss(result, batch, config, name):
    """By DeePMD-kit's formula, in NumPy."""
    excluded = np.isin(batch.system.types.numpy(), config.model.atom_exclude_types)
    error = (result[name] - batch.labels[name]).numpy()
    atoms = (result[f"atom_{name}"] - batch.labels[f"atom_{name}"]).numpy()[~excluded]
    return config.loss.pref * np.mean(error**2) + config.loss.pref_atomic * np.mean(atoms**2)


@pytest.mark.parametrize("excluded", [[], [1]])
@pytest.mark.parametrize(("kind", "name"), [("dipole", "dipole"), ("polar", "polarizability")])
def test_tensors_have_deepmd_kits_loss(folder, kind, name, excluded):
    for system in ("a", "b"):
        write_labels(folder / system, KINDS[kind][2])
    config, data = read(kind, folder, model={"atom_exclude_types": excluded})
    batch = make_batch(data, PairLists(data, 4.0), [0, 1])
    loss, result = make_loss(config, data), answers(batch, outputs_of(config.model))
    assert float(loss(result, batch)) == pytest.approx(tensor_loss(result, batch, config, name), rel=1e-12)
    assert loss.terms == [name, f"atom_{name}"]


def test_densities_have_deepmd_kits_loss(folder):
    for system in ("a", "b"):
        write_labels(folder / system, KINDS["dos"][2])
    config, data = read("dos", folder)
    batch = make_batch(data, PairLists(data, 4.0), [0, 1])
    loss, result = make_loss(config, data), answers(batch, outputs_of(config.model))
    error, atoms = ((result[n] - batch.labels[n]).numpy() for n in ("dos", "atom_dos"))
    squares = [np.mean(e**2) for e in (error, error.cumsum(1), atoms, atoms.cumsum(1))]
    for fraction in (1.0, 0.25):
        weights = [1 + fraction, 0.5, 1.0, 0.1 + 0.2 * fraction]
        assert float(loss(result, batch, fraction)) == pytest.approx(np.dot(weights, squares), rel=1e-12)


@pytest.mark.parametrize("intensive", [False, True])
@pytest.mark.parametrize("function", ["smooth_mae", "mae", "mse", "rmse", "mape"])
def test_properties_have_deepmd_kits_loss(folder, function, intensive):
    for system in ("a", "b"):
        write_labels(folder / system, KINDS["property"][2])
    loss = {"loss_func": function, "beta": 0.3}
    config, data = read("property", folder, fitting={"intensive": intensive}, loss=loss)
    batch = make_batch(data, PairLists(data, 4.0), [0, 1, 3])
    found, result = make_loss(config, data), answers(batch, outputs_of(config.model))

    class Model:
        out_std = torch.tensor([[0.5, 2.0], [1.0, 1.0]])

    found.take_statistics(Model)
    value, label = result["gap"].numpy(), batch.labels["gap"].numpy()
    if not intensive:
        sizes = np.array([[8], [8], [16]])
        value, label = value / sizes, label / sizes
    u = (value - label) / [0.5, 2.0]
    expected = {
        "smooth_mae": np.where(np.abs(u) < 0.3, u**2 / 0.6, np.abs(u) - 0.15).sum(),
        "mae": np.abs(u).sum(),
        "mse": np.square(u).sum(),
        "rmse": np.sqrt(np.square(u).mean()),
        "mape": np.abs((value - label) / (label + 1e-3)).mean(),
    }
    assert float(found(result, batch)) == pytest.approx(expected[function], rel=1e-6)
    total, count = squared_errors(result, batch)["gap"]
    assert (total / count) ** 0.5 == pytest.approx(np.sqrt(np.square(value - label).mean()))


@pytest.mark.parametrize("function", ["smooth_mae", "mae", "rmse"])
def test_populations_have_deepmd_kits_loss(folder, function):
    write_labels(folder / "a", KINDS["population"][2])
    config, data = read("population", folder / "a", loss={"loss_func": function, "beta": 0.4})
    batch = make_batch(data, PairLists(data, 4.0), [0, 2])
    loss, result = make_loss(config, data), answers(batch, outputs_of(config.model))
    error = (result["atom_population"] - batch.labels["atom_population"]).numpy().reshape(2, 8, 2)

    def f(u):
        if function == "rmse":
            return np.sqrt(np.mean(u**2)) * u.size
        return (np.abs(u) if function == "mae" else np.where(abs(u) < 0.4, u**2 / 0.8, abs(u) - 0.2)).sum()

    spin, systems = error[..., 0] - error[..., 1], error.sum(1)
    for fraction in (1.0, 0.5):
        expected = (
            f(spin) / 8
            + f(spin.sum(1))
            + (1 + 6 * fraction) * f(error) / 8
            + f(systems[:, 0])
            + f(systems[:, 1])
        )
        assert float(loss(result, batch, fraction)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["dipole", "dos", "property", "population"])
def test_shares_of_two_processes_have_the_loss_of_the_whole(folder, kind):
    for system in ("a", "b"):
        write_labels(folder / system, KINDS[kind][2])
    config, data = read(kind, folder / "a", model={"atom_exclude_types": [1] if kind == "dipole" else []})
    lists, loss = PairLists(data, 4.0), make_loss(config, data)
    whole = make_batch(data, lists, [0, 1, 2])
    result = answers(whole, outputs_of(config.model))
    values = []
    for rank in range(2):
        processes = Processes(rank, 2)
        own, counted = processes.share(np.arange(3))
        part = make_batch(data, lists, own)
        atoms = np.concatenate([np.arange(8 * f, 8 * f + 8) for f in own])
        answered = {n: v[atoms if n.startswith("atom_") else own] for n, v in result.items()}
        values.append(float(loss(answered, part, counts=processes.label_counts(data, np.arange(3), counted))))
    expected = float(loss(result, whole, counts=label_counts(whole)))
    if kind == "population":  # the number of atoms of a frame is that of each process' frames, here the same
        expected = float(loss(result, whole))
    assert np.mean(values) == pytest.approx(expected, rel=1e-12)


def test_frames_without_a_label_do_not_count(folder):
    write_labels(folder / "a", {"dipole": 3})
    write_labels(folder / "b", {"atomic_dipole": 3})
    config, data = read("dipole", folder)
    batch = make_batch(data, PairLists(data, 4.0), [0, 3])
    loss, result = make_loss(config, data), answers(batch, outputs_of(config.model))
    error = (result["dipole"] - batch.labels["dipole"])[:1].numpy()
    atoms = (result["atom_dipole"] - batch.labels["atom_dipole"])[8:].numpy()
    assert float(loss(result, batch)) == pytest.approx(
        2 * np.mean(error**2) + 0.5 * np.mean(atoms**2), rel=1e-12
    )


def test_a_batch_without_labels_of_the_loss_has_no_gradients(folder, tmp_path):
    write_labels(folder / "a", {"dos": POINTS})
    write_labels(folder / "b", {"atom_dos": POINTS})
    zeros = {f"{end}_pref_{term}": 0 for end in ("start", "limit") for term in ("dos", "cdf", "acdf")}
    with pytest.warns(UserWarning, match="3 frames with dos, which the training does not use"):
        trainer = Trainer(config_of("dos", folder, loss=zeros, numb_steps=4), tmp_path / "out")
    trainer.run()  # with batches of both systems
    assert all(bool(p.isfinite().all()) for p in trainer.potential.parameters())


def test_types_have_the_averages_that_deepmd_kit_gives_them(folder):
    for system in ("a", "b"):
        write_labels(folder / system, {"dos": POINTS})
    _, data = read("dos", folder)
    counts, values = data.composition().astype(float), data.labels["dos"]
    found = output_statistics(data, Output("dos", (POINTS,)))
    expected = np.linalg.lstsq(counts, values, rcond=None)[0]
    np.testing.assert_allclose(found.bias, expected, rtol=1e-10)
    np.testing.assert_allclose(found.std[1], np.std(values - counts @ expected, axis=0), rtol=1e-10)
    found = output_statistics(data, Output("dos", (POINTS,), extensive=False, intensive=True))
    shares = counts / counts.sum(1, keepdims=True)
    np.testing.assert_allclose(found.bias, np.linalg.lstsq(shares, values, rcond=None)[0], rtol=1e-8)
    found = output_statistics(data, Output("dos", (POINTS,), by_type=False))
    per_atom = values / counts.sum(1, keepdims=True)
    np.testing.assert_allclose(found.bias[1], per_atom.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std[0], per_atom.std(0), rtol=1e-12)
    write_labels(folder / "a", {"atom_dos": POINTS}, seed=4)
    _, data = read("dos", folder)
    found = output_statistics(data, Output("dos", (POINTS,)))
    own = data.labels["atom_dos"][: 3 * 8][data.types[: 3 * 8] == 1]
    np.testing.assert_allclose(found.bias[1], own.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std[1], own.std(0), rtol=1e-12)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_training_learns_restarts_and_is_tested(folder, tmp_path, capsys, kind):
    """Labels are the answers of a model with other weights, so that there is something to learn."""
    for system in ("a", "b"):
        write_labels(folder / system, KINDS[kind][2])
    Trainer(config_of(kind, folder, numb_steps=1, seed=7), tmp_path / "teacher").run()
    teacher = mdops.load(tmp_path / "teacher/model.safetensors", dtype="float64")
    widths = KINDS[kind][2]
    for system in ("a", "b"):
        data = load_dataset(str(folder / system), ["Cu", "Al"], known=labels_of(teacher.model.outputs))
        taught = evaluate(teacher, data).predictions
        for name in widths:
            value = taught[name.replace("atomic_", "atom_")]
            np.save(folder / system / "set.000" / f"{name}.npy", value.reshape(3, -1))
    learning = {"seed": 5, "numb_steps": 60, "disp_freq": 10, "save_freq": 20, "rate": 1e-2}
    config = config_of(kind, folder, **learning)
    whole = Trainer(config, tmp_path / "whole")
    before = evaluate(whole.potential, whole.frames.data).errors()
    whole.run()
    after = evaluate(whole.potential, whole.frames.data).errors()
    assert len(after) == len(widths) and min(after[name].rmse / before[name].rmse for name in before) < 0.8
    shorter = Trainer(config_of(kind, folder, **learning), tmp_path / "cut")
    shorter.steps = 20
    shorter.run()
    again = Trainer(config, tmp_path / "cut", restart=True).run()
    for a, b in zip(whole.potential.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    model = tmp_path / "whole/model.safetensors"
    begun = Trainer(config_of(kind, folder, numb_steps=1), tmp_path / "more", init_model=model)
    assert begun.potential.model.outputs == whole.potential.model.outputs
    capsys.readouterr()
    table = tmp_path / "table.csv"
    arguments = ["test", "-m", str(model), "-d", str(folder), "--dtype", "float64"]
    assert main([*arguments, "--table", str(table), "--plots", str(tmp_path / "plots")]) == 0
    shown = capsys.readouterr().out
    name = next(iter(labels_of(teacher.model.outputs).values())).component
    assert name in shown and (tmp_path / "plots/parity.png").is_file()
    assert len(table.read_text().splitlines()) == 7
    header = (tmp_path / "whole/lcurve.out").read_text().splitlines()[0]
    assert all(f"rmse_{whole.loss.labels[term].short}_trn" in header for term in whole.loss.terms)


def test_a_finetuning_fits_the_averages_anew(folder, tmp_path):
    for system in ("a", "b"):
        write_labels(folder / system, {"dos": POINTS})
    with pytest.warns(UserWarning, match="atom_dos"):
        Trainer(config_of("dos", folder, numb_steps=1, seed=1), tmp_path / "first").run()
    for system in ("a", "b"):
        path = folder / system / "set.000/dos.npy"
        np.save(path, np.load(path) + 100.0)
    model = tmp_path / "first/model.safetensors"
    config = config_of("dos", folder, numb_steps=1, rate=1e-12, seed=1)
    with pytest.warns(UserWarning, match="atom_dos"):
        found = Trainer(config, tmp_path / "second", finetune=model).run()
    data = load_dataset(str(folder), ["Cu", "Al"], known=labels_of(found.model.outputs))
    mean = {
        m: evaluate(p, data).predictions["dos"].mean()
        for m, p in (("new", found), ("old", mdops.load(model)))
    }
    assert mean["old"] < 10 and mean["new"] == pytest.approx(data.labels["dos"].mean(), abs=12.0)


def test_what_does_not_go_together_is_refused(folder, tmp_path):
    with pytest.raises(
        ConfigError, match=r"loss\.type: is 'ener', a loss of energies, and the model answers dipole"
    ):
        small_config(fitting={"type": "dipole"}, loss={"type": "ener"})
    with pytest.raises(ConfigError, match=r"loss\.type: is 'tensor'.*answers energy"):
        small_config(loss={"type": "tensor", "pref": 1, "pref_atomic": 1})
    with pytest.raises(ConfigError, match=r"loss\.type: is 'dos'.*answers gap"):
        config_of("property", folder, loss={"type": "dos"})
    with pytest.raises(ConfigError, match="nothing to learn"):
        config_of("dipole", folder, loss={"pref": 0, "pref_atomic": 0})
    with pytest.raises(ConfigError, match=r"full_validation: needs the loss 'ener', not 'tensor'"):
        small_config(
            fitting={"type": "dipole"},
            loss=KINDS["dipole"][1],
            validating={"full_validation": True},
            training={"validation_data": {"systems": str(folder)}},
        )
    with pytest.raises(DataError, match="has none of dipole, atom_dipole"):
        Trainer(config_of("dipole", folder), tmp_path / "out")
    for system in ("a", "b"):
        np.save(folder / system / "set.000/gap.npy", np.ones((3, 2)))
    with pytest.raises(DataError, match="gap is the same in all frames"):
        Trainer(
            config_of("property", folder, fitting={"intensive": True, "distinguish_types": False}),
            tmp_path / "p",
        )


def test_data_is_read_for_the_model_that_it_is_compared_with(folder, tmp_path):
    write_labels(folder / "a", {"dipole": 3})
    with pytest.warns(UserWarning, match="atom_dipole"):
        model = Trainer(config_of("dipole", folder / "a", numb_steps=1), tmp_path / "out").run()
    with pytest.raises(InputError, match=r"read for labels of energy, .*answers dipole"):
        evaluate(model, load_dataset(str(folder / "a"), ["Cu", "Al"]))
