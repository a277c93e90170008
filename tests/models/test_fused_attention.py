"""The evaluator of DPA-1 with attention on splines: DeePMD-kit's answers, the nets' own, every option."""

import functools
import gc
import itertools
import sys
import threading

import numpy as np
import pytest
import torch
from ase import Atoms
from parts_cases import ATTENTIVE as ATTENTION
from parts_cases import alloy, hybrid, potential_of
from reference_cases import SHARED, references, relative_error
from test_dpa1 import KINDS, assert_close, moved

import mdops
from mdops import Potential
from mdops.evaluators import Autograd, one_op
from mdops.evaluators.kept import OfTypes
from mdops.evaluators.splines import FusedSums
from mdops.io import read_model
from mdops.models import Descriptor, DescriptorFitting, Features, NeighborSpec, dpa1
from mdops.models.dpa1 import SeAttenV2
from mdops.models.standard import StandardOptions
from mdops.options import parse
from mdops.system import from_atoms
from mdops.tables.attention_tables import AttentionTables
from mdops.tables.grids import attentions_of
from mdops.tables.spline import embed

CASES = sorted(
    path.name
    for path in KINDS.iterdir()
    if path.name.startswith(("dpa1", "se_atten"))
    and "hybrid" not in path.name
    and read_model(path / "model.dp").model["descriptor"]["attention_layers"]["layer_num"]
)
KINKED = "dpa1_strip_rough"  # silut, which no knots of the most there are follow to the bound
# Largest error of energies, and of what is differentiated.
SPLINES, FLOAT32 = (1e-9, 1e-7), (5e-6, 3e-5)


@functools.cache
def load(case, dtype="float64", device="cpu"):
    overflow = "truncate" if "overflow" in case else "error"
    return mdops.load(KINDS / case / "model.dp", dtype=dtype, overflow=overflow, device=device)


def test_there_are_cases():
    assert len(CASES) > 15 and KINKED in CASES


@pytest.mark.filterwarnings("ignore:splines of the embedding nets")
@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", "float64"), ("cpu", "float32"), pytest.param("cuda", "float32", marks=pytest.mark.gpu)],
)
@pytest.mark.parametrize("case", CASES)
def test_answers_are_deepmd_kits(case, dtype, device):
    potential = load(case, dtype, device)
    assert isinstance(potential.evaluator(), FusedSums) == (case != KINKED), potential.explain()
    tolerance = SPLINES if dtype == "float64" and case != "dpa1_float32" else FLOAT32
    for one in references(KINDS / case):
        system = one.system if device == "cpu" else moved(one.system)
        found = potential.evaluate(system, None, one.fparam, one.aparam, atom_virial=True)
        assert {"energy", "forces", "virial", "atom_energy", "atom_virial"} <= found.keys()
        assert_close(found, one.answers, tolerance, one.name)


ATTENTIVE = {
    "type": "dpa1", "rcut": 3.5, "rcut_smth": 1.0, "sel": 30, "neuron": [4, 8], "axis_neuron": 3, "attn": 6,
}  # fmt: skip


def random_model(seed, dtype=torch.float64, elements=("O", "H", "C"), **keys):
    """A standard model of random weights with statistics that are not trivial."""
    descriptor = {**ATTENTIVE, "attn_layer": 2, "seed": seed, **keys}
    section = {"type_map": list(elements), "descriptor": descriptor, "fitting_net": {"neuron": [8, 8]}}
    model = DescriptorFitting.random(parse(StandardOptions, section), seed, dtype)
    d, gen = model.descriptor, torch.Generator().manual_seed(seed)
    if not d.options.set_davg_zero:
        d.mean.copy_(0.1 * torch.rand(d.mean.shape, generator=gen, dtype=torch.float64))
    d.std.copy_(0.2 + 0.2 * torch.rand(d.std.shape, generator=gen, dtype=torch.float64))
    potential = Potential(model)
    potential.use_spline()
    return potential.eval()


def box(elements, atoms=24, length=7.0, seed=1):
    random = np.random.default_rng(seed)
    grid = np.array(list(itertools.product(range(3), repeat=3)))[:atoms] * (length / 3)
    positions = grid + 0.4 * random.random(grid.shape)
    return Atoms(random.choice(list(elements), len(grid)), positions, cell=[length] * 3, pbc=True)


def tables_of(potential, kind=AttentionTables):
    """Those that are kept of a potential now."""
    d = potential.model.descriptor
    kept = [x for x in gc.get_objects() if type(x) is kind]
    return [x for x in kept if getattr(x.splines, "sums", [x.splines])[0].descriptor is d]


def exactly(potential, system):
    near = potential.neighbor_list(system)
    with torch.no_grad():
        answers, report = Autograd(potential)(system, near, atom_virial=True)
    return potential.with_sums(answers, system), report


OPTIONS = {
    "type_one_side": (False, True),
    "attn_dotr": (True, False),
    "normalize": (True, False),
    "smooth_type_embedding": (False, True),
    "tebd_input_mode": ("concat", "strip"),
    "set_davg_zero": (True, False),
    "exclude_types": ([], [[0, 1], [2, 2]]),
    "temperature": (None, 0.7),
    "resnet_dt": (False, True),
    "concat_output_tebd": (True, False),
    "use_tebd_bias": (False, True),
    "env_protection": (0.0, 0.1),
    "attn_layer": (1, 3),
}


@pytest.mark.parametrize("degrees", [False, True])
@pytest.mark.parametrize("seed", range(16))
def test_random_options(seed, degrees):
    """The nets themselves by autograd: values, and what is said of the neighbours. With moments of higher degrees there
    need be no layers."""
    random = np.random.default_rng(seed)
    keys = {name: choices[random.integers(2)] for name, choices in OPTIONS.items()}
    if degrees:
        keys |= {"attn_layer": int(random.integers(3)), "lmax": int(random.integers(2, 5))}
    potential = random_model(seed, **keys)
    system = from_atoms([box("OHC", seed=seed), box("OH", atoms=5, seed=seed)], potential.type_map)
    evaluator = potential.evaluator()
    assert isinstance(evaluator, FusedSums), potential.explain()
    wanted, report = exactly(potential, system)
    assert_close(potential.evaluate(system, atom_virial=True), wanted, SPLINES, f"{keys}")
    _, own = evaluator(system, potential.neighbor_list(system))
    assert torch.equal(own.within[0], report.within[0])
    torch.testing.assert_close(own.nearest, report.nearest, rtol=1e-14, atol=0)


@pytest.mark.parametrize("size", [1, 7, 10**6])
@pytest.mark.parametrize("case", ["dpa1_smooth", "dpa1_rough", "dpa1_parameters", "se_atten_v2_attention"])
def test_atoms_in_runs_have_the_same_answers(case, size, monkeypatch, device):
    potential = load(case, "float32" if device == "cuda" else "float64", device)
    monkeypatch.setattr(dpa1, "_ATOMS_IN_CACHE", size)
    monkeypatch.setattr(dpa1, "_NUMBERS_ON_GPU", size * potential.model.descriptor._numbers(20))
    for one in references(KINDS / case):
        system = one.system if device == "cpu" else moved(one.system)
        found = potential.evaluate(system, None, one.fparam, one.aparam, atom_virial=True)
        assert_close(found, one.answers, SPLINES if device == "cpu" else FLOAT32, one.name)


WIDE = {"neuron": [25, 50, 100], "attn": 128, "attn_layer": 3}
COORDINATES = {
    "concat": {"type_one_side": True},
    "smooth": {"type_one_side": True, "smooth_type_embedding": True},
    "strip": {"type_one_side": True, "tebd_input_mode": "strip", "smooth_type_embedding": True},
    "not normalised": {"normalize": False, "attn_dotr": False, "set_davg_zero": False},
}


@pytest.mark.parametrize("case", COORDINATES)
def test_layers_in_coordinates_are_the_layers(case, device):
    """Where rows have fewer dimensions than numbers, products are as wide as these; answers stay the nets'."""
    potential = random_model(7, elements=("O", "H"), **WIDE, **COORDINATES[case])
    system = from_atoms([box("OH"), box("H", atoms=5)], potential.type_map)
    wanted, _ = exactly(potential, system)
    dtype = torch.float32 if device == "cuda" else torch.float64
    potential = potential.to(device, dtype)
    potential.use_spline()
    found = potential.evaluate(system if device == "cpu" else moved(system), atom_virial=True)
    assert_close(found, wanted, SPLINES if device == "cpu" else FLOAT32, case)
    (tables,) = tables_of(potential)
    first, second, third = (form.weights for form in tables.layers)
    gated = case == "strip"
    assert tables.layers[0].normalize == (gated and potential.model.descriptor.options.normalize)
    assert (first.factors is None) == (not gated)
    assert (
        first.project is None and len(first.out) <= 64 and tables.table.shape[3] == 104 + 3 * len(first.out)
    )
    assert second.factors is not None and len(first.out) < len(second.out) <= 96
    assert third.project.shape[0] == 100 and len(third.out) >= len(second.out)


def test_directions_that_bend_too_much_are_made_in_the_layer():
    """Where q goes almost through zero its direction turns at once, which no spline follows."""
    potential = random_model(7, elements=("O", "H"), **WIDE, **COORDINATES["concat"])
    layer = potential.model.descriptor.layers[0]
    with torch.no_grad():
        g = embed(potential.model.descriptor, torch.tensor([0.3]))[0, 0]
        layer.project.bias[:128] = -(g @ layer.project.weight[:, :128])[0] + 1e-4
    system = from_atoms([box("OH")], potential.type_map)
    wanted, _ = exactly(potential, system)
    potential.use_spline()
    assert_close(potential.evaluate(system), wanted, SPLINES)
    (tables,) = tables_of(potential)
    first = tables.layers[0]
    assert first.normalize and first.weights.project is None and first.weights.factors is not None


def test_rows_of_many_types_stay_as_wide_as_they_are():
    elements = ["O", "H", "C", "N", "Cu", "Al", "Fe", "Ag"]
    potential = random_model(5, elements=elements, **WIDE)
    system = from_atoms([box(elements)], potential.type_map)
    assert_close(potential.evaluate(system), exactly(potential, system)[0], SPLINES)
    (tables,) = tables_of(potential)
    assert all(form.weights.factors is None for form in tables.layers) and tables.table.shape[3] == 100


def test_virtual_atoms_and_neighbours_beyond_the_cutoff():
    """In a list with a skin."""
    potential = random_model(3, smooth_type_embedding=True, set_davg_zero=False)
    system = from_atoms([box("OHC")], potential.type_map)
    system.types[[0, 5]] = -1
    arguments = system.positions, system.cell, system.pbc, system.types, potential.cutoff + 1.0
    skin = mdops.ops.neighbor_list(*arguments, batch=system.batch, ntypes=3)
    found = potential.evaluate(system, skin)
    assert not found["atom_energy"][[0, 5]].any() and not found["forces"][[0, 5]].any()
    assert_close(found, exactly(potential, system)[0], SPLINES)


def test_no_atoms_and_none_with_a_neighbour():
    potential = random_model(3)
    alone = from_atoms([Atoms("OH", [[0, 0, 0], [0, 0, 20]])], potential.type_map)
    assert_close(potential.evaluate(alone), exactly(potential, alone)[0], SPLINES)
    nobody = from_atoms([Atoms()], potential.type_map)
    assert potential.evaluate(nobody)["forces"].shape == (0, 3)


def test_nan_stays_nan():
    potential = random_model(3)
    system = from_atoms([box("OHC")], potential.type_map)
    near = potential.neighbor_list(system)
    system.positions[3] = torch.nan
    answers, _ = potential.evaluator()(system, near, check=False)
    assert answers["atom_energy"][3].isnan() and answers["forces"][3].isnan().all()


@pytest.mark.parametrize("part", ["project", "out"])
def test_weights_that_are_no_numbers_are_told(part):
    """As by the nets: every answer is NaN, and nothing is raised."""
    potential = random_model(3, **WIDE)
    with torch.no_grad():
        getattr(potential.model.descriptor.layers[0], part).weight[0, 0] = torch.nan
    found = potential.evaluate(from_atoms([box("OHC")], potential.type_map))
    assert found["energy"].isnan().all() and found["forces"].isnan().all()


def test_only_types_that_are_there_have_tables():
    """And pairs that the knots were not chosen by are looked at when they come."""
    elements = ["O", "H", "C", "N", "Cu", "Al", "Fe", "Ag", "Au", "Pt", "Ni", "Si"]
    potential = random_model(5, elements=elements, set_davg_zero=False)
    for names in (("Si", "H"), ("Cu", "N", "Al"), ("H",)):
        system = from_atoms([box(names)], potential.type_map)
        assert_close(potential.evaluate(system), exactly(potential, system)[0], SPLINES)
    tables = tables_of(potential)
    assert {len(t.splines.kinds.numbers) for t in tables} == {1, 2, 3}
    assert all(len(t.table) == len(t.splines.kinds.numbers) for t in tables)


def test_tables_that_would_be_too_large(monkeypatch):
    monkeypatch.setattr("mdops.evaluators.attention_sums._MOST_NUMBERS", 100)
    potential = random_model(3)
    system = from_atoms([box("OHC")], potential.type_map)
    with pytest.warns(UserWarning, match="tables for 3 types at once would have"):
        found = potential.evaluate(system)
    assert_close(found, exactly(potential, system)[0], (1e-14, 1e-14))


def test_new_weights_make_new_tables():
    potential = random_model(3)
    system = from_atoms([box("OHC")], potential.type_map)
    before = potential.evaluate(system)["energy"].clone()
    with torch.no_grad():
        potential.model.descriptor.embeddings.net().layers[0].weight.mul_(1.01)
        potential.model.descriptor.layers[1].out.weight.mul_(1.01)
    found = potential.evaluate(system)
    assert float((found["energy"] - before).abs().max()) > 1e-9
    assert_close(found, exactly(potential, system)[0], SPLINES)


def test_what_runs_is_told():
    potential = random_model(3)
    assert potential.explain().startswith("fused sums: splines of the embedding nets, one op a layer")
    assert "intervals" in potential.splines() and potential.spline_error() <= 1e-8
    assert attentions_of(potential.model)
    potential.attention_grids = ()
    assert isinstance(potential.evaluator(), Autograd) and "spline=False" in potential.explain()
    assert potential.explain("train").startswith("autograd: ")


def test_nets_with_kinks_stay_exact():
    with pytest.warns(UserWarning, match="kinks"):
        potential = random_model(3, activation_function="relu")
    assert isinstance(potential.evaluator(), Autograd) and "kinks" in potential.explain()


def test_neighbours_nearer_than_the_knots_are_told():
    potential = random_model(3)
    potential.use_spline(r_min=2.5)
    with pytest.warns(UserWarning, match=r"nearer than 2\.5 A"):
        potential.evaluate(from_atoms([box("OHC")], potential.type_map))


@pytest.mark.parametrize("smooth", [False, True])
def test_water_of_benchmark_size(smooth):
    """float32 against float64's nets: 192 atoms, as they are in the reference."""
    if not (SHARED / "water_dpa1").is_dir():
        pytest.skip("../shared is not here")
    found = []
    for dtype, spline in (("float64", False), ("float32", True)):
        potential = mdops.load(SHARED / "water_dpa1" / "model.dp", dtype=dtype, spline=spline)
        potential.model.descriptor.options.smooth_type_embedding = smooth
        (one,) = references(SHARED / "water_dpa1")
        found.append(potential.evaluate(one.system))
    assert isinstance(potential.evaluator(), FusedSums)
    # A neighbour of rough attention that is at the cutoff in one precision has a direction in the other one.
    errors = (found[0]["forces"] - found[1]["forces"]).abs().amax(1) / found[0]["forces"].abs().max()
    assert (errors > 3e-5).float().mean() <= (0.0 if smooth else 0.1)
    assert relative_error(found[1]["energy"], found[0]["energy"]) < 1e-6


ANGLES = {"type": "se_e3", "rcut": 3.0, "rcut_smth": 1.0, "sel": [12, 12, 12], "neuron": [3, 6]}
HYBRIDS = {
    "two": [{**ATTENTIVE, "attn_layer": 1}, {**ATTENTIVE, "attn_layer": 2, "set_davg_zero": False}],
    "shorter": [{**ATTENTIVE, "attn_layer": 1}, {**ATTENTIVE, "attn_layer": 1, "rcut": 2.8}],
    "angles": [ANGLES, {**ATTENTIVE, "attn_layer": 2, "exclude_types": [[0, 1]]}],
    "degrees": [
        {**ATTENTIVE, "attn_layer": 0, "lmax": 3},
        {**ATTENTIVE, "attn_layer": 1, "lmax": 2, "set_davg_zero": False},
    ],
}


def hybrid_of(name, dtype=torch.float64, *, spline=True):
    section = {
        "type_map": ["O", "H", "C"],
        "descriptor": {"type": "hybrid", "list": HYBRIDS[name]},
        "fitting_net": {"neuron": [8, 8], "numb_aparam": 1},
        "pair_exclude_types": [[1, 2]],
    }
    model = DescriptorFitting.random(parse(StandardOptions, section), 4, torch.float64)
    for k, part in enumerate(model.descriptors):
        random = np.random.default_rng(k)
        part.set_statistics(random.uniform(0.02, 0.07, 3), random.uniform(0.15, 0.3, (3, 2)))
    potential = Potential(model.to(dtype), overflow="extend").eval()
    if spline:
        potential.use_spline()
    return potential


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", torch.float64),
        ("cpu", torch.float32),
        pytest.param("cuda", torch.float32, marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_without_plain_sums(name, dtype, device, monkeypatch):
    """Beside the nets themselves; in runs of a few atoms, too."""
    potential, exact = hybrid_of(name, dtype).to(device), hybrid_of(name, spline=False)
    assert isinstance(potential.evaluator(), FusedSums), potential.explain()
    assert "dpa1: splines, and one op a layer" in potential.explain()
    assert ("its own operations" in potential.explain()) == (name in ("shorter", "angles"))
    frames = [box("OHC", seed=2), box("OH", atoms=5, seed=3)]
    system = from_atoms(frames, exact.type_map)
    aparam = torch.randn(system.atoms, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = exact.evaluate(system, aparam=aparam, atom_virial=True)
    there = system if device == "cpu" else moved(system)
    for at_once in (100, 7):
        monkeypatch.setattr(SeAttenV2, "atoms_at_once", lambda self, near, most=at_once: most)
        found = potential.evaluate(there, aparam=aparam.to(device), atom_virial=True)
        assert_close(found, wanted, SPLINES if dtype == torch.float64 else FLOAT32)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["dpa1_smooth", "dpa1_rough", "se_atten_v2_attention", "dpa1_parameters"])
def test_a_step_in_a_graph_is_the_step(case):
    potential = load(case, "float32", "cuda")
    one = next(iter(references(KINDS / case)))
    system = moved(one.system)
    given = [None if x is None else torch.as_tensor(x).cuda() for x in (one.fparam, one.aparam)]
    near, evaluator = potential.neighbor_list(system), potential.evaluator()
    assert evaluator.captures
    with torch.no_grad():
        wanted, _ = evaluator(system, near, *given, check=False)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found, _ = evaluator(system, near, *given, check=False)
        graph.replay()
    for name in ("atom_energy", "forces", "virial"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-5)


class Crowding(Descriptor):
    """Of each atom the sum over its neighbours of how many neighbours these have, faded: it looks two steps far."""

    kind = "crowding"

    def __init__(self, cutoff):
        super().__init__()
        self.radius = cutoff

    @property
    def neighbors(self):
        return (NeighborSpec(self.radius, None, True),)

    @property
    def width(self):
        return 1

    def forward(self, near):
        there = near.neighbor_types < near.ntypes
        squared = torch.where(there, near.displacements.square().sum(-1), self.radius**2)
        fade = (1 - squared / self.radius**2) ** 3
        own = fade.sum(1)
        return Features((fade * own[near.neighbors.long().clamp(min=0)]).sum(1, keepdim=True))

    from_tree = random = to_tree = None


def test_a_part_that_looks_further_than_its_neighbours_keeps_all_atoms_together():
    """Attention alone would go in runs of 64 atoms, where other atoms' rows are not there."""
    descriptor = hybrid(ATTENTION, {**ATTENTION, "seed": 7})
    potential = potential_of(descriptor, spline=False)
    d = potential.model.descriptor
    d.members[1] = Crowding(3.6)
    for net in potential.model.fitting.nets.nets:
        net.layers[0].weight = torch.nn.Parameter(net.layers[0].weight[: d.width].clone())
    potential.use_spline()
    system = from_atoms([alloy(repeat=3)], potential.type_map)
    assert system.atoms > 64 and isinstance(potential.evaluator(), FusedSums)
    wanted, _ = exactly(potential, system)
    assert_close(potential.evaluate(system), wanted, SPLINES)


@pytest.mark.parametrize("layers", [0, 1])
def test_tables_of_the_latest_sets_of_types_are_kept_alone(layers):
    """Of any system with other elements there are others."""
    elements = ("H", "Be", "C", "O", "Ne")
    descriptor = {**ATTENTION, "attn_layer": layers}
    potential = potential_of(descriptor, elements, dtype=torch.float32)
    atoms = alloy(elements[:1], repeat=1)
    made, sets = [], [some for count in (1, 2, 3) for some in itertools.combinations(elements, count)]
    for some in sets[:18]:
        atoms.symbols = [some[k % len(some)] for k in range(len(atoms))]
        potential.evaluate(from_atoms([atoms], potential.type_map))
        made.append(len(tables_of(potential, AttentionTables if layers else one_op._Tables)))
    assert made[:16] == list(range(1, 17)) and set(made[16:]) == {16}


def test_large_tables_are_kept_while_their_numbers_are_few():
    numbers = {(0,): 2**27, (1,): 2**27, (2,): 2**26, (3,): 2**29}
    made = []
    found = OfTypes(lambda types: made.append(types) or types, numbers.get)
    for types in ((0,), (1,), (0,), (2,), (0,), (1,), (3,), (3,), (0,)):
        assert found(types) == types
    assert made == [(0,), (1,), (2,), (1,), (3,), (0,)]


def test_threads_may_share_what_is_kept():
    """Each drops what another has just found there."""
    found, wrong, before = OfTypes(lambda types: types), [], sys.getswitchinterval()

    def work(first):
        try:
            for k in range(20_000):
                types = ((first + k) % 24,)
                if found(types) != types:
                    wrong.append(types)
        except Exception as error:
            wrong.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(7 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
