"""Models as programs of torch.export: the same answers, for other sizes than the example's, and in other processes."""

import dataclasses
from pathlib import Path

import pytest
import spin_models
import torch
import torch._inductor.config
from children import python
from reference_cases import references

import mdops
from mdops._library import library_path
from mdops.cli import main
from mdops.errors import InputError, UnsupportedModelError
from mdops.models.neighborhood import Neighborhood
from mdops.system import System, atom_spins, from_atoms

DATA = Path(__file__).parent / "data"
LISTED = ("positions", "types", "cell", "batch", "neighbors", "images", "counts")
# By one op; by sums, angles and attention together; by parts and a table; by nets for each type and unrolled gradients;
# by messages along edges and angles.
CASES = {
    "fused": ("reference/fparam_aparam", {}),
    "hybrid": ("reference_kinds/hybrid_three", {}),
    "blend": ("reference_kinds/zbl_switch", {}),
    "nets": ("reference/two_side", {"spline": False}),
    "dpa2": ("reference_kinds/dpa2_float32", {}),
    "dpa3": ("reference_kinds/dpa3_base", {}),
    "dpa4": ("reference_kinds/dpa4_float32", {}),
}


def inputs(potential, system, fparam=None, aparam=None, *, capacity=None):
    """By name, as a program takes them."""
    found = {name: getattr(system, name) for name in ("positions", "types", "cell", "pbc", "batch")}
    if capacity is None:
        near = potential.neighbor_list(system)
        found |= {"neighbors": near.neighbors, "images": near.images, "counts": near.counts}
        del found["pbc"]
    more = {"fparam": fparam, "aparam": aparam}
    found |= {name: value for name, value in more.items() if potential.parameter_sizes.get(name)}
    return found if system.charge_spin is None else found | {"charge_spin": system.charge_spin}


def moved(system, device):
    return System(*(x.to(device) for x in vars(system).values() if isinstance(x, torch.Tensor)))


@pytest.mark.parametrize("case", CASES)
def test_a_program_answers_as_the_model(case, device):
    """For systems of other sizes than the example's, periodic and not, one or several."""
    place, options = CASES[case]
    dtype = "float64" if device == "cpu" else "float32"
    potential = mdops.load(DATA / place / "model.dp", dtype=dtype, device=device, **options)
    atom_virial = potential.reach == 1
    program = potential.export(atom_virial=atom_virial).module()
    for one in references(DATA / place):
        system = moved(one.system, device)
        parameters = [None if x is None else x.to(device) for x in (one.fparam, one.aparam)]
        want = potential.evaluate(system, None, *parameters, atom_virial=atom_virial)
        got = program(**inputs(potential, system, *parameters))
        assert got.keys() == want.keys()
        for name, value in want.items():
            tolerance = {"rtol": 0, "atol": 1e-13} if device == "cpu" else {"rtol": 2e-5, "atol": 2e-5}
            torch.testing.assert_close(got[name], value, **tolerance)


def test_a_program_that_searches_neighbours_and_what_it_refuses(device):
    """Attention among a list of its own; NaN where `evaluate` raises, or rows are too short."""
    folder = DATA / "reference_kinds" / "dpa1_smooth"
    dtype = "float64" if device == "cpu" else "float32"
    potential = mdops.load(folder / "model.dp", dtype=dtype, device=device)
    one = max(references(folder), key=lambda one: one.system.atoms)
    system = moved(one.system, device)
    longest = int(potential.neighbor_list(system).counts.sum(1).max())
    want = potential.evaluate(system)
    program = potential.export(capacity=longest).module()
    got = program(**inputs(potential, system, capacity=longest))
    for name, value in want.items():
        tolerance = {"rtol": 0, "atol": 1e-13} if device == "cpu" else {"rtol": 2e-5, "atol": 2e-5}
        torch.testing.assert_close(got[name], value, **tolerance)
    crowded = moved(system, device)
    crowded.cell = 0.9 * system.cell  # more neighbours than the capacity
    coincident = moved(system, device)
    coincident.positions = system.positions.clone()
    coincident.positions[1] = coincident.positions[0]
    for wrong in (crowded, coincident):
        answers = program(**inputs(potential, wrong, capacity=longest))
        assert all(value.isnan().all() for value in answers.values())


def test_too_many_neighbours_are_nan_or_count():
    folder = DATA / "reference" / "overflow"
    system = references(folder)[0].system
    answers = {}
    for overflow in ("error", "extend"):
        potential = mdops.load(folder / "model.dp", dtype="float64", overflow=overflow)
        answers[overflow] = potential.export().module()(**inputs(potential, system))["energy"]
    assert answers["error"].isnan().all()
    torch.testing.assert_close(answers["extend"], potential.evaluate(system)["energy"])


def test_rooms_for_angles():
    """As many as `sel` says, or as are given; more angles make NaN."""
    folder = DATA / "reference_kinds" / "dpa3_few_places"
    system = references(folder)[0].system
    potential = mdops.load(folder / "model.dp", dtype="float64", overflow="extend")
    want = potential.evaluate(system)
    near = potential.neighbor_list(system)
    model = potential.model
    report = Neighborhood.of(system, near, model.cutoff, model.dtype).report(model.neighbors)
    there = int(report.within[1].max())
    for places, fits in ((None, True), (there, True), (there - 1, False)):
        answers = potential.export(angle_capacity=places).module()(**inputs(potential, system))
        if fits:
            torch.testing.assert_close(answers["forces"], want["forces"], rtol=0, atol=1e-13)
        else:
            assert all(value.isnan().all() for value in answers.values())


def test_charge_and_multiplicity_of_each_system():
    folder = DATA / "reference_kinds" / "dpa3_charged"
    potential = mdops.load(folder / "model.dp", dtype="float64")
    program = potential.export().module()
    system = references(folder)[0].system
    for pair, known in (([1, 2], True), ([-100, 0], True), ([100, 1], False), ([0.5, 1], False)):
        charged = dataclasses.replace(system)
        charged.charge_spin = torch.tensor(pair, dtype=torch.float64).repeat(system.count, 1)
        answers = program(**inputs(potential, charged))
        if known:
            want = potential.evaluate(charged)["forces"]
            torch.testing.assert_close(answers["forces"], want, rtol=0, atol=1e-13)
        else:
            assert all(value.isnan().all() for value in answers.values())


@pytest.mark.parametrize("kind", ["se_e2_a", "dpa4_virtual", "dpa4"])
def test_magnetic_moments_are_an_input(kind, device):
    """As virtual atoms, which an atom without its moment coincides with, and as vectors."""
    potential = spin_models.model(kind).to(device)
    program = potential.export(capacity=160, atom_virial=kind == "se_e2_a").module()
    for frames in (
        [spin_models.crystal(0), spin_models.crystal(1)],
        [spin_models.crystal(2).repeat((1, 2, 1))],
    ):
        system = moved(from_atoms(frames, potential.type_map), device)
        spins = torch.tensor(atom_spins(frames), device=device)
        want = potential.evaluate_atoms(system, spins=spins, atom_virial=kind == "se_e2_a")
        got = program(**inputs(potential, system, capacity=160), spins=spins)
        assert got.keys() == want.keys() and "force_mag" in got
        for name, value in want.items():
            limit = (1e-12 if device == "cpu" else 1e-9) * float(value.abs().max())
            torch.testing.assert_close(got[name], value, rtol=0, atol=limit)
    spins[0] = 0
    energy = program(**inputs(potential, system, capacity=160), spins=spins)["energy"]
    assert energy.isnan().all() == (kind != "dpa4")


def test_what_cannot_be_exported_is_refused(tmp_path, capsys):
    model = DATA / "reference" / "base" / "model.dp"
    potential = mdops.load(model, overflow="truncate")
    with pytest.raises(InputError, match="overflow='truncate' depends on the neighbours"):
        potential.export()
    with pytest.raises(InputError, match="capacity of the list is 0"):
        mdops.load(model).export(capacity=0)
    with pytest.raises(InputError, match="capacity of angles is 0"):
        mdops.load(model).export(angle_capacity=0)
    with pytest.raises(InputError, match="has no angles"):
        mdops.load(model).export(angle_capacity=40)
    with pytest.raises(UnsupportedModelError, match="exported programs have no atomic virials"):
        mdops.load(DATA / "reference_kinds/dpa3_base/model.dp").export(atom_virial=True)
    with pytest.raises(InputError, match="a list of atoms lacks: give a capacity"):
        spin_models.model("se_e2_a").export()
    assert main(["export", str(model), str(tmp_path / "model.txt")]) == 2
    assert "ends with .pt2" in capsys.readouterr().err
    (tmp_path / "there.pt2").touch()
    assert main(["export", str(model), str(tmp_path / "there.pt2")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(model), str(tmp_path / "absent/model.pt2")]) == 2
    assert "there is no folder" in capsys.readouterr().err, "said before the work"
    (tmp_path / "folder.pt2").mkdir()
    assert main(["export", str(model), str(tmp_path / "folder.pt2"), "--overwrite"]) == 2
    assert "it is a folder, expected a file" in capsys.readouterr().err


FRESH = """
import sys, torch
libraries, package, arguments, answers = sys.argv[1:]
for library in libraries.split(":"):
    torch.ops.load_library(library)
potential = torch._inductor.aoti_load_package(package)
torch.save([dict(potential(**given)) for given in torch.load(arguments)], answers)
assert "mdops" not in sys.modules
"""


def loads_any_package(folder, device) -> bool:
    """Whether a process can load a package without an op of ours."""
    program = torch.export.export(torch.nn.Tanh(), (torch.ones(4, device=device),))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "tanh.pt2"))
    code = f"import torch; torch._inductor.aoti_load_package({package!r})"
    return python("-c", code, cwd=folder).returncode == 0


# Compiled in a third less time, and no slower to call.
QUICKLY = {"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"}


@pytest.mark.long
@torch._inductor.config.patch(QUICKLY)
@pytest.mark.parametrize("case", ["reference/base", "reference_kinds/dpa1_smooth"])
def test_a_compiled_package_runs_in_a_process_without_mdops(case, tmp_path, device, capsys):
    """AOTInductor's, which the command writes; there the library of the ops is all that is loaded. Of one op, and of
    layers of attention with the operations of both passes."""
    folder = DATA / case
    package = tmp_path / "model.pt2"
    dtype = "float64" if device == "cpu" else "float32"
    command = ["export", str(folder / "model.dp"), str(package), "--dtype", dtype, "--device", device]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert str(library_path("libmdops.so")) in shown.out and "LeafSpec" not in shown.err
    potential = mdops.load(folder / "model.dp", dtype=dtype, device=device)
    systems = [moved(one.system, device) for one in references(folder)]
    torch.save([inputs(potential, system) for system in systems], tmp_path / "inputs.pt")
    names = ["libmdops.so"] + (["libmdops_cuda.so"] if device == "cuda" else [])
    libraries = ":".join(str(library_path(name)) for name in names)
    arguments = [libraries, str(package), str(tmp_path / "inputs.pt"), str(tmp_path / "answers.pt")]
    done = python("-c", FRESH, *arguments, cwd=tmp_path)
    if done.returncode < 0 and not loads_any_package(tmp_path, device):
        pytest.skip("here PyTorch crashes when it loads a compiled package of its own, too")
    assert done.returncode == 0, done.stderr
    for system, got in zip(systems, torch.load(tmp_path / "answers.pt"), strict=True):
        for name, value in potential.evaluate(system).items():
            tolerance = {"rtol": 1e-12, "atol": 1e-12} if device == "cpu" else {"rtol": 1e-4, "atol": 1e-5}
            torch.testing.assert_close(got[name], value, **tolerance)
