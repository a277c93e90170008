"""Hybrids on spline moments: DeePMD-kit's answers, every option beside autograd, and training."""

import warnings

import numpy as np
import pytest
import torch
from kind_cases import KINDS
from parts_cases import (
    ATTENTIVE,
    FLOAT32,
    SPLINES,
    A,
    D,
    R,
    T,
    V,
    alloy,
    check_virial,
    gradients_of,
    hybrid,
    parameters_of,
    potential_of,
    systems_of,
)
from reference_cases import SHARED, assert_close, assert_deepmd_kits_answers, relative_error

import mdops
from mdops.evaluators import Autograd, one_op
from mdops.evaluators.one_op import Fused, FusedParts
from mdops.evaluators.splines import FusedSums, Splines
from mdops.jit.sample_box import sample_box
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine, force_provider
from mdops.models import se_e3
from mdops.models.dpa1 import SeAttenV2
from mdops.models.graph import GraphDescriptor
from mdops.models.judge import limits
from mdops.ops import hybrid_potential
from mdops.system import from_atoms, from_tensors

CASES = sorted(p for root in (KINDS, SHARED) for p in root.glob("hybrid*"))
NAMES = ("energy", "atom_energy", "forces", "virial")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("folder", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_answers_are_deepmd_kits(folder, dtype):
    overflow = "truncate" if folder.name.endswith("few_places") else "error"
    potential = mdops.load(folder / "model.dp", dtype=dtype, overflow=overflow)
    has_graph = any(isinstance(part, GraphDescriptor) for part in potential.model.descriptors[0].parts)
    wanted = (FusedParts, Splines) if has_graph else FusedParts
    assert isinstance(potential.evaluator(), wanted), potential.explain()
    assert_deepmd_kits_answers(potential, folder, SPLINES if dtype == "float64" else FLOAT32)


COMBINATIONS = {
    "a_r": ([A, R], {}),
    "r_longer": ([{**A, "rcut": 3.2}, {**R, "rcut": 4.5, "sel": [90, 70]}], {}),
    "two_sides": ([{**A, "type_one_side": False, "resnet_dt": True}, {**A, "rcut": 3.0, "axis_neuron": 7}], {}),
    "excluded": ([A, {**A, "rcut": 3.4, "exclude_types": [[0, 1]]}], {}),
    "excluded_radial": ([A, {**R, "exclude_types": [[0, 1], [1, 1]]}], {"model": {"pair_exclude_types": [[0, 0]]}}),
    "few_places_beyond": ([A, {**R, "rcut": 2.9, "sel": [12, 10], "exclude_types": [[0, 1]]}], {}),
    "silent": ([A, R], {"model": {"atom_exclude_types": [1]}}),
    "parameters": ([A, R], {"fitting": {"numb_fparam": 2, "numb_aparam": 1, "resnet_dt": False}}),
    "vacuum": ([A, R], {"fitting": {"atom_ener": [-1.0, None]}}),
    "mixed": ([D, {**D, "rcut": 3.2, "set_davg_zero": False, "type_one_side": True}], {}),
    "mixed_constants": (
        [{**D, "set_davg_zero": False}, {**V, "concat_output_tebd": False}, V],
        {"fitting": {"numb_fparam": 1}},
    ),
    "mixed_few_places": ([D, {**D, "rcut": 3.2, "sel": 24, "set_davg_zero": False, "exclude_types": [[0, 1]]}], {}),
    "mixed_and_not": ([A, {**D, "set_davg_zero": False, "rcut": 3.0}, R], {}),
    "gate_excluded": ([A, {**V, "exclude_types": [[0, 0]]}], {"model": {"pair_exclude_types": [[1, 1]]}}),
    "with_angles": ([T, A, R], {}),
    "with_attention": ([ATTENTIVE, {**R, "rcut": 3.0}, T], {"fitting": {"numb_aparam": 2}}),
    "attention": ([ATTENTIVE, {**A, "rcut": 3.6}], {}),
    "attentions": (
        [
            {**ATTENTIVE, "set_davg_zero": False, "smooth_type_embedding": True, "attn_layer": 2},
            {**ATTENTIVE, "exclude_types": [[0, 1]], "attn_dotr": False, "concat_output_tebd": False},
            {**D, "rcut": 3.6, "set_davg_zero": False},
        ],
        {"model": {"pair_exclude_types": [[1, 1]]}, "fitting": {"numb_fparam": 1}},
    ),
    "attention_few_places": ([{**A, "rcut": 3.6}, {**ATTENTIVE, "sel": 20, "set_davg_zero": False}, T], {}),
    "shallow": ([A, R], {"fitting": {"neuron": [9], "activation_function": "gelu"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMBINATIONS)
def test_splines_are_the_nets(name):
    parts, keys = COMBINATIONS[name]
    splined, exact = (
        potential_of(hybrid(*parts), spline=spline, overflow="extend", **keys) for spline in (True, False)
    )
    assert isinstance(splined.evaluator(), FusedParts), splined.explain()
    assert isinstance(exact.evaluator(), Autograd)
    for system in systems_of(splined):
        parameters = parameters_of(splined, system)
        wanted = exact.evaluate(system, **parameters, atom_virial=True)
        assert_close(splined.evaluate(system, **parameters), wanted, SPLINES)
        pairs = splined.neighbor_list(system)
        attentive = [FusedSums(splined)] if FusedSums.why_not(splined) is None else []
        assert bool(attentive) == ("attention" in name)
        for evaluator in (splined.evaluator(), *attentive, Splines(splined)):
            with torch.no_grad():
                found, report = evaluator(system, pairs, **parameters, atom_virial=True)
            assert_close(found, wanted, SPLINES, (*NAMES[1:], "atom_virial"))
            assert torch.allclose(found["atom_virial"].sum(0), found["virial"].sum(0), rtol=0, atol=1e-9)
            with torch.no_grad():
                _, expected = Autograd(splined)(system, pairs, **parameters)
            assert torch.allclose(report.nearest, expected.nearest)
            assert all(torch.equal(a, b) for a, b in zip(report.within, expected.within, strict=True))


@pytest.mark.parametrize("overflow", ["truncate", "extend"])
@pytest.mark.parametrize("name", ["a_r", "mixed", "mixed_and_not"])
def test_more_neighbours_than_places(name, overflow):
    parts = [{**part, "sel": 14 if part["type"] == "dpa1" else [10, 8]} for part in COMBINATIONS[name][0]]
    splined, exact = (
        potential_of(hybrid(*parts), spline=spline, overflow=overflow) for spline in (True, False)
    )
    for system in systems_of(splined):
        assert_close(splined.evaluate(system), exact.evaluate(system), SPLINES)


def test_atoms_have_weights():
    """Forces and virials are those of the weighted sum of energies, by every evaluator that takes weights."""
    for parts in ([A, R], [D], [T, A], COMBINATIONS["attentions"][0]):
        descriptor = hybrid(*parts) if len(parts) > 1 else parts[0]
        potential, exact = (
            potential_of(descriptor, spline=spline, overflow="extend") for spline in (True, False)
        )
        for system in systems_of(potential):
            pairs = potential.neighbor_list(system)
            weight = torch.rand(system.atoms, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
            weight[::5] = 0
            positions = system.positions.clone().requires_grad_()
            energies = exact(positions, system.types, system.cell, system.pbc, system.batch, forces=False)[
                "atom_energy"
            ]
            (gradient,) = torch.autograd.grad((weight * energies).sum(), positions)
            attentive = [FusedSums] if FusedSums.why_not(potential) is None else []
            for kind in (*attentive, FusedParts, Splines, Autograd):
                with torch.no_grad():
                    found, _ = kind(potential)(system, pairs, weight=weight)
                assert relative_error(found["forces"], -gradient) < SPLINES
                assert relative_error(found["atom_energy"], energies.detach()) < SPLINES


def test_one_descriptor_is_the_fused_step():
    for part in (A, R, D, V):
        potential = potential_of(part, overflow="extend")
        assert isinstance(potential.evaluator(), Fused)
        for system in systems_of(potential):
            with torch.no_grad():
                found, _ = FusedParts(potential)(system, potential.neighbor_list(system))
            assert_close(found, potential.evaluate(system), 1e-12, NAMES[1:])


def test_threads_share_the_atoms():
    potential, before = potential_of(hybrid(A, R), overflow="extend"), torch.get_num_threads()
    system = from_atoms([alloy(repeat=3)], potential.type_map)
    try:
        torch.set_num_threads(3)
        three = potential.evaluate(system)
        assert all(torch.equal(value, three[name]) for name, value in potential.evaluate(system).items())
        torch.set_num_threads(1)
        assert_close(potential.evaluate(system), three, 1e-13)
    finally:
        torch.set_num_threads(before)


def test_other_parts_in_runs(monkeypatch):
    """Of a few atoms each, as where memory is short: nothing changes."""
    for first, tolerance in ((A, 1e-12), ({**A, "rcut": 3.6}, 1e-10)):  # the latter by `FusedSums`, then
        potential = potential_of(hybrid(first, ATTENTIVE, T), overflow="extend")
        systems = list(systems_of(potential))
        whole = [potential.evaluate(system) for system in systems]
        with monkeypatch.context() as patch:
            patch.setattr(se_e3.SeE3, "atoms_at_once", lambda self, near: 13)
            for system, wanted in zip(systems, whole, strict=True):
                assert_close(potential.evaluate(system), wanted, tolerance)


@pytest.mark.parametrize(
    "parts", [[A, R], [A, T], [ATTENTIVE, {**A, "rcut": 3.6}]], ids=["sums", "angles", "attention"]
)
def test_no_atoms(parts):
    potential = potential_of(hybrid(*parts))
    found = potential.evaluate(
        from_tensors(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), None, None, None, 2)
    )
    assert found["energy"].tolist() == [0.0] and found["forces"].shape == (0, 3)


def test_a_part_that_does_not_depend_on_positions():
    types_alone = {"type": "dpa4", "rcut": 3.0, "channels": 4, "n_blocks": 0, "use_env_seed": False}
    splined, exact = (potential_of(hybrid(A, types_alone), spline=spline) for spline in (True, False))
    assert isinstance(splined.evaluator(), FusedParts), splined.explain()
    system = next(systems_of(splined))
    assert_close(splined.evaluate(system), exact.evaluate(system), SPLINES)


def test_many_types(monkeypatch):
    """Tables are of the types that are there where every sum's types share places."""
    taken = []
    monkeypatch.setattr(
        one_op, "hybrid_potential", lambda *args: taken.append(args) or hybrid_potential(*args)
    )
    elements = ["Li", "Al", "Ti", "Fe", "Ni", "Cu", "Zr", "Mo", "W", "Au"]
    splined, exact = (
        potential_of(hybrid(D, {**V, "set_davg_zero": False}), elements, spline=spline, overflow="extend")
        for spline in (True, False)
    )
    for there, count in ((("Cu", "Al"), 2), (("W",), 1), (elements, 10)):
        system = from_atoms([alloy(there), alloy(there, seed=2)], splined.type_map)
        assert_close(splined.evaluate(system), exact.evaluate(system), SPLINES)
        assert [len(table) for table in taken.pop()[14]] == [count, count]


@pytest.mark.parametrize("part", [D, ATTENTIVE], ids=["sums", "attention"])
def test_a_virtual_atom_first(part):
    """Then absent neighbours have the first type of all, whether or not it is among the atoms."""
    splined, exact = (
        potential_of({**part, "set_davg_zero": False}, spline=spline, overflow="extend")
        for spline in (True, False)
    )
    atoms = alloy(("Al",))
    atoms.symbols[0] = "X"
    system = from_atoms([atoms], splined.type_map)
    assert_close(splined.evaluate(system), exact.evaluate(system), SPLINES)


def test_knots_of_each_part():
    """Each has its own; what `grid` says of all is the worst, and with new weights they are chosen anew."""
    potential = potential_of(hybrid(A, {**R, "neuron": [2]}))
    assert len(potential.grids) == 2 and potential.grid.intervals == max(g.intervals for g in potential.grids)
    assert (
        potential.grid.error
        == max(g.error for g in potential.grids)
        == pytest.approx(potential.spline_error())
    )
    with torch.no_grad():
        for net in potential.model.descriptors[1].embeddings.nets:
            net.layers[0].weight *= 4
    before, system = potential.grids, next(systems_of(potential))
    assert potential.spline_error() > potential.grid.error
    potential.overflow = "extend"
    potential.use_spline()
    assert potential.grids[0] == before[0] and potential.grids[1].intervals > before[1].intervals
    exact = potential_of(hybrid(A, {**R, "neuron": [2]}), spline=False, overflow="extend")
    exact.load_state_dict(potential.state_dict())
    assert_close(potential.evaluate(system), exact.evaluate(system), SPLINES)


def test_what_runs_is_told():
    assert (
        potential_of(hybrid(A, R)).explain() == "fused parts: one op a step for the sums of all descriptors"
    )
    told = potential_of(hybrid(A, T, ATTENTIVE)).explain()
    assert told.endswith("(se_e3, dpa1: its own operations, and autograd)")  # whose cutoffs are shorter
    told = potential_of(hybrid({**A, "rcut": 3.6}, T, ATTENTIVE)).explain()
    assert told.endswith("(se_e3: its own operations, and autograd; dpa1: splines, and one op a layer)")
    kinked = potential_of(hybrid(A, R), fitting={"activation_function": "tanh", "neuron": [5] * 17}).explain()
    assert kinked.startswith("splines: ") and "1 to 16 hidden layers, and this has 17" in kinked


# -- Training


@pytest.mark.parametrize(
    "name", [n for n in COMBINATIONS if n not in ("vacuum", "silent", "mixed_constants")]
)
def test_training_gradients_are_autograds(name):
    parts, keys = COMBINATIONS[name]
    potential = potential_of(hybrid(*parts), overflow="extend", **keys)
    evaluator = potential.evaluator("train")
    assert type(evaluator) is not Autograd, potential.explain("train")
    options = {"create_graph": True} if isinstance(evaluator, Autograd) else {}
    for system in systems_of(potential):
        wanted = gradients_of(potential, Autograd(potential), system, create_graph=True)
        found = gradients_of(potential, evaluator, system, **options)
        largest = max(float(g.abs().max()) for g in wanted.values())
        for weight, gradient in wanted.items():
            other = found.get(weight, torch.zeros_like(gradient))  # of types that are not there
            assert float((other - gradient).abs().max()) < 1e-6 * largest, weight


# -- Simulation


@pytest.mark.parametrize("name", ["a_r", "mixed_and_not"])
def test_engine_steps_are_the_models(name):
    parts, _ = COMBINATIONS[name]
    potential, exact = (
        potential_of(hybrid(*parts), spline=spline, overflow="extend") for spline in (True, False)
    )
    atoms = alloy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frames = list(Engine(atoms, potential, EnsembleSettings("nve", 300, 1)).run(8, every=4))
    last = frames[-1].atoms(atoms)
    np.testing.assert_allclose(frames[-1].forces, exact.compute(last)["forces"], atol=1e-6)


def test_virials_are_slopes():
    potential = potential_of(hybrid(A, R, V), overflow="extend")
    check_virial(potential, next(systems_of(potential)))


def test_float32_boxes_of_water():
    """A step in float32 is that of float64 to its digits, for a box as the benchmarks have it."""
    single = potential_of(hybrid(A, R), ("O", "H"), dtype=torch.float32, overflow="extend")
    double = potential_of(hybrid(A, R), ("O", "H"), overflow="extend")
    system = from_atoms([sample_box(96, ["O", "H"])], double.type_map)
    assert_close(
        single.evaluate(system), double.evaluate(system), FLOAT32, ("atom_energy", "forces", "virial")
    )


# -- On a GPU


def moved(system, device="cuda"):
    return type(system)(
        *(x.to(device) for x in (system.positions, system.types, system.cell, system.pbc, system.batch))
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMBINATIONS)
def test_gpu_is_the_cpu(name):
    """By the op in float32, by spline moments and PyTorch's operations in float64."""
    parts, keys = COMBINATIONS[name]
    double, gpu, fused = (
        potential_of(hybrid(*parts), overflow="extend", dtype=dtype, **keys)
        for dtype in (torch.float64, torch.float64, torch.float32)
    )
    gpu, fused = gpu.cuda(), fused.cuda()
    assert isinstance(gpu.evaluator(), Splines), gpu.explain()
    assert isinstance(fused.evaluator(), FusedParts), fused.explain()
    for system in (*systems_of(double), from_atoms([alloy(repeat=5)], double.type_map)):
        parameters = parameters_of(double, system)
        wanted = double.evaluate(system, **parameters, atom_virial=True)
        there = {k: None if v is None else v.cuda() for k, v in parameters.items()}
        for potential, tolerance in ((gpu, 1e-8), (fused, FLOAT32)):
            found = potential.evaluate(moved(system), **there, atom_virial=True)
            assert_close({k: v.cpu() for k, v in found.items()}, wanted, tolerance, (*NAMES, "atom_virial"))


@pytest.mark.gpu
def test_weights_of_atoms_on_a_gpu():
    for parts in ([A, R], [V], [T, A], COMBINATIONS["attentions"][0]):
        descriptor = hybrid(*parts) if len(parts) > 1 else parts[0]
        double = potential_of(descriptor, overflow="extend")
        gpu = potential_of(descriptor, overflow="extend", dtype=torch.float32).cuda()
        for system in systems_of(double):
            weight = torch.rand(system.atoms, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
            weight[::5] = 0
            with torch.no_grad():
                wanted, _ = FusedParts(double)(system, double.neighbor_list(system), weight=weight)
                there = moved(system)
                attentive = [FusedSums] if FusedSums.why_not(gpu) is None else []
                for kind in (FusedParts, *attentive):
                    found, _ = kind(gpu)(there, gpu.neighbor_list(there), weight=weight.cuda())
                    assert_close({k: v.cpu() for k, v in found.items()}, wanted, FLOAT32, NAMES[1:])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [
        "a_r",
        "mixed_constants",
        "gate_excluded",
        "few_places_beyond",
        "with_angles",
        "attention",
        "attentions",
    ],
)
def test_engine_steps_on_a_gpu(name, monkeypatch, replays):
    """In graphs where absent neighbours need not be looked for."""
    parts, keys = COMBINATIONS[name]
    fitting = {k: v for k, v in keys.get("fitting", {}).items() if k != "numb_fparam"}
    options = {"overflow": "extend", **keys, "fitting": fitting}
    gpu = potential_of(hybrid(*parts), dtype=torch.float32, **options).cuda()
    double, atoms = potential_of(hybrid(*parts), **options), alloy(repeat=3)
    engine = Engine(atoms, gpu, EnsembleSettings("nve", 300, 1))
    if name == "attention":  # runs of a few atoms each, in a graph
        monkeypatch.setattr(SeAttenV2, "atoms_at_once", lambda self, near: 50)
    last = list(engine.run(8, every=4))[-1]
    assert bool(replays) == (name not in ("few_places_beyond", "gate_excluded"))
    wanted = double.compute(last.atoms(atoms))
    assert relative_error(torch.from_numpy(last.forces), torch.from_numpy(wanted["forces"])) < FLOAT32


@pytest.mark.gpu
def test_captured_steps_look_at_the_places_of_all_parts(monkeypatch):
    potential = potential_of(hybrid(A, R), dtype=torch.float32).cuda()
    assert limits(potential.model, "error") == [*A["sel"], *R["sel"]]
    monkeypatch.setattr(force_provider, "limits", lambda *_: [*A["sel"], *(4 for _ in R["sel"])])
    engine = Engine(alloy(), potential, EnsembleSettings("nve", 300, 1))
    list(engine.run(3))
    assert engine.repeats > 0  # done again with all checks, which find nothing


@pytest.mark.gpu
def test_results_have_the_same_bits():
    potential = potential_of(hybrid(A, R, V), dtype=torch.float32, overflow="extend").cuda()
    system = moved(from_atoms([alloy(repeat=6)], potential.type_map))
    first, second = (potential.evaluate(system, atom_virial=True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
