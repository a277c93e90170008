"""Atomic virials, by every evaluator, against the pair formula from autograd in float64.

DeePMD-kit's own numbers are compared in tests/nn/test_reference.py and tests/models.
"""

import copy
import dataclasses
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from reference_cases import (
    DATA,
    SHARED,
    loaded,
    model_path,
    overflow_of,
    references,
    relative_error,
    virials_of_energies,
)
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mdops import Potential, load
from mdops.evaluators import SIMULATE, Autograd
from mdops.evaluators.from_moments import LowBit
from mdops.evaluators.one_op import Fused
from mdops.io import read_model
from mdops.models import model_of_tree
from mdops.models.force_moments import ghosts_of
from mdops.models.neighborhood import Neighborhood
from mdops.ops import neighbor_list, unpack_images
from mdops.quantization import quantize
from mdops.system import AtomsByType

CASES = ("base", "se_a_alloy", "exclude_types", "fparam_aparam", "overflow", "virtual_atoms", "three_types")
ALLOY = model_path("se_a_alloy")
KINDS = DATA.parent / "reference_kinds"


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


MESSAGES = (
    *("dpa2_base", "dpa2_rough_mean", "dpa3_base", "dpa3_sequential", "dpa3_average"),
    *("dpa4_base", "dpa4_bridged", "dpa4_heads", "hybrid_dpa2_a", "linear_messages", "zbl_dpa2"),
)


def chain(potential, **cell):
    """Six atoms one above another, so that messages go up and down."""
    positions = [[0, 0, 0], [1.4, 0.3, 1.5], [0.2, 1.6, 3.1], [1.2, 0.4, 4.8], [0.3, 1.2, 6.6], [1.5, 0.1, 8]]
    atoms = Atoms(np.resize(potential.type_map, 6), positions, **cell)
    atoms.rattle(0.1, seed=1)
    return atoms


def of_kind(case, dtype="float64", **options):
    path = KINDS / case / "model.dp"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, dtype=dtype, overflow="extend", **options)


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_carry_virials_to_where_energies_come_from(case):
    exact, splines, single = of_kind(case, spline=False), of_kind(case), of_kind(case, "float32")
    assert exact.reach > 1
    atoms = chain(exact)
    wanted = virials_of_energies(exact, atoms)
    for potential, tolerance in ((exact, 1e-12), (splines, 1e-6), (single, 5e-5)):
        plain, found = potential.compute(atoms), potential.compute(atoms, atom_virial=True)
        assert relative_error(torch.tensor(found["atom_virial"]), wanted) < tolerance
        for name, value in plain.items():
            assert relative_error(torch.tensor(found[name]), torch.tensor(value)) < tolerance / 10, name
    # The pairs alone, each booked on its neighbour, miss what messages carry.
    pairs = by_pairs(exact, SimpleNamespace(system=exact.system_of([atoms]), fparam=None, aparam=None))
    assert relative_error(pairs, wanted) > 1e-2 or case not in ("dpa2_base", "dpa4_base")


def test_a_blend_of_a_hybrid_that_passes_messages_has_its_table():
    """One op computes the whole blend where no atomic virials are asked for."""
    tree, of_net = (read_model(KINDS / name / "model.dp").model for name in ("zbl_dpa2", "hybrid_dpa2_a"))
    tree["models"][0] |= {name: of_net[name] for name in ("descriptor", "fitting")}
    exact, splines = (
        Potential(model_of_tree(copy.deepcopy(tree), torch.float64), overflow="extend").eval() for _ in "ab"
    )
    splines.use_spline()
    atoms = chain(exact)
    plain, found = splines.compute(atoms), splines.compute(atoms, atom_virial=True)
    assert relative_error(torch.tensor(found["atom_virial"]), virials_of_energies(exact, atoms)) < 1e-6
    for name, value in plain.items():
        assert relative_error(torch.tensor(found[name]), torch.tensor(value)) < 1e-12, name


@pytest.mark.parametrize("case", MESSAGES)
def test_messages_carry_them_over_the_sides_of_a_cell(case):
    """A cell smaller than the cutoff has the numbers of a larger one, in float32 too, and in a batch."""
    potential, single = of_kind(case, spline=False), of_kind(case, "float32")
    atoms = chain(potential, cell=[[3.1, 0.4, 0], [0.2, 3.3, 0.1], [0.3, 0.2, 9.5]], pbc=True)
    found = potential.compute(atoms, atom_virial=True)
    own = torch.tensor(found["atom_virial"])
    assert relative_error(own.sum(0), torch.tensor(found["virial"][0])) < 1e-12
    larger = potential.compute([atoms, atoms * (2, 2, 1)], atom_virial=True)["atom_virial"]
    assert relative_error(torch.tensor(larger[:6]), own) < 1e-12
    assert relative_error(torch.tensor(larger[6:]), own.repeat(4, 1, 1)) < 1e-12
    assert relative_error(torch.tensor(single.compute(atoms, atom_virial=True)["atom_virial"]), own) < 5e-5


def small_crystals(potential):
    """Two systems of cells that are smaller than the cutoff, with a list that has a skin."""
    atoms = chain(potential, cell=[[3.1, 0.4, 0], [0.2, 3.3, 0.1], [0.3, 0.2, 9.5]], pbc=True)
    system = potential.system_of([atoms, atoms * (2, 2, 1)])
    given = system.positions, system.cell, system.pbc, system.types, potential.cutoff + 0.5
    return system, neighbor_list(*given, batch=system.batch, ntypes=len(potential.type_map))


@pytest.mark.parametrize("case", MESSAGES)
def test_room_for_more_ghosts_changes_nothing(case):
    potential = of_kind(case)
    system, pairs = small_crystals(potential)
    wanted = potential.evaluate(system, pairs, atom_virial=True)
    ghosts, count = ghosts_of(pairs, paired=False)
    assert len(ghosts) == count and (ghosts.diff() > 0).all()
    for room in (int(count), int(count) + 1, int(count) + 500):
        listed, again = ghosts_of(pairs, paired=False, room=room)
        assert len(listed) == room and again == count and torch.equal(listed[:count], ghosts)
        found = potential.evaluate(system, pairs._replace(ghosts=listed), atom_virial=True)
        for name, value in wanted.items():
            assert relative_error(found[name], value) < 1e-13, name
    # Too few: an answer that is wrong, and a number that tells it.
    listed, again = ghosts_of(pairs, paired=False, room=int(count) // 2)
    found = potential.evaluate(system, pairs._replace(ghosts=listed), atom_virial=True)
    assert again == count > len(listed)
    # Atoms of dpa4_bridged that are so near to each other send nothing.
    assert relative_error(found["atom_virial"], wanted["atom_virial"]) > 1e-5 or case == "dpa4_bridged"
    nothing, again = ghosts_of(pairs, paired=False, room=0)
    found = potential.evaluate(system, pairs._replace(ghosts=nothing), atom_virial=True)
    assert again == count and len(nothing) == 0 and found["atom_virial"].shape == wanted["atom_virial"].shape


def test_ghosts_are_the_images_among_the_neighbors():
    potential = of_kind("dpa3_base")
    system, pairs = small_crystals(potential)
    every = (pairs.neighbors >= 0) & (pairs.images != 0)
    wanted = {
        (int(atom), *shift.tolist())
        for atom, shift in zip(pairs.neighbors[every], unpack_images(pairs.images[every]), strict=True)
    }
    ghosts, count = ghosts_of(pairs, paired=False)
    shifts = unpack_images((ghosts & (2**30 - 1)).int())
    found = {(atom, *shift) for atom, shift in zip((ghosts >> 30).tolist(), shifts.tolist(), strict=True)}
    assert found == wanted and len(found) == count > 100
    # Of an atom and its virtual atom one image is made of both.
    both, of_both = ghosts_of(pairs, paired=True)
    assert of_both == len({(atom // 2, *shift) for atom, *shift in wanted}) < count
    assert set((both >> 30).tolist()) == {atom // 2 for atom, *_ in wanted}
    none = neighbor_list(system.positions, None, None, system.types, 3.0)
    assert ghosts_of(none, paired=False)[1] == 0 == len(ghosts_of(none, paired=False)[0])


@pytest.mark.parametrize("case", ["dpa3_base", "dpa4_base"])
def test_with_ghosts_listed_the_host_reads_nothing(case):
    """A CUDA graph can have these steps: no shape and no choice depends on numbers, which fake tensors lack."""
    potential = of_kind(case, spline=False)
    system, pairs = small_crystals(potential)
    system.find_atoms_by_type(len(potential.type_map))
    slots = pairs.neighbors.numel()
    ghosts, _ = ghosts_of(pairs, paired=False, room=2000)
    roomy = pairs._replace(graph_room=(slots, 50 * slots, slots), ghosts=ghosts)
    numbers = FakeTensorMode(allow_non_fake_inputs=True)

    def without(value):
        return numbers.from_tensor(value) if isinstance(value, torch.Tensor) else value

    fields = {field.name: without(getattr(system, field.name)) for field in dataclasses.fields(system)}
    fake = type(system)(**fields)
    fake.atoms_by_type = AtomsByType(fake.types, list(map(without, system.known_atoms_by_type())))
    evaluator = Autograd(potential)
    with torch.no_grad(), numbers:
        found, _ = evaluator(fake, type(roomy)(*map(without, roomy)), check=False, atom_virial=True)
        listed, _ = ghosts_of(type(roomy)(*map(without, roomy)), paired=False, room=2000)
        assert found["atom_virial"].shape == (system.atoms, 3, 3) and listed.shape == (2000,)
        with pytest.raises(DataDependentOutputException):
            unlisted = roomy._replace(ghosts=None)
            evaluator(fake, type(roomy)(*map(without, unlisted)), check=False, atom_virial=True)


@pytest.mark.parametrize("case", ["dpa2_base", "dpa3_base", "dpa4_base"])
def test_float32_has_them_wherever_the_systems_of_a_batch_are(case):
    single = of_kind(case, "float32")
    here = chain(single, cell=[[3.1, 0.4, 0], [0.2, 3.3, 0.1], [0.3, 0.2, 9.5]], pbc=True)
    far, open_far = here.copy(), chain(single)
    far.positions += 1e5
    open_far.positions -= 1e5
    wanted = single.compute([here, here, chain(single)], atom_virial=True)["atom_virial"]
    found = single.compute([here, far, open_far], atom_virial=True)["atom_virial"]
    assert relative_error(torch.tensor(found), torch.tensor(wanted)) < 1e-5


@pytest.mark.parametrize("case", ["dpa2_base", "dpa4_base"])
def test_those_of_messages_have_no_graph(case):
    potential = of_kind(case)
    system = potential.system_of([chain(potential)])
    pairs = potential.neighbor_list(system)
    for use in ("differentiate", "train"):
        with pytest.raises(TypeError, match="disable gradients"):
            potential.evaluator(use)(system, pairs, atom_virial=True)
        with torch.no_grad():
            found, _ = potential.evaluator(use)(system, pairs, atom_virial=True)
        wanted = virials_of_energies(of_kind(case, spline=False), chain(potential))
        assert relative_error(found["atom_virial"], wanted) < 1e-6


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
