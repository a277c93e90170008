"""Atomic virials, by every evaluator, against the pair formula from autograd in float64.

DeePMD-kit's own numbers are compared in tests/nn/test_reference.py and tests/models.
"""

import dataclasses
import warnings

import numpy as np
import pytest
import torch
from ase.build import bulk
from reference_cases import DATA, SHARED, loaded, model_path, overflow_of, references, relative_error

from mdops import load
from mdops.evaluators import SIMULATE
from mdops.evaluators.from_moments import LowBit
from mdops.evaluators.one_op import Fused
from mdops.models.neighborhood import Neighborhood
from mdops.quantization import quantize

CASES = ("base", "se_a_alloy", "exclude_types", "fparam_aparam", "overflow", "virtual_atoms", "three_types")
ALLOY = model_path("se_a_alloy")


def by_pairs(potential, one):
    """-de_i/dd (x) d of each pair d from i to j, added to j, in plain PyTorch; by the nets themselves."""
    pairs = potential.neighbor_list(one.system)
    near = Neighborhood.of(one.system, pairs, potential.cutoff, torch.float64)
    near = dataclasses.replace(near, truncates=potential.overflow == "truncate")
    d = near.displacements.requires_grad_()
    energy = potential.model(near, one.fparam, one.aparam)["atom_energy"].sum()
    (g,) = torch.autograd.grad(energy, d)
    there = near.neighbors >= 0
    virials = torch.zeros(one.system.atoms, 3, 3, dtype=torch.float64)
    products = -g[there][:, :, None] * d.detach()[there][:, None, :]
    return virials.index_add(0, near.neighbors[there].long(), products)


def quiet(case, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(model_path(case), overflow=overflow_of(case), **options)


@pytest.mark.parametrize("case", CASES)
def test_every_evaluator_has_the_pair_formulas(case):
    exact = loaded(case, spline=False)
    for one in references(DATA / case):
        wanted = by_pairs(exact, one)
        for dtype, tolerance in (("float64", 1e-7), ("float32", 5e-5)):
            potential = loaded(case, dtype)
            kinds = [kind for kind in SIMULATE if kind.why_not(potential) is None]
            assert len(kinds) >= 2
            for kind in kinds:
                with torch.no_grad():
                    answers, _ = kind(potential)(
                        one.system,
                        potential.neighbor_list(one.system),
                        one.fparam,
                        one.aparam,
                        atom_virial=True,
                    )
                found = answers["atom_virial"]
                assert found.dtype == torch.float64
                assert relative_error(found, wanted) < tolerance, (one.name, dtype, kind.name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", ["base", "se_a_alloy", "overflow"])
def test_their_sum_is_the_virial_and_nothing_else_changes(case, dtype):
    potential = loaded(case, dtype)
    for one in references(DATA / case):
        s = one.system
        plain, found = potential.evaluate(s), potential.evaluate(s, atom_virial=True)
        assert "atom_virial" not in plain
        for name, value in plain.items():
            assert torch.equal(value, found[name]), name
        total = torch.zeros_like(found["virial"]).index_add(0, s.batch.long(), found["atom_virial"])
        # The virial is summed from d (x) g, and the atoms' from g (x) d, each in its own order.
        rounding = {"float32": 4e-6, "float64": 1e-13}[dtype]
        assert relative_error(total, found["virial"].transpose(1, 2)) < rounding
        assert relative_error(total, found["virial"]) < rounding


def test_threads_and_batches_change_only_rounding():
    potential = load(ALLOY, dtype="float64")
    (one, *_) = references(DATA / "se_a_alloy")
    whole = potential.evaluate(one.system, atom_virial=True)["atom_virial"]
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found = potential.evaluate(one.system, atom_virial=True)["atom_virial"]
            assert relative_error(found, whole) < 1e-12
    finally:
        torch.set_num_threads(before)
    s = one.system
    for k in range(s.count):
        own, frame = s.batch == k, slice(k, k + 1)
        alone = type(s)(
            s.positions[own], s.types[own], s.cell[frame], s.pbc[frame], torch.zeros_like(s.batch[own])
        )
        found = potential.evaluate(alone, atom_virial=True)["atom_virial"]
        assert relative_error(found, whole[own]) < 1e-12


@pytest.mark.skipif(not torch.ops.mdops.cpu_bf16(), reason="this CPU has no bfloat16 units")
def test_other_products_have_them_too():
    (one, *_) = references(DATA / "se_a_alloy")
    wanted = load(ALLOY).evaluate(one.system, atom_virial=True)["atom_virial"]
    found = load(ALLOY, matmul="bf16x3").evaluate(one.system, atom_virial=True)["atom_virial"]
    assert 0 < relative_error(found, wanted) < 1e-4


def test_a_low_bit_models_are_of_its_own_products():
    """They sum to the virial of the same evaluator, and not to that of exact products."""
    potential = quantize(load(ALLOY), "w8a8")
    (one, *_) = references(DATA / "se_a_alloy")
    assert isinstance(potential.evaluator(), LowBit)
    found = potential.evaluate(one.system, atom_virial=True)
    total = torch.zeros_like(found["virial"]).index_add(0, one.system.batch.long(), found["atom_virial"])
    assert relative_error(total, found["virial"]) < 1e-5


def test_compute_gives_them_in_the_users_order():
    potential = load(ALLOY, dtype="float64")
    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    atoms.symbols[:] = np.resize(potential.type_map, len(atoms))
    atoms.rattle(0.1, seed=1)
    order = np.random.default_rng(0).permutation(len(atoms))
    found = potential.compute(atoms, atom_virial=True)["atom_virial"]
    shuffled = potential.compute(atoms[order], atom_virial=True)["atom_virial"]
    np.testing.assert_allclose(shuffled, found[order], atol=1e-11)


@pytest.mark.gpu
@pytest.mark.parametrize("matmul", ["float32", "tf32"])
@pytest.mark.parametrize("case", ["se_a_alloy", "base", "three_types"])
def test_a_gpus_fused_step_has_them(case, matmul):
    if case != "se_a_alloy" and matmul != "float32":
        pytest.skip("one case is enough")
    gpu, cpu = quiet(case, device="cuda", matmul=matmul), quiet(case, dtype="float64")
    assert isinstance(gpu.evaluator(), Fused)
    for one in references(DATA / case):
        s = one.system
        fields = (s.positions, s.types, s.cell, s.pbc, s.batch)
        system = type(s)(*(x.cuda() for x in fields))
        wanted = cpu.evaluate(s, atom_virial=True)
        plain = gpu.evaluate(system)
        found = gpu.evaluate(system, atom_virial=True)
        again = gpu.evaluate(system, atom_virial=True)["atom_virial"]
        for name, value in plain.items():
            assert torch.equal(value, found[name]), name
        assert torch.equal(again, found["atom_virial"])
        error = relative_error(found["atom_virial"].cpu(), wanted["atom_virial"])
        assert error < (1e-3 if matmul == "tf32" else 5e-5), error
        total = torch.zeros_like(found["virial"]).index_add(0, system.batch.long(), found["atom_virial"])
        assert relative_error(total, found["virial"]) < 2e-6


@pytest.mark.gpu
def test_a_gpus_separate_ops_have_them():
    gpu, cpu = load(ALLOY, device="cuda", dtype="float64"), load(ALLOY, dtype="float64")
    for one in references(DATA / "se_a_alloy"):
        s = one.system
        system = type(s)(*(x.cuda() for x in (s.positions, s.types, s.cell, s.pbc, s.batch)))
        found = gpu.evaluate(system, atom_virial=True)["atom_virial"].cpu()
        assert relative_error(found, cpu.evaluate(s, atom_virial=True)["atom_virial"]) < 1e-10


@pytest.mark.gpu
@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not here")
def test_many_atoms_on_a_gpu():
    """Water, 12,288 atoms: rows by the chain of the fitting net, and several chunks of a batch."""
    path = SHARED / "water_se_a" / "model.dp"
    gpu, cpu = load(path, device="cuda"), load(path)
    (one, *_) = references(SHARED / "water_se_a")
    s, times = one.system, 64
    own = s.batch == 0
    atoms = int(own.sum())
    system = type(s)(
        s.positions[own].repeat(times, 1),
        s.types[own].repeat(times),
        s.cell[:1].repeat(times, 1, 1),
        s.pbc[:1].repeat(times, 1),
        torch.arange(times, dtype=torch.int32).repeat_interleave(atoms),
    )
    moved = type(s)(
        *(x.cuda() for x in (system.positions, system.types, system.cell, system.pbc, system.batch))
    )
    found, wanted = (
        p.evaluate(x, atom_virial=True)["atom_virial"].cpu() for p, x in ((gpu, moved), (cpu, system))
    )
    assert relative_error(found, wanted) < 1e-4
    assert torch.equal(found[:atoms], found[-atoms:])
