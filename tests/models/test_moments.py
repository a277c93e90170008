"""DPA-1 without attention, and se_e2_r, on spline moments: every option, every evaluator, few and many types."""

import copy
import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from parts_cases import change_weights, gradients_of, parameters_of
from reference_cases import (
    SHARED,
    assert_close,
    assert_deepmd_kits_answers,
    composed,
    on_device,
    relative_error,
)

import mdops
from mdops import Potential
from mdops.calculator import MDOps
from mdops.errors import InputError
from mdops.evaluators import Autograd, one_op
from mdops.evaluators.from_moments import MomentSteps, MomentTraining
from mdops.evaluators.one_op import Fused, FusedTraining
from mdops.evaluators.splines import Splines
from mdops.jit.sample_box import sample_box
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine
from mdops.models import DescriptorFitting, dpa1
from mdops.models.standard import StandardOptions
from mdops.ops import spline_potential
from mdops.options import parse
from mdops.system import from_atoms
from mdops.tables.spline_model import SplineModel

KINDS = Path(__file__).parents[1] / "data" / "reference_kinds"
CASES = (
    *("dpa1_attn0_strip", "dpa1_concat_attn0", "dpa1_residual_types_twice", "se_atten_v2"),
    *sorted(path.name for path in KINDS.iterdir() if path.name.startswith(("se_e2_r", "se_r"))),
)
SPLINES, FLOAT32 = 1e-7, 3e-5
SMALL = {
    "rcut": 4.0, "rcut_smth": 1.0, "sel": 60, "neuron": [6, 12, 24], "axis_neuron": 5, "attn_layer": 0, "tebd_dim": 4,
}  # fmt: skip


def folder_of(case):
    return SHARED / case if (SHARED / case).is_dir() else KINDS / case


RADIAL = {"rcut": 4.0, "rcut_smth": 1.0, "sel": [60, 40], "neuron": [6, 12, 24]}


def model_of(
    elements=("Cu", "Al"), kind="dpa1", seed=0, dtype=torch.float64, fitting=None, model=None, **keys
):
    """A model with random weights and statistics that are not zero."""
    sections = {
        "type_map": list(elements),
        "descriptor": {"type": kind, **(RADIAL if kind == "se_e2_r" else SMALL), **keys},
        "fitting_net": {"neuron": [20, 20, 20], **(fitting or {})},
    }
    found = DescriptorFitting.random(
        parse(StandardOptions, {**sections, **(model or {})}), seed, torch.float64
    )
    random, n = np.random.default_rng(seed), len(elements)
    std = np.stack([random.uniform(0.1, 0.16, n), random.uniform(0.06, 0.1, n)], 1)
    found.descriptor.set_statistics(random.uniform(0.03, 0.07, n), std)
    found.out_bias += torch.from_numpy(random.normal(0, 1, n))
    return found.to(dtype)


def potential_of(*args, spline=True, overflow="error", smoothing=0.0, **keys):
    potential = Potential(model_of(*args, **keys), overflow=overflow).eval()
    if spline:
        potential.use_spline()
        assert potential.why_no_spline is None
    potential.smoothing = smoothing
    return potential


def alloy(elements=("Cu", "Al"), repeat=2, seed=1):
    atoms = bulk("Cu", cubic=True, a=3.9) * (repeat, repeat, repeat)
    atoms.symbols = [elements[k % len(elements)] for k in np.random.default_rng(seed).permutation(len(atoms))]
    atoms.rattle(0.08, seed=seed)
    return atoms


def system_of(potential, *frames, device="cpu"):
    return from_atoms(frames, potential.type_map, device)


# -- DeePMD-kit's answers


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_answers_are_deepmd_kits(case, dtype, device):
    folder = folder_of(case)
    overflow = "truncate" if case.endswith("few_places") else "error"
    potential = mdops.load(folder / "model.dp", dtype=dtype, device=device, overflow=overflow)
    is_fused = isinstance(potential.evaluator(), Fused)
    assert is_fused == ((device, dtype) != ("cuda", "float64")), potential.explain()
    # DeePMD-kit itself computed such a model in float32.
    tolerance = SPLINES if dtype == "float64" and not case.endswith("float32") else FLOAT32
    assert_deepmd_kits_answers(potential, folder, tolerance)
    assert_deepmd_kits_answers(potential, folder, tolerance, lambda *asked: composed(potential, *asked))


# -- Options

COMBINATIONS = {
    "concat_one_side": {"type_one_side": True, "use_tebd_bias": True},
    "concat_two_sides": {"type_one_side": False, "concat_output_tebd": False, "resnet_dt": True},
    "concat_davg": {"set_davg_zero": False, "type_one_side": False, "env_protection": 0.1},
    "concat_davg_smooth": {"set_davg_zero": False, "type_one_side": True, "smooth_type_embedding": True},
    "strip_rough": {"tebd_input_mode": "strip", "type_one_side": False},
    "strip_rough_davg": {"tebd_input_mode": "strip", "set_davg_zero": False, "exclude_types": [[0, 1]]},
    "strip_smooth": {"tebd_input_mode": "strip", "smooth_type_embedding": True, "type_one_side": True},
    "strip_smooth_davg": {
        "tebd_input_mode": "strip", "smooth_type_embedding": True, "type_one_side": False, "set_davg_zero": False,
        "exclude_types": [[0, 0]], "resnet_dt": True,
    },
    "v2": {"kind": "se_atten_v2", "set_davg_zero": False, "type_one_side": True, "rcut_smth": 2.5},
    "v2_two_sides": {"kind": "se_atten_v2", "concat_output_tebd": False, "activation_function": "gelu"},
    "econf": {"use_econf_tebd": True, "tebd_input_mode": "strip", "smooth_type_embedding": True},
    "excluded": {"exclude_types": [[0, 1]], "set_davg_zero": False, "model": {"pair_exclude_types": [[1, 1]]}},
    "silent": {"set_davg_zero": False, "model": {"atom_exclude_types": [1]}},
    "parameters": {"fitting": {"numb_fparam": 2, "numb_aparam": 1, "resnet_dt": False}},
    "vacuum": {"fitting": {"atom_ener": [-1.0, None]}},
    "radial": {"kind": "se_e2_r", "resnet_dt": True, "set_davg_zero": False},
    "radial_excluded": {
        "kind": "se_e2_r", "exclude_types": [[0, 1]], "model": {"pair_exclude_types": [[1, 1]]},
        "fitting": {"numb_fparam": 1}, "rcut_smth": 2.0, "env_protection": 0.1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", COMBINATIONS)
def test_splines_are_the_nets(name):
    """Two systems, of which the first atoms have different types; and one that lacks a type."""
    keys = COMBINATIONS[name]
    splined, exact = (potential_of(spline=spline, **keys) for spline in (True, False))
    assert isinstance(splined.evaluator(), Fused), splined.explain()
    first, second = alloy(seed=1), alloy(seed=2)
    first.symbols[0], second.symbols[0] = "Cu", "Al"
    pure = alloy(("Al",), seed=3)
    for frames in ((first, second), (pure,), (Atoms("AlX", [[0, 0, 0], [1, 1, 1]]),)):
        system = system_of(splined, *frames)
        parameters = parameters_of(splined, system)
        wanted = exact.evaluate(system, **parameters, atom_virial=True)
        assert_close(splined.evaluate(system, **parameters), wanted, SPLINES)
        assert_close(splined.evaluate(system, **parameters, atom_virial=True), wanted, SPLINES, wanted)
        assert_close(composed(splined, system, **parameters), wanted, SPLINES, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMBINATIONS)
def test_gpu_is_the_float64_cpu(name):
    keys = COMBINATIONS[name]
    exact, gpu = potential_of(spline=False, **keys), potential_of(dtype=torch.float32, **keys).cuda()
    double = potential_of(**keys).cuda()
    assert isinstance(gpu.evaluator(), Fused), gpu.explain()
    wanted = Splines if name.startswith("radial") else MomentSteps  # whose passes are of whole rows
    assert isinstance(double.evaluator(), wanted), double.explain()
    first, second = alloy(seed=1), alloy(seed=2)
    first.symbols[0], second.symbols[0] = "Cu", "Al"
    for frames in ((first, second), (alloy(("Al",), seed=3),), (alloy(repeat=5),)):
        system = system_of(exact, *frames)
        parameters = parameters_of(exact, system)
        wanted = exact.evaluate(system, **parameters)
        on_gpu = {k: None if v is None else v.cuda() for k, v in parameters.items()}
        assert_close(gpu.evaluate(on_device(system, "cuda"), **on_gpu), wanted, FLOAT32)
        assert_close(double.evaluate(on_device(system, "cuda"), **on_gpu), wanted, SPLINES)


@pytest.mark.parametrize("overflow", ["truncate", "extend"])
@pytest.mark.parametrize("name", ["concat_davg", "strip_smooth_davg"])
def test_more_neighbours_than_places(name, overflow):
    keys = {**COMBINATIONS[name], "sel": 14}
    splined, exact = (potential_of(spline=spline, overflow=overflow, **keys) for spline in (True, False))
    system = system_of(splined, alloy())
    assert_close(splined.evaluate(system), exact.evaluate(system), SPLINES)
    with pytest.raises(InputError, match=r"neighbours within the cutoff of 4 A, and the model's sel is 14"):
        potential_of(**keys).evaluate(system)


def test_a_list_with_skin_names_the_same_pairs():
    potential = potential_of(**COMBINATIONS["strip_smooth_davg"])
    system = system_of(potential, alloy(), alloy(seed=2))
    longer = mdops.ops.neighbor_list(
        system.positions, system.cell, system.pbc, system.types, 5.5, batch=system.batch, ntypes=2
    )
    assert_close(potential.evaluate(system, longer), potential.evaluate(system), 1e-12)


def test_the_gate_keeps_its_accuracy_close_to_the_cutoff():
    """There w as a function of s has no second derivative: splines in s of the gated net would be off by 1e-4."""
    splined, exact = (
        potential_of(spline=spline, **COMBINATIONS["strip_smooth_davg"]) for spline in (True, False)
    )
    for r in (3.5, 3.9, 3.99, 3.999):
        system = system_of(splined, Atoms("CuAl", [[0, 0, 0], [r, 0, 0]]))
        found, wanted = splined.evaluate(system), exact.evaluate(system)
        assert float((found["forces"] - wanted["forces"]).abs().max()) < 1e-10
        assert_close(found, wanted, 1e-9, ("energy",))


def test_what_runs_is_told():
    potential = potential_of()
    assert potential.explain() == "fused: one op a step"
    assert potential.explain("train").startswith("fused training: ")
    assert mdops.jit.models.why_not(potential) is None
    attentive = potential_of(spline=False, attn_layer=1)
    attentive.use_spline()
    assert attentive.grid is None and attentive.explain().startswith("fused sums: ")
    assert "one descriptor of sums over neighbours" in (mdops.jit.models.why_not(attentive) or "")


def test_values_before_the_knots_are_the_nets():
    """A neighbour that is excluded counts as one at the mean of s does, which is below zero in no data."""
    model = model_of(kind="se_e2_r", exclude_types=[[0, 1]], set_davg_zero=False)
    model.descriptor.mean.neg_()
    with pytest.warns(UserWarning, match="means of s of excluded pairs are below 0"):
        Potential(model).use_spline()


# -- Many types

METALS = [
    "Li", "Be", "Na", "Mg", "Al", "K", "Ca", "Sc", "Ti", "V", "Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "Ga", "Rb",
    "Sr", "Y", "Zr", "Nb", "Mo", "Tc", "Ru", "Rh", "Pd", "Ag", "Cd", "In", "Sn", "Cs", "Ba", "La", "Hf", "Ta", "W",
    "Re", "Os", "Ir", "Pt", "Au", "Hg", "Tl", "Pb", "Bi",
]  # fmt: skip


@pytest.fixture
def taken(monkeypatch):
    """The arguments of fused steps."""
    found = []
    monkeypatch.setattr(
        one_op, "spline_potential", lambda *args: found.append(args) or spline_potential(*args)
    )
    return found


@pytest.mark.parametrize("name", ["concat_davg", "strip_smooth_davg", "strip_rough_davg"])
def test_tables_are_of_the_types_that_are_there(name, taken):
    keys = COMBINATIONS[name]
    splined, exact = (potential_of(METALS, spline=spline, **keys) for spline in (True, False))
    sizes = []
    for elements in (("Cu", "Al"), ("W",), ("Pb", "Cu", "Li", "Bi"), METALS[:20]):
        system = system_of(splined, alloy(elements), alloy(elements, seed=2))
        evaluator = splined.evaluator()
        assert_close(splined.evaluate(system), exact.evaluate(system), SPLINES)
        tables, nets = taken.pop()[13:15]
        sizes.append(len(tables))
        assert len(nets) == 1 and splined.evaluator() is evaluator
    assert sizes == [2, 1, 4, 20]
    assert splined.evaluate(system_of(splined, alloy(("Al", "Cu"))))["energy"].isfinite().all()


def test_a_type_that_needs_more_knots_gets_them(taken):
    """All but one are deep in the flat part of tanh; that one is not among the types that the knots were chosen by."""
    splined, exact = (potential_of(METALS, spline=spline) for spline in (True, False))
    for potential in (splined, exact):
        with torch.no_grad():
            weight = potential.model.descriptor.type_embedding.net.layers[0].weight
            weight.fill_(4.0)
            weight[METALS.index("Cu")] = 0.0
            potential.model.descriptor.embeddings.nets[0].layers[0].weight[0] *= 4
    splined.use_spline()
    system = system_of(splined, alloy(("Cu", "Al")))
    assert_close(splined.evaluate(system), exact.evaluate(system), SPLINES)
    assert taken[0][13].shape[1] > 2 * (splined.grid.intervals + 5)


def test_new_weights_are_seen():
    potential = potential_of(METALS, **COMBINATIONS["strip_smooth_davg"])
    system = system_of(potential, alloy())
    after = change_weights(potential, system)
    assert_close(after, composed(potential, system), 1e-9)


def test_types_that_change_in_place_are_seen():
    potential = potential_of()
    system = system_of(potential, alloy(("Cu",)))
    potential.evaluate(system)
    system.types[::2] = 1
    assert_close(potential.evaluate(system), potential_of(spline=False).evaluate(system), SPLINES)


# -- Training


TRAINED = [
    name for name in COMBINATIONS if name not in ("silent", "vacuum", "v2_two_sides")
]  # the last for its time


@pytest.mark.parametrize("name", TRAINED)
def test_training_gradients_are_autograds(name, device):
    keys = COMBINATIONS[name]
    potential = potential_of(
        overflow="extend", fitting={**keys.get("fitting", {})}, **without(keys, "fitting")
    )
    potential.train().to(device)
    system = system_of(potential, alloy(seed=1), alloy(seed=2), device=device)
    wanted = gradients_of(potential, Autograd(potential), system, create_graph=True)
    kinds = [MomentTraining, FusedTraining] if device == "cpu" else [MomentTraining]
    for kind in kinds:
        assert kind.why_not(potential) is None
        found = gradients_of(potential, kind(potential), system)
        assert found.keys() == wanted.keys()
        largest = max(float(g.abs().max()) for g in wanted.values())
        for weight, gradient in wanted.items():
            assert float((found[weight] - gradient).abs().max()) < 1e-6 * largest, (kind, weight)


def without(keys, name):
    return {k: v for k, v in keys.items() if k != name}


def test_training_knows_the_types_of_its_data():
    """Of a model of many elements; what other types there are goes another way."""
    potential = potential_of(METALS, **COMBINATIONS["strip_smooth_davg"]).train()
    types = sorted(METALS.index(x) for x in ("Al", "Cu"))
    potential.use_spline(types=types)
    system, other = (system_of(potential, alloy(x)) for x in (("Cu", "Al"), ("Cu", "W")))
    wanted = gradients_of(potential, Autograd(potential), system, create_graph=True)
    for kind, asked in itertools.product((MomentTraining, FusedTraining), (system, other)):
        reference = (
            wanted
            if asked is system
            else gradients_of(potential, Autograd(potential), other, create_graph=True)
        )
        found = gradients_of(potential, kind(potential), asked)
        largest = max(float(g.abs().max()) for g in reference.values())
        for weight, gradient in reference.items():
            assert float((found[weight] - gradient).abs().max()) < 1e-6 * largest, (kind, weight)
    assert SplineModel(potential, types).sums[0].table().shape[:2] == (2, 3)


def test_forces_are_differentiable():
    """Through the gate, to second order, by the ops."""
    splined, exact = (potential_of(spline=spline, **COMBINATIONS["v2"]) for spline in (True, False))
    atoms = alloy(repeat=1)
    found = []
    for potential in (splined, exact):
        system = system_of(potential, atoms)
        x = system.positions.clone().requires_grad_()
        forces = potential(
            x, system.types, system.cell, system.pbc, system.batch, forces=True, create_graph=True
        )
        (second,) = torch.autograd.grad(forces["forces"].square().sum(), x)
        found.append(second)
    assert relative_error(*found) < 1e-5  # knots are chosen for first derivatives


# -- Simulation


@pytest.mark.parametrize("name", ["concat_davg", "strip_smooth_davg"])
@pytest.mark.parametrize("elements", [("Cu", "Al"), METALS], ids=["two", "many"])
def test_engine_steps_are_the_calculators(name, elements, device):
    dtype = torch.float32 if device == "cuda" else torch.float64
    potential = potential_of(elements, dtype=dtype, **COMBINATIONS[name]).to(device)
    atoms = alloy()
    frames = list(Engine(atoms, potential, EnsembleSettings("nve", 300, 1)).run(8, every=4))
    reference = Atoms(atoms.numbers, frames[-1].positions, cell=atoms.cell, pbc=True)
    reference.calc = MDOps(potential_of(elements, spline=False, **COMBINATIONS[name]))
    tolerance = 1e-6 if device == "cpu" else 1e-4
    np.testing.assert_allclose(frames[-1].forces, reference.get_forces(), atol=tolerance)
    assert frames[-1].energy == pytest.approx(reference.get_potential_energy(), abs=10 * tolerance)


@pytest.mark.parametrize("name", ["concat_one_side", "concat_davg_smooth"])
def test_energy_is_conserved(name, device):
    """400 steps of 1 fs, and 2,000 on a GPU; sel is large enough for all, and nothing jumps at the cutoff."""
    dtype = torch.float32 if device == "cuda" else torch.float64
    potential = potential_of(dtype=dtype, **{**COMBINATIONS[name], "sel": 90}).to(device)
    atoms = alloy()
    atoms.rattle(0.05, seed=4)
    steps = 400 if device == "cpu" else 2000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frames = list(Engine(atoms, potential, EnsembleSettings("nve", 300, 1)).run(steps, every=steps // 20))
    conserved = np.array([frame.conserved for frame in frames]) / len(atoms)
    assert np.abs(conserved - conserved[0]).max() < 5e-4


@pytest.mark.gpu
def test_graphs_of_several_sets_of_types():
    """What a captured graph reads stays while other systems come."""
    potential = potential_of(METALS, dtype=torch.float32, **COMBINATIONS["strip_smooth_davg"]).cuda()
    engine = Engine(alloy(), potential, EnsembleSettings("nve", 300, 1))
    frames = list(engine.run(4, every=4))
    for k in range(20):
        potential.evaluate(system_of(potential, alloy(METALS[k : k + 3]), device="cuda"))
    frames += list(engine.run(4, every=4))
    alone = list(Engine(alloy(), potential, EnsembleSettings("nve", 300, 1)).run(8, every=4))
    np.testing.assert_allclose(frames[-1].positions, alone[-1].positions, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["concat_davg", "strip_smooth_davg"])
def test_results_have_the_same_bits(name):
    potential = potential_of(dtype=torch.float32, **COMBINATIONS[name]).cuda()
    system = on_device(system_of(potential, alloy(repeat=6)), "cuda")
    first, second = (potential.evaluate(system) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", ["dpa1", "se_e2_r"])
def test_steps_that_drop_neighbours_make_their_splines_once(kind, monkeypatch):
    places = 20 if kind == "dpa1" else [10, 10]
    potential = potential_of(kind=kind, sel=places, overflow="truncate")
    system, made = system_of(potential, alloy()), []
    make = SplineModel.__init__

    def counted(*args, **options):
        made.append(options)
        make(*args, **options)

    monkeypatch.setattr(SplineModel, "__init__", counted)
    first = potential.evaluate(system)
    before = len(made)
    for _ in range(3):
        assert_close(potential.evaluate(system), first, 1e-14)
    assert len(made) == before > 0


def test_copies_keep_their_splines():
    potential = potential_of(**COMBINATIONS["strip_smooth_davg"])
    system = system_of(potential, alloy())
    assert_close(copy.deepcopy(potential).evaluate(system), potential.evaluate(system), 1e-14)
    assert isinstance(sample_box(8, potential.type_map), Atoms) and isinstance(
        potential.model.descriptor, dpa1.DPA1
    )
