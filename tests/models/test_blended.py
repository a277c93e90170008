"""Models that are made of models, and pair tables, by each part's own evaluator."""

import copy

import numpy as np
import pytest
import torch
from ase import Atoms
from blend_cases import KINDS, pair, table_section
from parts_cases import (
    ATTENTIVE,
    FLOAT32,
    SPLINES,
    D,
    T,
    V,
    alloy,
    change_weights,
    check_virial,
    gradients_of,
    hybrid,
    model_of,
    parameters_of,
    systems_of,
)
from reference_cases import SHARED, assert_close, assert_deepmd_kits_answers, relative_error

import mdops
from mdops import Potential
from mdops.errors import InputError
from mdops.evaluators import Autograd, blended
from mdops.evaluators.blended import Blended, PairTableEvaluator
from mdops.evaluators.splines import Splines
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine
from mdops.models.linear import LinearModel, LinearOptions
from mdops.models.pairtab import PairTable, PairTableOptions
from mdops.models.zbl import ZBLModel, ZBLOptions
from mdops.options import parse
from mdops.system import from_atoms

CASES = sorted(
    p for root in (KINDS, SHARED) for kind in ("linear", "zbl", "pairtab") for p in root.glob(f"{kind}*")
)
NAMES = ("energy", "atom_energy", "forces", "virial")
TEBD = {**{k: v for k, v in T.items() if k != "sel"}, "type": "se_e3_tebd", "sel": 50, "tebd_dim": 4}


@pytest.mark.parametrize("spline", [True, False])
def test_a_virtual_atom_first_and_another_type_map(spline):
    """Absent neighbours have the first type of the sum, whatever its place in the part's own type map."""
    parts = [
        model_of({**D, "set_davg_zero": False}, elements, seed=3) for elements in (("Al", "Cu"), ("Cu", "Al"))
    ]
    options = LinearOptions(type_map=["Cu", "Al"], models=[part.options for part in parts])
    model = LinearModel(options, ["Cu", "Al"], *LinearModel.no_statistics(2), parts).double()
    potential = Potential(model, overflow="extend").eval()
    if spline:
        potential.use_spline()
    assert isinstance(potential.evaluator(), Blended), potential.explain()
    atoms = alloy(("Al",))
    atoms.symbols[0] = "X"
    system = from_atoms([atoms], potential.type_map)
    with torch.no_grad():
        wanted, _ = Autograd(potential)(system, potential.neighbor_list(system))
    assert_close(potential.evaluate(system), wanted, SPLINES, NAMES[1:])


@pytest.mark.parametrize("mode", ["exact", "splines", "float32"])
@pytest.mark.parametrize("folder", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_answers_are_deepmd_kits(folder, mode):
    overflow = "truncate" if folder.name.endswith("few_places") else "error"
    potential = mdops.load(
        folder / "model.dp",
        dtype="float32" if mode == "float32" else "float64",
        overflow=overflow,
        spline=mode != "exact",
    )
    assert isinstance(potential.evaluator(), Blended | PairTableEvaluator), potential.explain()
    # DeePMD-kit itself computed some models in float32.
    rounded = mode == "float32" or folder.name.endswith("float32")
    tolerance = FLOAT32 if rounded else 1e-9 if mode == "exact" else SPLINES
    assert_deepmd_kits_answers(potential, folder, tolerance)


@pytest.fixture(scope="module")
def table_file(tmp_path_factory):
    return table_section(tmp_path_factory.mktemp("table"))["tab_file"]


SWITCH = {"smin_alpha": 0.15, "sw_rmin": 2.2, "sw_rmax": 3.1}  # so that atoms of the alloy are between


def zbl(descriptor, table_file, model=None, table=None, types=("Cu", "Al"), net_types=("Cu", "Al"), **keys):
    net = model_of(descriptor, net_types, **keys)
    section = PairTableOptions(
        type_map=list(types), tab_file=str(table_file), rcut=3.9, sel=200, **(table or {})
    )
    part = PairTable.random(section, 0, net.dtype)
    part.out_bias += torch.tensor([0.3, -0.2])
    sections = {
        "type_map": list(types), "use_srtab": "", **SWITCH, "descriptor": {"type": "dpa1"}, "fitting_net": {},
        **(model or {}),
    }  # fmt: skip
    options = parse(ZBLOptions, sections)
    bias = torch.tensor([0.1, 0.7], dtype=torch.float64)
    return ZBLModel(options, list(types), bias, torch.ones_like(bias), [net, part])


def linear(models, weights="mean", model=None, types=("Cu", "Al")):
    options = LinearOptions(
        type_map=list(types), models=[part.options for part in models], weights=weights, **(model or {})
    )
    bias = torch.tensor([0.1, 0.7], dtype=torch.float64)
    return LinearModel(options, list(types), bias, torch.ones_like(bias), models)


def table_of(table_file, types=("Cu", "Al"), **keys):
    section = PairTableOptions(type_map=list(types), tab_file=str(table_file), rcut=3.9, sel=200, **keys)
    return PairTable.random(section, 0, torch.float64)


def cases(table_file):
    smooth = {**V, "set_davg_zero": False}
    return {
        "zbl": lambda: zbl(D, table_file),
        "zbl_smooth": lambda: zbl(smooth, table_file, fitting={"numb_fparam": 1}),
        "zbl_attention": lambda: zbl(ATTENTIVE, table_file),
        "zbl_hybrid": lambda: zbl(hybrid(D, V), table_file),
        "zbl_hybrid_angles": lambda: zbl(hybrid(D, TEBD), table_file),
        "zbl_angles": lambda: zbl(TEBD, table_file),
        "zbl_excluded": lambda: zbl(
            {**D, "exclude_types": [[0, 0]]},
            table_file,
            model={"pair_exclude_types": [[0, 1]]},
            table={"pair_exclude_types": [[1, 1]]},
        ),
        "zbl_silent": lambda: zbl(D, table_file, model={"atom_exclude_types": [1]}),
        "zbl_silent_table": lambda: zbl(D, table_file, table={"atom_exclude_types": [0]}),
        "linear": lambda: linear([model_of(D), model_of(smooth, seed=1), table_of(table_file)], [0.5, -0.2, 1.5]),
        "linear_silent": lambda: linear(
            [model_of(D, fitting={"numb_aparam": 1}), table_of(table_file)],
            "sum",
            {"atom_exclude_types": [0], "pair_exclude_types": [[1, 1]]},
        ),
        "linear_types": lambda: linear(
            [model_of(smooth, ("Fe", "Al", "Cu", "O"), seed=2), model_of(hybrid(D, V), ("Cu", "X", "Al"))],
            model={"pair_exclude_types": [[0, 1]]},
        ),
        "linear_attention": lambda: linear([model_of(ATTENTIVE), model_of(TEBD, seed=1)]),
        "table": lambda: table_of(table_file, pair_exclude_types=[[0, 1]]),
    }  # fmt: skip


BLENDS = list(cases(""))


def potential_of(model, *, spline=True, dtype=torch.float64, overflow="extend"):
    potential = Potential(model.to(dtype), overflow=overflow).eval()
    if spline:
        potential.use_spline()
    return potential


@pytest.mark.filterwarnings("ignore:.*table.txt")
@pytest.mark.parametrize("net", [{**D, "rcut": 3.9}, hybrid(D, V)])
@pytest.mark.parametrize("elements", [("Cu", "Al"), ("X", "Al", "Cu")])
def test_a_blend_is_one_op(net, elements, table_file, monkeypatch):
    """With a table that has energies of the types beside, and a net that has the types in an order of its own."""
    exact = potential_of(zbl(net, table_file, net_types=elements), spline=False)
    splined = potential_of(copy.deepcopy(exact.model))
    monkeypatch.setattr(blended, "pair_table", None)
    if net["type"] != "hybrid":  # whose report of the neighbours the table's is
        monkeypatch.setattr(blended, "near_weight", None)
    for system in systems_of(splined):
        pairs = splined.neighbor_list(system)
        with torch.no_grad():
            wanted, expected = Autograd(exact)(system, pairs, atom_virial=True)
        found, report = splined.evaluator()(system, pairs, atom_virial=True)
        assert_close(found, wanted, SPLINES, found.keys())
        assert all(torch.equal(a, b) for a, b in zip(report.within, expected.within, strict=True))


@pytest.mark.filterwarnings("ignore:.*table.txt")
@pytest.mark.parametrize("name", BLENDS)
def test_the_parts_evaluators_are_autograd(name, table_file):
    exact = potential_of(cases(table_file)[name](), spline=False)
    splined = potential_of(copy.deepcopy(exact.model))
    for system in systems_of(splined):
        parameters = parameters_of(splined, system)
        pairs = splined.neighbor_list(system)
        with torch.no_grad():
            wanted, expected = Autograd(exact)(system, pairs, **parameters, atom_virial=True)
        for potential, tolerance in ((exact, 1e-12), (splined, SPLINES)):
            evaluator = potential.evaluator()
            assert isinstance(evaluator, Blended | PairTableEvaluator), potential.explain()
            found, report = evaluator(system, pairs, **parameters, atom_virial=True)
            assert_close(found, wanted, tolerance, found.keys())
            assert torch.allclose(report.nearest.double(), expected.nearest.double())
            assert all(torch.equal(a, b) for a, b in zip(report.within, expected.within, strict=True))
        differentiable = splined.evaluator("differentiate")
        assert isinstance(differentiable, Splines) == bool(splined.grids or any(splined.angle_knots))
        found = splined.evaluate(system, **parameters, atom_virial=True)
        assert_close(found, wanted, SPLINES, (*NAMES[1:], "atom_virial"))


def test_a_part_without_splines_leaves_those_of_others():
    """Nets with kinks have no splines: their part runs exactly, and the other ones as ever."""
    kinks = model_of({**D, "activation_function": "relu", "rcut": 3.7}, seed=1)
    exact = potential_of(linear([model_of(D), kinks, model_of(hybrid(D, V), seed=2)], "sum"), spline=False)
    with pytest.warns(UserWarning, match="kinks: they are evaluated exactly"):
        splined = potential_of(copy.deepcopy(exact.model))
    assert [grid is not None for grid in splined.grids] == [True, False, True, True]
    assert splined.grid.intervals == max(grid.intervals for grid in splined.grids if grid is not None)
    explained = Blended.kernels(splined)
    assert splined.why_no_spline is None and explained.count("autograd") == 1, explained
    for system in systems_of(splined):
        wanted = exact.evaluate(system, atom_virial=True)
        assert_close(splined.evaluate(system, atom_virial=True), wanted, SPLINES, NAMES)
        places = system.positions, system.types, system.cell, system.pbc, system.batch
        assert_close(splined(*places, forces=True), wanted, SPLINES, NAMES)
    assert isinstance(splined.evaluator("differentiate"), Splines)
    with pytest.warns(UserWarning, match="kinks"):
        assert splined.keep_spline(splined.spline_error() / 2)


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_all_of_the_switch(table_file):
    """Through c = 0, between, and 1: forces are the slopes of energies, and so is the virial."""
    potential = potential_of(zbl(D, table_file))
    weights = []
    for r in (1.9, 2.3, 2.6, 2.9, 3.05, 3.3):
        atoms = Atoms("CuAlCu", [[0, 0, 0], [r, 0, 0], [0.3, 3.2, 0.4]])
        found, h = potential.compute(atoms), 1e-5
        system = from_atoms([atoms], potential.type_map)
        with torch.no_grad():
            near = Autograd(potential).neighborhood(system, potential.neighbor_list(system))
            weights.append(float(potential.model.near_weight(near)[0]))
        for axis in range(3):
            ends = []
            for sign in (1, -1):
                moved = atoms.copy()
                moved.positions[1, axis] += sign * h
                ends.append(potential.compute(moved)["energy"][0])
            assert found["forces"][1, axis] == pytest.approx(-(ends[0] - ends[1]) / (2 * h), abs=1e-6)
        strains = []
        for sign in (1, -1):
            moved = atoms.copy()
            moved.positions *= 1 + sign * h
            strains.append(potential.compute(moved)["energy"][0])
        trace = -(strains[0] - strains[1]) / (2 * h)
        assert np.trace(found["virial"][0]) == pytest.approx(trace, abs=1e-6)
    assert weights[0] == 1 and weights[-1] == 0 and 0 < weights[2] < 1 and weights == sorted(weights)[::-1]


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_single_precision(table_file):
    double = potential_of(zbl(D, table_file))
    single = potential_of(copy.deepcopy(double.model), dtype=torch.float32)
    for system in systems_of(double):
        assert_close(single.evaluate(system), double.evaluate(system), FLOAT32)


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_threads_share_the_atoms(table_file):
    potential, before = potential_of(zbl(D, table_file)), torch.get_num_threads()
    system = from_atoms([alloy(repeat=3)], potential.type_map)
    try:
        torch.set_num_threads(3)
        three = potential.evaluate(system)
        torch.set_num_threads(1)
        assert_close(potential.evaluate(system), three, 1e-12)
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_too_near_and_too_many_are_told(table_file):
    potential = potential_of(zbl(D, table_file), overflow="error")
    with pytest.raises(InputError, match=r"atoms 0 and 1 are nearer than 0\.5 A"):
        potential.compute(pair(0.45))
    few = potential_of(zbl({**D, "sel": 10}, table_file), overflow="error")
    with pytest.raises(InputError, match="the model's sel is 10"):
        few.compute(alloy())
    few.overflow = "truncate"
    exact = potential_of(copy.deepcopy(few.model), spline=False, overflow="truncate")
    system = from_atoms([alloy()], few.type_map)
    assert_close(few.evaluate(system), exact.evaluate(system), SPLINES)


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_splines_that_the_table_covers_are_not_warned_of(table_file, recwarn):
    """Nearer than r_min the table alone counts."""
    potential = potential_of(zbl(D, table_file))
    potential.use_spline(r_min=1.0)
    potential.compute(pair(0.7))
    assert not [w for w in recwarn if "extrapolated" in str(w.message)]
    potential.use_spline(r_min=2.4)
    with pytest.warns(UserWarning, match="extrapolated"):
        potential.compute(pair(0.7))


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_what_runs_is_told(table_file):
    told = potential_of(zbl(D, table_file)).explain()
    assert told.startswith(
        "blended: each part by its own evaluator (a standard model of dpa1 by fused parts; "
    )
    assert "pairtab model by pair table" in told
    told = potential_of(linear([model_of(ATTENTIVE), model_of(D)])).explain()
    assert "a standard model of dpa1 by fused sums; a standard model of dpa1 by fused" in told
    assert potential_of(table_of(table_file)).explain().startswith("pair table: ")


@pytest.mark.filterwarnings("ignore:.*table.txt")
@pytest.mark.parametrize(
    "name", ["zbl", "zbl_smooth", "zbl_excluded", "zbl_hybrid", "linear", "linear_types"]
)
def test_training_gradients_are_autograds(name, table_file):
    potential = potential_of(cases(table_file)[name]())
    evaluator = potential.evaluator("train")
    assert isinstance(evaluator, Splines), potential.explain("train")
    system = next(systems_of(potential))
    wanted = gradients_of(potential, Autograd(potential), system, create_graph=True)
    found = gradients_of(potential, evaluator, system, create_graph=True)
    largest = max(float(g.abs().max()) for g in wanted.values())
    for weight, gradient in wanted.items():
        other = found.get(weight, torch.zeros_like(gradient))
        assert float((other - gradient).abs().max()) < 1e-6 * largest, weight


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_new_weights_are_seen(table_file):
    potential = potential_of(zbl(D, table_file))
    system = next(systems_of(potential))
    after = change_weights(potential, system)
    exact = potential_of(copy.deepcopy(potential.model), spline=False)
    assert_close(after, exact.evaluate(system), SPLINES)


@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_virial_is_the_slope(table_file):
    """Of every strain, where many atoms are between the table and the net."""
    potential = potential_of(zbl(hybrid(D, V), table_file))
    check_virial(potential, next(systems_of(potential)))


def moved(system):
    return type(system)(
        *(x.cuda() for x in (system.positions, system.types, system.cell, system.pbc, system.batch))
    )


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*table.txt")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BLENDS)
def test_gpu_is_the_cpu(name, dtype, table_file):
    double, gpu = (potential_of(cases(table_file)[name](), dtype=dtype) for dtype in (torch.float64, dtype))
    gpu = gpu.cuda()
    assert isinstance(gpu.evaluator(), Blended | PairTableEvaluator), gpu.explain()
    for system in (*systems_of(double), from_atoms([alloy(repeat=4)], double.type_map)):
        parameters = parameters_of(double, system)
        wanted = double.evaluate(system, **parameters, atom_virial=True)
        there = {k: None if v is None else v.cuda() for k, v in parameters.items()}
        found = gpu.evaluate(moved(system), **there, atom_virial=True)
        tolerance = FLOAT32 if dtype == torch.float32 else SPLINES
        assert_close({k: v.cpu() for k, v in found.items()}, wanted, tolerance, (*NAMES, "atom_virial"))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*table.txt")
@pytest.mark.parametrize(
    "name", ["zbl", "zbl_hybrid", "zbl_excluded", "zbl_silent", "linear", "linear_types", "table"]
)
def test_engine_steps_are_captured(name, table_file, replays):
    double, gpu = (
        potential_of(cases(table_file)[name](), dtype=dtype) for dtype in (torch.float64, torch.float32)
    )
    atoms = alloy(repeat=3)
    engine = Engine(atoms, gpu.cuda(), EnsembleSettings("nve", 300, 1))
    last = list(engine.run(8, every=4))[-1]
    assert replays, gpu.explain()
    wanted = double.compute(last.atoms(atoms))
    assert relative_error(torch.from_numpy(last.forces), torch.from_numpy(wanted["forces"])) < FLOAT32
    assert np.allclose(last.energy, wanted["energy"], rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_a_pair_nearer_than_the_table_is_an_error_on_a_gpu(table_file):
    """From the calculator at once, from a captured step by its NaN."""
    gpu = potential_of(zbl(D, table_file), dtype=torch.float32).cuda()
    short = gpu.model.shortest / 2
    with pytest.raises(InputError, match="nearer"):
        gpu.compute(Atoms("CuAl", [[0, 0, 0], [short, 0, 0]]))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*table.txt")
def test_results_have_the_same_bits(table_file):
    for name in ("zbl", "table"):
        gpu = potential_of(cases(table_file)[name](), dtype=torch.float32).cuda()
        system = moved(from_atoms([alloy(repeat=6)], gpu.type_map))
        first, second = (gpu.evaluate(system, atom_virial=True) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
