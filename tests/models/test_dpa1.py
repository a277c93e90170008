"""dpa1 (se_atten) and se_atten_v2 against DeePMD-kit's own answers, and through all that works with a model."""

import copy
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from reference_cases import SHARED, references, relative_error
from small_systems import EMT, stop_after

import mdops
from mdops.calculator import MDOps
from mdops.data.evaluation import evaluate
from mdops.data.statistics import neighborhoods
from mdops.errors import ConfigError, UnsupportedModelError
from mdops.io import read_model
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine
from mdops.models import dpa1, environment, model_of_tree, registry
from mdops.models.statistics import environment_statistics
from mdops.models.type_embedding import electron_configurations
from mdops.options import differences, parse
from mdops.train import PairLists, load_dataset
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer

KINDS = Path(__file__).parents[1] / "data" / "reference_kinds"
HYBRID = "dpa1_hybrid"
CASES = sorted(
    p.name for p in KINDS.iterdir() if p.name.startswith(("dpa1", "se_atten")) and p.name != HYBRID
)
# Largest error of energies, and of what is differentiated.
EXACT, FLOAT32 = (1e-9, 1e-9), (5e-6, 3e-5)
SMALL = ("dpa1_smooth", "dpa1_rough", "dpa1_strip_rough", "se_atten_v2_attention")


def load(case, dtype="float64", device="cpu", spline=False):
    """With the nets themselves; tests/models/test_moments.py is about their splines."""
    # A hybrid's part has no more places than it would have with its own cutoff.
    overflow = "truncate" if "overflow" in case or "hybrid" in case else "error"
    return mdops.load(KINDS / case / "model.dp", dtype=dtype, overflow=overflow, device=device, spline=spline)


def assert_close(found, wanted, tolerance, name=""):
    for key in found.keys() & wanted.keys():
        assert found[key].dtype == torch.float64
        error = relative_error(found[key].cpu(), wanted[key].detach().cpu())
        assert error < tolerance["energy" not in key], f"{name}: {key} is off by {error:.1e}"


def moved(system):
    """To the GPU."""
    system = copy.copy(system)
    for name in ("positions", "types", "cell", "pbc", "batch"):
        setattr(system, name, getattr(system, name).cuda())
    return system


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_answers_are_deepmd_kits(case, dtype):
    potential = load(case, dtype)
    # DeePMD-kit's own answers carry the rounding of a model in float32.
    tolerance = EXACT if dtype == "float64" and case != "dpa1_float32" else FLOAT32
    for one in references(KINDS / case):
        found = potential.evaluate(one.system, None, one.fparam, one.aparam, atom_virial=True)
        assert {"energy", "forces", "virial", "atom_energy", "atom_virial"} <= found.keys()
        assert_close(found, one.answers, tolerance, one.name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_water_of_benchmark_size(dtype):
    """DeePMD-kit computed it in float32, where its rough attention turns rounding near the cutoff into forces of up to
    67 eV/A on a few atoms; its own float64 has no more than 0.15 eV/A on any (and 8e-16 off these)."""
    if not (SHARED / "water_dpa1").is_dir():
        pytest.skip("../shared is not here")
    potential = mdops.load(SHARED / "water_dpa1" / "model.dp", dtype=dtype)
    (one,) = references(SHARED / "water_dpa1")
    found = potential.evaluate(one.system)
    assert relative_error(found["atom_energy"], one.answers["atom_energy"]) < 1e-6
    wrong = (found["forces"] - one.answers["forces"]).abs().amax(1) > 1e-5
    assert wrong.float().mean() < 0.1
    assert found["forces"].abs().max() < 0.2 < one.answers["forces"].abs().max()


def small(case, system="triclinic"):
    """A potential in float64, and one frame of a system."""
    (one,) = [r for r in references(KINDS / case) if r.name == system]
    own = one.system.batch == 0
    s = one.system
    return load(case), (s.positions[own], s.types[own], s.cell[:1], s.pbc[:1], s.batch[own])


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("case", SMALL)
def test_gradients_are_those_of_the_energy(case, chunked, monkeypatch):
    """To second order, in the weights too; and with the atoms in chunks, of which the forward pass is done twice."""
    potential, (positions, types, cell, pbc, batch) = small(case)
    if chunked:
        monkeypatch.setattr(environment, "CHUNK", 1)
    x = positions.clone().requires_grad_()

    def energy(x):
        return potential(x, types, cell, pbc, batch)["energy"]

    assert torch.autograd.gradcheck(energy, x, atol=1e-7, rtol=1e-6, fast_mode=True)
    weight = potential.model.descriptor.embeddings.net().layers[0].weight
    direction = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))

    def slope(w):
        with torch.no_grad():
            weight.copy_(w)
        (gradient,) = torch.autograd.grad(energy(x).sum(), x, create_graph=True)
        return (gradient * direction).sum()

    before = weight.detach().clone()
    (found,) = torch.autograd.grad(slope(before), weight)
    step = torch.zeros_like(before)
    step[0, 1] = 1e-5
    wanted = (slope(before + step) - slope(before - step)).item() / 2e-5
    assert found[0, 1].item() == pytest.approx(wanted, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("case", ["dpa1_smooth", "dpa1_rough"])
def test_chunks_change_no_answer(case, monkeypatch):
    """Those of trainings: simulations take attention in runs of atoms."""
    potential, made = load(case), counted(monkeypatch)

    def answers(one):
        s, x = one.system, one.system.positions.clone().requires_grad_()
        energy = potential(x, s.types, s.cell, s.pbc, s.batch)["energy"]
        (gradient,) = torch.autograd.grad(energy.sum(), x)
        return {"energy": energy.detach(), "forces": -gradient}

    for one in references(KINDS / case):
        whole = answers(one)
        assert not made
        monkeypatch.setattr(environment, "CHUNK", 1)
        assert_close(answers(one), whole, (1e-13, 1e-12))
        assert len(made) == one.system.atoms
        made.clear()
        monkeypatch.setattr(environment, "CHUNK", 2**24)


@pytest.mark.parametrize("spline", [False, True])
def test_directions_of_short_rows_fade_as_in_tensorflow(spline, tmp_path):
    """R / max(|R|, shortest_row), by the pair vectors alone; what they are for is the answer."""
    tree, one = read_model(KINDS / "dpa1_rough" / "model.dp").model, references(KINDS / "dpa1_rough")[0]
    tree["descriptor"]["shortest_row"] = 0.2
    mdops.io.write_model(tmp_path / "m.safetensors", tree)
    potential = mdops.load(tmp_path / "m.safetensors", dtype="float64", spline=spline)
    assert potential.evaluator("simulate").name == ("fused sums" if spline else "autograd")
    d, seen, original = potential.model.descriptor, [], dpa1.DPA1.directions

    def directions(self, rows, displacements, slots, types, std):
        found = original(self, rows, displacements, slots, types, std)
        length = rows.environment[:, 1:4].norm(dim=1, keepdim=True)
        wanted = rows.environment[:, 1:4] / length.clamp(min=0.2)
        seen.append((float((found - wanted).abs().max()), int((length < 0.2).sum()), len(length)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(d), "directions", directions)
        found = potential.evaluate(one.system)
    assert all(error < 1e-9 for error, *_ in seen) and all(0 < short < rows for _, short, rows in seen)
    with pytest.MonkeyPatch.context() as patch:  # 1e-12 of PyTorch makes other answers
        patch.setattr(type(d), "directions", lambda self, rows, *rest: rows.directions)
        assert (potential.evaluate(one.system)["forces"] - found["forces"]).abs().max() > 1e-6
    exact = mdops.load(tmp_path / "m.safetensors", dtype="float64", spline=False)
    assert_close(found, exact.evaluate(one.system), (1e-9, 1e-7))
    step, system = 1e-5, copy.copy(one.system)
    for k in (0, 5):
        energies = []
        for sign in (1, -1):
            system.positions = one.system.positions.clone()
            system.positions[k, 1] += sign * step
            energies.append(float(exact.evaluate(system)["energy"].sum()))
        slope = (energies[1] - energies[0]) / (2 * step)
        assert abs(slope - float(found["forces"][k, 1])) < 1e-5
    exact.save(tmp_path / "m.dp")  # DeePMD-kit's files have no such key
    assert "shortest_row" not in read_model(tmp_path / "m.dp").model["descriptor"]


def test_nets_without_attention_are_taken_in_chunks(monkeypatch):
    """In simulations, too, where there are no runs of atoms."""
    potential, made = load("dpa1_concat_attn0"), counted(monkeypatch)
    one = next(iter(references(KINDS / "dpa1_concat_attn0")))
    whole = potential.evaluate(one.system)
    assert not made
    monkeypatch.setattr(environment, "CHUNK", 500)
    assert_close(potential.evaluate(one.system), whole, (1e-13, 1e-12))
    assert len(made) > 1


def counted(monkeypatch):
    """A list that grows with each chunk that is made to be computed again."""
    made, checkpoint = [], environment.checkpoint
    monkeypatch.setattr(environment, "checkpoint", lambda *a, **k: made.append(1) or checkpoint(*a, **k))
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ["dpa1_smooth", "dpa1_rough", "dpa1_strip_rough", "se_atten_v2_attention"])
def test_a_run_in_graphs_is_the_run_without(case, dtype, monkeypatch, replays):
    """Where how many neighbours there are is not known; with all atoms at once, and in runs of a few."""
    potential = load(case, dtype=dtype, device="cuda")
    atoms = next(iter(references(KINDS / case))).system
    found = []
    for graphs, size in ((False, 10**6), (True, 10**6), (True, 3)):
        monkeypatch.setattr(dpa1, "_NUMBERS_ON_GPU", size * potential.model.descriptor._numbers(20))
        engine = Engine(
            structure(atoms, potential), potential, EnsembleSettings("nve", 50, 0.5), graphs=graphs
        )
        found.append(list(engine.run(20, every=20))[-1])
        assert bool(replays) == graphs
    for frame in found[1:]:
        scale = np.abs(found[0].forces).max()
        assert np.abs(frame.forces - found[0].forces).max() < (1e-4 if dtype == "float32" else 1e-9) * scale
        assert frame.energy == pytest.approx(found[0].energy, abs=1e-4 if dtype == "float32" else 1e-10)


def structure(system, potential):
    """The first structure of a reference as ASE has it."""
    mine = system.batch == 0
    symbols = [potential.type_map[t] for t in system.types[mine].tolist()]
    return Atoms(
        symbols, system.positions[mine].numpy(), cell=system.cell[0].numpy(), pbc=system.pbc[0].numpy()
    )


@pytest.mark.parametrize("case", ["dpa1_smooth", "dpa1_rough", "dpa1_parameters", "dpa1_overflow"])
def test_atoms_in_runs_have_the_same_answers(case, device, monkeypatch):
    """As they have in one run, and through the operations that train."""
    potential = load(case, device=device)
    for one in references(KINDS / case):
        system = one.system if device == "cpu" else moved(one.system)
        s, found = system, []
        parameters = {"fparam": one.fparam, "aparam": one.aparam}
        for size in (1, 2, 10**6):
            monkeypatch.setattr(dpa1, "_ATOMS_IN_CACHE", size)
            monkeypatch.setattr(dpa1, "_NUMBERS_ON_GPU", size * potential.model.descriptor._numbers(20))
            found.append(potential.evaluate(system, atom_virial=True, **parameters))
        x = s.positions.clone().requires_grad_()
        energy = potential(x, s.types, s.cell, s.pbc, s.batch, **parameters)["energy"]
        (gradient,) = torch.autograd.grad(energy.sum(), x)
        for answers in found:
            assert_close(answers, found[-1], (1e-13, 1e-11), one.name)
            assert_close(answers, {"energy": energy, "forces": -gradient}, (1e-13, 1e-11), one.name)


def test_weights_of_attention_have_gradients():
    potential, (positions, types, cell, pbc, batch) = small("dpa1_smooth")
    energy = potential(positions, types, cell, pbc, batch)["energy"].sum()
    for layer in potential.model.descriptor.layers:
        for gradient in torch.autograd.grad(energy, list(layer.parameters()), retain_graph=True):
            assert gradient.abs().max() > 0


@pytest.mark.parametrize("suffix", [".dp", ".safetensors"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_what_was_read(case, suffix, tmp_path):
    load(case).save(tmp_path / f"model{suffix}")
    wanted, found = (read_model(p).model for p in (KINDS / case / "model.dp", tmp_path / f"model{suffix}"))
    assert not list(tree_differences(wanted, found, "model"))


def tree_differences(a, b, place):
    if isinstance(a, dict):
        yield from (f"{place}: keys {k}" for k in a.keys() ^ b.keys())
        for key in a.keys() & b.keys():
            yield from tree_differences(a[key], b[key], f"{place}.{key}")
    elif isinstance(a, list) and a and isinstance(a[0], dict):
        assert len(a) == len(b)
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from tree_differences(x, y, f"{place}[{i}]")
    elif isinstance(a, np.ndarray):
        # Statistics are written in float64, whatever the precision.
        if not np.array_equal(a, b) or (a.dtype != b.dtype and not place.endswith(("davg", "dstd"))):
            yield place
    # None, False and 0 are the same option that is off; DeePMD-kit has several words for what is trained.
    elif (a or None) != (b or None) and not place.endswith(".trainable"):
        yield f"{place}: {a!r} {b!r}"


def test_absent_pairs_take_the_type_of_the_first_atom():
    """In the order of the user, whatever that of the engine is."""
    potential, (positions, types, cell, pbc, batch) = small("dpa1_rough")
    order = torch.argsort(types, descending=True)
    assert types[0] != types[order[0]]
    answers = [
        potential.evaluate(mdops.system.System(positions[o], types[o], cell, pbc, batch, first_types=first))
        for o, first in ((slice(None), None), (order, types[:1]), (order, None))
    ]
    assert answers[0]["energy"].item() == pytest.approx(answers[1]["energy"].item(), abs=1e-12)
    assert abs(answers[0]["energy"].item() - answers[2]["energy"].item()) > 1e-6


# -- Options


def options(kind="se_atten", **keys):
    section = {"type": kind, **keys}
    tree = {
        "model": {"type_map": ["Cu", "Al"], "descriptor": section},
        "training": {"training_data": {"systems": "data"}, "numb_steps": 10},
    }
    return parse_config(tree).model.descriptor


def test_defaults_are_deepmd_kits():
    o = options()
    assert (o.KIND, o.sel, o.neuron, o.axis_neuron, o.tebd_dim) == ("dpa1", "auto", [10, 20, 40], 4, 8)
    assert o.set_davg_zero and not o.smooth_type_embedding and o.tebd_input_mode == "concat"
    assert (o.attn, o.attn_layer, o.attn_dotr, o.ln_eps, o.temperature) == (128, 2, True, 1e-5, None)
    v2 = options("se_atten_v2")
    assert v2.KIND == "se_atten_v2" and not v2.set_davg_zero and v2.strips_types and v2.is_smooth
    assert options("dpa1") == o


def test_old_names_of_options():
    assert options(stripped_type_embedding=True).tebd_input_mode == "strip"
    assert options(tebd_input_mode="strip", stripped_type_embedding=False).tebd_input_mode == "concat"
    assert options(smooth_type_embdding=True).is_smooth
    assert options(attn_mask=False, lmax=1, n_axis_neuron=3, ln_eps=None).axis_neuron == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attn_mask": True}, "attn_mask: is True; this is not supported"),
        ({"lmax": 5}, "lmax: is 5, expected 1 or 2 or 3 or 4"),
        ({"tebd_input_mode": "stripped"}, "tebd_input_mode: is 'stripped', expected 'concat' or 'strip'"),
        ({"sel": [0, -1]}, "sel: is"),
        ({"axis_neuron": 41}, "more than the last of neuron"),
        ({"tebd_dims": 8}, "the nearest is 'tebd_dim'"),
        ({"exclude_types": [[0, 2]]}, "expected pairs of types"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(keys, message):
    with pytest.raises(ConfigError) as error:
        options(**keys)
    assert "model.descriptor." in str(error.value) and message in str(error.value)


def test_configurations_are_of_elements():
    with pytest.raises(ConfigError, match="of elements, and Cx is not an element"):
        electron_configurations(["Cu", "Cx"])


def test_configurations_of_all_elements_are_deepmd_kits():
    from ase.data import chemical_symbols

    rows = electron_configurations(chemical_symbols[1:119]) * np.sqrt(118)
    digest = hashlib.sha256(np.round(rows).astype(np.int8).tobytes()).hexdigest()
    assert digest == "306fe19a29d49dbedebe1c8ee400eb89bd5ccbae623894269c3f62725fecbbc0"


def test_only_the_sum_of_sel_counts():
    kind = dpa1.DPA1Options
    one, two, other = (parse(kind, {"type": "dpa1", "sel": sel}) for sel in (40, [10, 30], [10, 31]))
    types = ["Cu", "Al"]
    assert not list(differences(one, two, "descriptor", types, types))
    assert [place for place, _, _ in differences(one, other, "descriptor", types, types)] == [
        "descriptor.sel"
    ]
    assert options(sel="auto:1.5").resolve_sel(lambda cutoff: ([7, 9], 13), "").sel == 20


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(lmax=5), "lmax = 5"),
        (lambda d: d.update(attn_mask=True), "attn_mask"),
        (
            lambda d: d["attention_layers"]["attention_layers"][0]["attention_layer"].update(num_heads=5),
            "heads",
        ),
        (
            lambda d: d["attention_layers"]["attention_layers"][0]["attention_layer"].update(smooth=False),
            "smooth",
        ),
        (lambda d: d["env_mat"].update(use_exp_switch=True), "use_exp_switch"),
    ],
)
def test_trees_that_are_not_supported_are_refused_by_name(edit, message):
    tree = read_model(KINDS / "dpa1_smooth" / "model.dp").model
    edit(tree["descriptor"])
    with pytest.raises(UnsupportedModelError, match=message):
        model_of_tree(tree)


# -- Training


def config(steps=20, **descriptor):
    keys = {
        "type": "se_atten", "rcut": 4.0, "rcut_smth": 2.0, "neuron": [4, 8], "axis_neuron": 3, "attn": 8,
        "tebd_dim": 4, "sel": 60,
    }  # fmt: skip
    return parse_config(
        {
            "model": {
                "type_map": ["Cu", "Al"],
                "descriptor": {**keys, **descriptor},
                "fitting_net": {"neuron": [12, 12]},
            },
            "learning_rate": {"type": "exp", "start_lr": 1e-2, "stop_lr": 1e-4, "decay_steps": 5},
            "loss": {"type": "ener", "start_pref_v": 0.1, "limit_pref_v": 1.0},
            "training": {
                "training_data": {"systems": str(EMT), "batch_size": 4},
                "numb_steps": steps,
                "seed": 3,
                "disp_freq": 1,
                "save_freq": 4,
            },
        }
    )


TRAINED = {
    "rough": {"attn_layer": 1},
    "smooth_strip": {"attn_layer": 2, "smooth_type_embedding": True, "tebd_input_mode": "strip"},
    "no_attention": {"attn_layer": 0, "type_one_side": True, "use_tebd_bias": True},
    "v2": {"type": "se_atten_v2", "attn_layer": 1, "use_econf_tebd": True},
    "degrees": {"attn_layer": 1, "smooth_type_embedding": True, "lmax": 3},
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_reduces_the_loss(name, tmp_path):
    trainer = Trainer(config(**TRAINED[name]), tmp_path)
    before = evaluate(trainer.potential, trainer.frames.data).errors()["forces"].rmse
    gain = copy.deepcopy(trainer.potential.model.descriptor.degree_gain)
    potential = trainer.run()
    assert evaluate(potential, trainer.frames.data).errors()["forces"].rmse < 0.9 * before
    assert len(potential.model.fitting.nets) == 1  # for all types
    if name == "degrees":
        assert not torch.equal(potential.model.descriptor.degree_gain, gain)
    again = mdops.load(tmp_path / "model.safetensors", dtype="float64")
    wanted = potential.double().eval()
    for a, b in zip(wanted.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


def test_restart_is_the_unbroken_training(tmp_path):
    keys = {"steps": 9, "attn_layer": 1, "smooth_type_embedding": True}
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = Trainer(config(**keys), tmp_path / "whole").run()

    with pytest.raises(KeyboardInterrupt):
        Trainer(config(**keys), tmp_path / "stopped").run(stop_after(6))
    again = Trainer(config(**keys), tmp_path / "stopped", restart=True)
    assert again.step == 4
    for a, b in zip(whole.state_dict().values(), again.run().state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_norms_that_are_not_trained_stay(tmp_path):
    potential = Trainer(config(3, attn_layer=1, trainable_ln=False), tmp_path).run()
    (layer,) = potential.model.descriptor.layers
    assert torch.equal(layer.norm_weight, torch.ones(8)) and torch.equal(layer.norm_bias, torch.zeros(8))
    potential = Trainer(config(3, attn_layer=1), tmp_path).run()
    assert not torch.equal(potential.model.descriptor.layers[0].norm_weight, torch.ones(8))


@pytest.mark.parametrize(
    ("sel", "exclude", "mean", "std"),
    [
        (60, [], [0.06227555, 0.06277563], [[0.12464597, 0.08013419], [0.12560843, 0.08075729]]),
        (20, [[0, 1]], [0.12697717, 0.05665804], [[0.15291316, 0.11430899], [0.12132166, 0.0770052]]),
    ],
)
def test_statistics_are_deepmd_kits(sel, exclude, mean, std):
    """What its PyTorch backend has for the same frames."""
    data = load_dataset(EMT, ["Cu", "Al"])
    found = environment_statistics(
        neighborhoods(data, PairLists(data, 4.0), 4.0),
        ntypes=2,
        sel=[sel],
        mixed=True,
        cutoff_smooth=2.0,
        protection=0.01,
        exclude_types=exclude,
    )
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(found.std, std, rtol=1e-6)


# -- Simulation


def alloy(repeat=2):
    from ase.build import bulk

    atoms = bulk("Cu", cubic=True, a=3.9) * (repeat, repeat, repeat)
    atoms.symbols[::3] = "Al"
    atoms.rattle(0.05, seed=2)
    return atoms


@pytest.mark.parametrize("case", SMALL)
def test_ase_has_the_slopes_of_the_energy(case):
    from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

    atoms = alloy(1)
    atoms.calc = MDOps(KINDS / case / "model.dp", dtype="float64", overflow="truncate")
    np.testing.assert_allclose(
        atoms.get_forces()[:2], calculate_numerical_forces(atoms, eps=1e-4, iatoms=[0, 1]), atol=1e-6
    )
    wanted = calculate_numerical_stress(atoms, eps=1e-5, voigt=False)
    np.testing.assert_allclose(atoms.get_stress(voigt=False), wanted, atol=1e-6)


@pytest.mark.parametrize("case", ["dpa1_smooth", "se_atten_v2_attention"])
def test_engine_steps_are_the_calculators(case, device):
    """The engine sorts its atoms in space, and the mean is not zero: absent neighbours need the user's first type."""
    potential = load(case, device=device)
    atoms = alloy()
    atoms.symbols[0] = "Al"
    atoms.symbols[1] = "Cu"
    frames = list(Engine(atoms, potential, EnsembleSettings("nve", 300, 1)).run(8, every=4))
    reference = Atoms(atoms.numbers, frames[-1].positions, cell=atoms.cell, pbc=True)
    reference.calc = MDOps(load(case))
    assert frames[-1].energy == pytest.approx(reference.get_potential_energy(), abs=1e-9)
    np.testing.assert_allclose(frames[-1].forces, reference.get_forces(), atol=1e-9)
    assert frames[-1].conserved == pytest.approx(frames[0].conserved, abs=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_gpu_agrees_with_the_cpu(case, dtype):
    cpu, gpu = load(case), load(case, dtype, "cuda")
    tolerance = (1e-11, 1e-10) if dtype == "float64" else FLOAT32
    for one in references(KINDS / case):
        wanted = cpu.evaluate(one.system, None, one.fparam, one.aparam, atom_virial=True)
        found = gpu.evaluate(moved(one.system), None, one.fparam, one.aparam, atom_virial=True)
        assert_close(found, wanted, tolerance, one.name)


@pytest.mark.gpu
def test_a_large_system_fits_on_a_gpu():
    """12,288 atoms with some 90 neighbours each, two layers of width 128: chunks bound the memory."""
    o = options(
        attn_layer=2, sel=120, smooth_type_embedding=True, neuron=[25, 50, 100], axis_neuron=16, rcut=6.0
    )
    o.seed = 1
    tree = read_model(KINDS / "dpa1_attn2" / "model.dp").model
    descriptor = dpa1.DPA1.random(o, ["O", "H"], [0], torch.float32)
    fitting = registry.find("fitting", "ener")
    keys = parse(fitting.Options, {"neuron": [24]})
    model = model_of_tree(tree, torch.float32)
    model.descriptor, model.fitting = (
        descriptor,
        fitting.random(keys, ["O", "H"], descriptor.width, True, 0, torch.float32),
    )
    generator = torch.Generator().manual_seed(0)
    atoms, box = 12_288, (12_288 / 0.1) ** (1 / 3)
    positions = torch.rand(atoms, 3, dtype=torch.float64, generator=generator).cuda() * box
    potential = mdops.Potential(model, overflow="extend").cuda()
    torch.cuda.reset_peak_memory_stats()
    system = mdops.system.System(
        positions,
        torch.randint(0, 2, (atoms,), generator=generator, dtype=torch.int32).cuda(),
        box * torch.eye(3, dtype=torch.float64, device="cuda")[None],
        torch.ones(1, 3, dtype=torch.bool, device="cuda"),
        torch.zeros(atoms, dtype=torch.int32, device="cuda"),
    )
    assert bool(torch.isfinite(potential.evaluate(system)["forces"]).all())
    assert torch.cuda.max_memory_allocated() < 16 * 2**30
