"""Models of several parts in the C core: hybrids, linear and ZBL models and pair tables, against DeePMD-kit's answers
and `Potential.compute`."""

import json
import warnings

import numpy as np
import pytest
import torch
from ase import Atoms
from core_library import EXTEND, NEIGHBORS, UNSUPPORTED, List, Model
from safetensors import safe_open
from test_core import (
    ANSWERS,
    FLOAT32,
    FLOAT64,
    KINDS,
    assert_near,
    ghosts,
    refused,
    rows_of,
    systems,
    written,
)

import mdops
from mdops.errors import UnsupportedModelError
from mdops.io.read import read_model
from mdops.io.safetensors_file import encode_safetensors
from mdops.models.standard import DescriptorFitting, StandardOptions
from mdops.options import parse
from mdops.potential import Potential

CASES = (
    "hybrid", "hybrid_parameters", "linear_nets_sum", "linear_parameters", "linear_tables_list", "linear_tables_mean",
    "linear_tables_types", "pairtab", "pairtab_cubic", "pairtab_cubic_short", "pairtab_cut", "pairtab_excluded",
    "pairtab_virtual", "pairtab_zeros", "zbl_excluded", "zbl_float32", "zbl_shorter_table",
)  # fmt: skip


# With descriptors that are no sums: of angles, and with layers of attention.
OTHERS = (
    "hybrid_r_t", "se_atten_v2_davg_zero", "se_e3_base", "se_e3_options", "se_e3_pairs", "se_e3_tebd_base",
    "se_e3_tebd_options", "se_e3_tebd_strip_pairs", "se_e3_tebd_strip_rough", "se_e3_tebd_virtual", "se_e3_virtual",
    "zbl_virtual",
)  # fmt: skip
ATTENTION = (
    "dpa1_exclude_types_rough", "dpa1_no_angles", "dpa1_overflow", "dpa1_pair_exclude_types", "dpa1_protection_ln_eps",
    "dpa1_strip_one_side", "hybrid_three",
)  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_answers_of_deepmd_kit(case, tmp_path):
    path = written(KINDS / case, tmp_path / "model.safetensors")
    for precision in ("float64", "float32"):
        tolerance = FLOAT32 if "float32" in (precision, case.partition("_")[2]) else FLOAT64
        model = Model(path, precision)
        for given, answers in systems(KINDS / case):
            assert_near(model.compute(**given), answers, tolerance)


def loaded(case):
    """A case's model, whose absent neighbours add nothing where their type would be that of a system's first atom."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = mdops.load(KINDS / case / "model.dp", dtype="float64", overflow="extend", spline=False)
        with torch.no_grad():
            for descriptor in potential.model.descriptors:
                for part in descriptor.parts:
                    if part.mixed:
                        part.mean.zero_()
                    if case == "hybrid_three" and part.kind == "dpa1":
                        # Or its neighbours beyond its own cutoff would take part.
                        part.options.smooth_type_embedding = True
        potential.use_spline()
    return potential


@pytest.mark.parametrize(
    "case",
    [
        *("zbl_switch", "zbl_alpha", "zbl_few_places", "linear_net_types", "linear_tables_few_places"),
        *("se_e3_few_places", "se_e3_tebd_few_places", *ATTENTION),
    ],
)
def test_as_compute_has_it(case, tmp_path):
    """To rounding; also with the periodic images as ghosts, on threads."""
    potential = loaded(case)
    potential.save(tmp_path / "model.safetensors", core=["float64"])
    model = Model(tmp_path / "model.safetensors", overflow=EXTEND, threads=2)
    for given, _ in systems(KINDS / case):
        names = [potential.type_map[t] for t in given["types"]]
        atoms = Atoms(names, given["positions"], cell=given.get("cell"), pbc="cell" in given)
        answers = potential.compute(atoms, atom_virial=True)
        wanted = {name: answers[name] for name in ANSWERS}
        limits = {"energy": 1e-10, "other": 1e-9}
        assert_near(model.compute(**given), wanted, limits)
        if "cell" not in given:
            continue
        cutoff, count = model.info().cutoff, len(names)
        places, kinds, owners = ghosts(given["cell"], given["positions"], given["types"], cutoff)
        everything, kinds = (
            np.concatenate([given["positions"], places]),
            np.concatenate([given["types"], kinds]),
        )
        near = List(kinds, count, rows_of(everything, count, 1.1 * cutoff), len(potential.type_map))
        got = model.compute(everything, near=near)
        for name in ("forces", "atom_virial"):
            folded = got[name][:count].copy()
            np.add.at(folded, owners, got[name][count:])
            got[name] = folded
        assert_near(got, wanted, limits)


def test_elements_are_chosen_of_a_blend(tmp_path):
    potential = loaded("zbl_switch")
    names = potential.type_map[::-1]
    potential.save(tmp_path / "turned.safetensors", core=["float64"], elements=names)
    model = Model(tmp_path / "turned.safetensors", overflow=EXTEND)
    assert [model.info().names[t].decode() for t in range(len(names))] == names
    given, _ = next(systems(KINDS / "zbl_switch"))
    potential.save(tmp_path / "all.safetensors", core=["float64"])
    wanted = Model(tmp_path / "all.safetensors", overflow=EXTEND).compute(**given)
    got = model.compute(**{**given, "types": len(names) - 1 - given["types"]})
    assert_near(got, {name: np.asarray(wanted[name]) for name in ANSWERS}, {"energy": 1e-11, "other": 1e-10})


def test_neighbours_that_are_too_many_or_too_near(tmp_path):
    path = written(KINDS / "pairtab_few_places", tmp_path / "few.safetensors")
    given, _ = next(systems(KINDS / "pairtab_few_places"))
    refused(NEIGHBORS, r"atom \d+ has \d+ neighbours within .* sel is \d+", Model(path).compute, **given)
    path = written(KINDS / "pairtab", tmp_path / "table.safetensors")
    potential = mdops.load(KINDS / "pairtab/model.dp")
    near = [[0.0, 0, 0], [0.5 * potential.model.shortest, 0, 0]]
    refused(NEIGHBORS, "pair table has no energies: it begins at", Model(path).compute, near, [0, 0])
    refused(NEIGHBORS, "same place as atom 0", Model(path).compute, [[0.0, 0, 0]] * 2, [0, 0])


# -- On a GPU, in float32

ON_GPU = (
    "hybrid", "hybrid_parameters", "linear_nets_sum", "linear_parameters", "linear_tables_mean", "linear_tables_types",
    "pairtab", "pairtab_cubic", "pairtab_excluded", "pairtab_virtual", "pairtab_zeros", "zbl_excluded", "zbl_float32",
    "zbl_shorter_table",
)  # fmt: skip
ANGLES = (
    "hybrid_r_t", "se_e3_base", "se_e3_options", "se_e3_pairs", "se_e3_tebd_base", "se_e3_tebd_options",
    "se_e3_tebd_strip_pairs", "se_e3_tebd_strip_rough", "se_e3_tebd_virtual", "se_e3_virtual",
)  # fmt: skip


OF_ATTENTION = ("se_atten_v2_davg_zero", "zbl_virtual")


def on_both(case, to):
    """A case's file for both precisions."""
    if case not in ATTENTION:
        return written(KINDS / case, to)
    loaded(case).save(to, core=["float32", "float64"])
    return to


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("case", [*ON_GPU, *ANGLES, *ATTENTION, *OF_ATTENTION])
def test_a_gpu_as_the_cpu(case, precision, tmp_path):
    """From a cell, and with the periodic images as ghosts."""
    path = on_both(case, tmp_path / "model.safetensors")
    if precision == "float64" and case in (*ATTENTION, *OF_ATTENTION):
        refused(
            UNSUPPORTED, "attention compute in float32: load it in", Model, path, precision, device="cuda"
        )
        return
    here, there = Model(path, "float64", EXTEND), Model(path, precision, EXTEND, device="cuda")
    limits = {"energy": 5e-6, "other": 3e-5} if precision == "float32" else {"energy": 1e-11, "other": 1e-10}
    if case == "se_atten_v2_davg_zero":
        limits["energy"] = 5e-5  # of one system it is the small rest of its atoms' energies
    for given, _ in systems(KINDS / case):
        wanted = here.compute(**given)
        got = there.compute(**given)
        assert_near(got, {name: np.asarray(wanted[name]) for name in ANSWERS}, limits)
        again = there.compute(**given)
        assert all(np.array_equal(got[name], again[name]) for name in ANSWERS), "the same bits"
        assert got["nearest"] == pytest.approx(wanted["nearest"], rel=1e-6)
        if "cell" not in given:
            continue
        cutoff, count = here.info().cutoff, len(given["types"])
        places, kinds, _ = ghosts(given["cell"], given["positions"], given["types"], cutoff)
        everything = np.concatenate([given["positions"], places])
        kinds = np.concatenate([given["types"], kinds])
        options = {name: given[name] for name in ("fparam", "aparam") if name in given}
        answers = []
        for model in (here, there):
            near = List(kinds, count, rows_of(everything, count, 1.1 * cutoff), here.info().ntypes)
            answers.append(model.compute(everything, near=near, **options))
        assert_near(answers[1], {name: np.asarray(answers[0][name]) for name in ANSWERS}, limits)
        near = List.searched(there, everything, kinds, count, 0.5)
        got = there.compute(everything, near=near, **options)
        assert_near(got, {name: np.asarray(answers[0][name]) for name in ANSWERS}, limits)


@pytest.mark.parametrize("kind", ["dpa1", "se_atten_v2"])
def test_layers_in_coordinates(kind, device, tmp_path):
    """Attention in fewer columns than it has, of which the file tells (docs/explanation/mathematics.md)."""
    descriptor = {
        "type": kind,
        "rcut": 3.5,
        "rcut_smth": 1.0,
        "sel": 60,
        "neuron": [25, 50, 100],
        "attn_layer": 3,
    }
    descriptor |= {"attn": 128, "axis_neuron": 4, "type_one_side": True, "set_davg_zero": True}
    section = {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": {"neuron": [16, 16]}}
    potential = mdops.Potential(
        DescriptorFitting.random(parse(StandardOptions, section), 3, torch.float64)
    ).eval()
    potential.use_spline()
    path = tmp_path / "model.safetensors"
    potential.save(path, core=["float32", "float64"])
    with safe_open(path, "np") as file:
        widths = {
            name.removeprefix("core.0.other.0."): file.get_slice(name).get_shape()
            for name in file.keys()  # noqa: SIM118
            if ".layer." in name and name.endswith(("project", "out"))
        }
    assert "float32.layer.0.project" not in widths and widths["float32.layer.0.out"][0] <= 64
    assert widths["float32.layer.1.out"][0] < 128 and widths["float64.layer.2.project"][0] == 100
    random = np.random.default_rng(1)
    places = 2.2 * np.stack(np.meshgrid(*3 * [np.arange(4)]), -1).reshape(-1, 3) + 0.5 * random.random(
        (64, 3)
    )
    given = {"positions": places, "types": random.integers(0, 2, 64), "cell": 8.8 * np.eye(3)}
    atoms = Atoms([potential.type_map[t] for t in given["types"]], places, cell=given["cell"], pbc=True)
    answers = potential.compute(atoms, atom_virial=True)
    wanted = {name: answers[name] for name in ANSWERS}
    for precision, limits in (("float32", FLOAT32), ("float64", {"energy": 1e-10, "other": 1e-9})):
        if (device, precision) != ("cuda", "float64"):
            assert_near(Model(path, precision, device=device).compute(**given), wanted, limits)


def test_layers_of_version_3_are_read(tmp_path):
    """Which had those of both precisions once, and as wide as they are."""
    path, case = tmp_path / "model.safetensors", "se_atten_v2_davg_zero"
    written(KINDS / case, path)
    new, _ = next(systems(KINDS / case))
    wanted = Model(path, "float64").compute(**new)
    arrays = {}
    with safe_open(path, "np") as file:
        for name in file.keys():  # noqa: SIM118
            if name.startswith("core.") and "float32.layer" not in name:
                arrays[name.replace("float64.layer", "layer")] = file.get_tensor(name)
    about = json.loads(bytes(arrays["core.description"])) | {"version": 3}
    arrays["core.description"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    model = read_model(path)
    path.write_bytes(encode_safetensors(model.model, model.source, arrays))
    for precision, limits in (("float64", {"energy": 1e-14, "other": 1e-14}), ("float32", FLOAT32)):
        got = Model(path, precision).compute(**new)
        assert_near(got, {name: np.asarray(wanted[name]) for name in ANSWERS}, limits)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["se_atten_v2_davg_zero", "hybrid_three"])
def test_atoms_in_runs(case, tmp_path):
    """More than attention has memory for at once: copies of a system, far from each other."""
    model = Model(on_both(case, tmp_path / "model.safetensors"), "float32", EXTEND, device="cuda")
    given, _ = next(systems(KINDS / case))
    one = model.compute(given["positions"], given["types"])
    side = int((400_000 / len(given["types"])) ** (1 / 3)) + 1
    shifts = 60.0 * np.stack(np.meshgrid(*3 * [np.arange(side)], indexing="ij"), -1).reshape(-1, 1, 3)
    positions, types = (given["positions"] + shifts).reshape(-1, 3), np.tile(given["types"], len(shifts))
    got = model.compute(positions, types, atom_virial=False)
    for name in ("forces", "atom_energy"):
        wanted = np.tile(one[name], (len(shifts), *[1] * (one[name].ndim - 1)))
        assert_near(got, {name: wanted}, {"energy": 1e-5, "other": 1e-5})
    assert_near(got, {"virial": one["virial"] * len(shifts)}, {"energy": 1e-5, "other": 1e-5})


@pytest.mark.gpu
def test_what_a_gpu_refuses(tmp_path):
    path = written(KINDS / "pairtab_few_places", tmp_path / "few.safetensors")
    given, _ = next(systems(KINDS / "pairtab_few_places"))
    few = Model(path, "float32", device="cuda")
    refused(NEIGHBORS, r"atom \d+ has \d+ neighbours within .* sel is \d+", few.compute, **given)
    path = written(KINDS / "pairtab", tmp_path / "table.safetensors")
    table, closest = (
        Model(path, "float32", device="cuda"),
        mdops.load(KINDS / "pairtab/model.dp").model.shortest,
    )
    near = [[0.0, 0, 0], [0.5 * closest, 0, 0]]
    refused(NEIGHBORS, f"neighbour at {0.5 * closest:f} A, .* begins at", table.compute, near, [0, 0])
    refused(NEIGHBORS, "same place as atom 0", table.compute, [[0.0, 0, 0]] * 2, [0, 0])
    assert np.isfinite(table.compute([[0.0, 0, 0], [3.0, 0, 0]], [0, 0])["energy"]), "and it goes on"
    case, few = next(systems(KINDS / "se_e3_few_places"))[0], tmp_path / "few_angles.safetensors"
    few = Model(written(KINDS / "se_e3_few_places", few), "float32", device="cuda")
    refused(NEIGHBORS, r"atom \d+ has \d+ neighbours of type .* sel is \d+", few.compute, **case)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("dpa1_hybrid", "set_davg_zero"),
        ("hybrid_a_a", "neighbours beyond the cutoff of its se_e2_a take places"),
        ("zbl_switch", "set_davg_zero"),
        ("dpa1_parameters", "atom_ener"),
    ],
)
def test_what_it_cannot_have_is_refused_with_the_reason(case, reason, tmp_path):
    with pytest.raises(UnsupportedModelError, match=rf"does not support this model: .*{reason}.*mdops md"):
        written(KINDS / case, tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def with_mean(types, *several, **options):
    """DPA-1 with random weights whose empty slots count; or a hybrid of several with these options."""
    base = {"type": "dpa1", "sel": 20, "rcut": 4.0, "neuron": [4, 8], "axis_neuron": 2, "attn_layer": 0}
    several = [base | own for own in several or [options]]
    descriptor = several[0] if len(several) == 1 else {"type": "hybrid", "list": several}
    section = {"type_map": types, "descriptor": descriptor, "fitting_net": {"neuron": [8]}}
    potential = Potential(DescriptorFitting.random(parse(StandardOptions, section), 0, torch.float64))
    with torch.no_grad():
        for descriptor in potential.model.descriptors:
            for part in descriptor.parts:
                part.mean.copy_(torch.linspace(0.1, 0.2, len(types)))
                part.std.copy_(part.std.new_tensor([0.3, 0.2]).expand_as(part.std))
    potential.use_spline()
    return potential


STRIPPED = {"tebd_input_mode": "strip", "smooth_type_embedding": True}


# Types, and the descriptors of a model.
EMPTY = [
    (["O"], [{}]),
    (["O"], [{"tebd_input_mode": "strip", "smooth_type_embedding": False}]),
    (["O"], [STRIPPED]),
    (["O", "H"], [STRIPPED]),
    (["O"], [{}, STRIPPED]),
    (["O", "H"], [STRIPPED, STRIPPED | {"neuron": [8]}]),
]


@pytest.mark.parametrize(("types", "descriptors"), EMPTY)
def test_empty_slots_of_one_type_count_as_compute_has_it(types, descriptors, tmp_path):
    """Also where they have none: gated neighbours without a distance add nothing of their type."""
    potential, rng = with_mean(types, *descriptors), np.random.default_rng(1)
    potential.save(tmp_path / "model.safetensors", core=["float64", "float32"])
    for cell in (None, np.eye(3) * 9.0):
        given = {"positions": rng.uniform(0, 7, (12, 3)), "types": np.arange(12)[::-1] % len(types)}
        atoms = Atoms([types[t] for t in given["types"]], given["positions"], cell=cell, pbc=cell is not None)
        answers = potential.compute(atoms, atom_virial=True)
        wanted = {name: answers[name] for name in ANSWERS}
        if cell is not None:
            given["cell"] = cell
        for precision, limits in (("float64", {"energy": 1e-11, "other": 1e-10}), ("float32", FLOAT32)):
            assert_near(Model(tmp_path / "model.safetensors", precision).compute(**given), wanted, limits)


@pytest.mark.gpu
@pytest.mark.parametrize(("types", "descriptors"), EMPTY)
def test_empty_slots_count_on_a_gpu(types, descriptors, tmp_path):
    potential = with_mean(types, *descriptors)
    potential.save(tmp_path / "model.safetensors", core=["float64", "float32"])
    given = {
        "positions": np.random.default_rng(1).uniform(0, 7, (12, 3)),
        "types": np.arange(12) % len(types),
    }
    wanted = Model(tmp_path / "model.safetensors").compute(**given)
    wanted = {name: np.asarray(wanted[name]) for name in ANSWERS}
    for precision, limits in (("float64", {"energy": 1e-11, "other": 1e-10}), ("float32", FLOAT32)):
        there = Model(tmp_path / "model.safetensors", precision, device="cuda")
        assert_near(there.compute(**given), wanted, limits)


def test_empty_slots_of_a_chosen_element_count(tmp_path):
    potential = with_mean(["O", "H"])
    potential.save(tmp_path / "model.safetensors", core=["float64"], elements=["H"])
    positions = np.random.default_rng(1).uniform(0, 7, (12, 3))
    answers = potential.compute(Atoms("H12", positions), atom_virial=True)
    got = Model(tmp_path / "model.safetensors").compute(positions, [0] * 12)
    assert_near(got, {name: answers[name] for name in ANSWERS}, {"energy": 1e-11, "other": 1e-10})


def test_the_reason_is_true_of_what_is_there_and_of_what_is_stated(tmp_path):
    """Empty slots can have the type of a first atom only where there are several types, and davg may not be zero
    whatever `set_davg_zero` says."""
    for types, options, reason in (
        (["O", "H"], {"set_davg_zero": True}, "type of a system's first atom .its davg is not zero"),
        (["O", "H"], {"set_davg_zero": False}, "type of a system's first atom .`set_davg_zero` is false"),
        (
            ["O"],
            {"attn_layer": 1},
            "its empty slots count .*, which the core does not compute beside attention",
        ),
    ):
        with pytest.raises(UnsupportedModelError, match=reason):
            with_mean(types, **options).save(tmp_path / "model.safetensors", core=["float64"])
