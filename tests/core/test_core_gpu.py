"""Models of the C core on a GPU (docs/reference/core.md): as on the CPU, to float32's rounding."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from children import in_threads
from core_library import (
    DEVICE,
    EXTEND,
    INVALID,
    MEMORY,
    NEIGHBORS,
    UNSUPPORTED,
    CoreError,
    List,
    Model,
    Output,
    check,
    given,
    library,
)
from test_core import ANSWERS, KINDS, REFERENCE, assert_near, ghosts, rows_of, systems, without_mean, written

from mdops.cli.sample_model import sample_model
from mdops.jit.sample_box import sample_box

NEAR = {"energy": 5e-6, "other": 2e-5}
OF_SE_E2_A = (
    "base",
    "fparam_aparam",
    "default_fparam",
    "pair_exclude_types",
    "exclude_types",
    "fitting_shared",
    "widths",
)
gpu = pytest.mark.gpu


@pytest.fixture(
    scope="module",
    params=[
        (REFERENCE / "base", "float32"),
        (REFERENCE / "base", "float64"),
        (KINDS / "se_e3_options", "float32"),
        (KINDS / "se_atten_v2_davg_zero", "float32"),
    ],
    ids=lambda kind: f"{kind[0].name}-{kind[1]}",
)
def any_kind(request, tmp_path_factory):
    """A model's file, a system of its, a precision, and how near its answers are."""
    folder, precision = request.param
    path = written(folder, tmp_path_factory.mktemp("any") / "model.safetensors")
    limits = NEAR if precision == "float32" else {"energy": 1e-11, "other": 1e-10}
    return path, next(systems(folder))[0], precision, limits


def numbers(result):
    return {name: np.asarray(result[name]) for name in ANSWERS}


def refused(status, match, call, *args, **options):
    with pytest.raises(CoreError, match=match) as caught:
        call(*args, **options)
    assert caught.value.status == status


def crowd(system, copies=6):
    """The system several times, far from itself: more atoms than one block of threads takes."""
    shifts = [[0, 0, 40.0 * k] for k in range(copies)]
    positions = np.concatenate([system["positions"] + shift for shift in shifts])
    return positions, np.tile(system["types"], copies)


# -- A list that the model searches for, on the CPU, too


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_a_list_with_a_skin(base, system, device):
    """It serves while atoms move; in a cell, and with ghosts in the place of images."""
    model = Model(base, "float32", device=device)
    positions, types, cell = system["positions"], system["types"], system["cell"]
    moved = positions + np.random.default_rng(0).uniform(-0.2, 0.2, positions.shape)
    wanted = Model(base, "float64").compute(moved, types, cell)
    near = List.searched(model, positions, types, len(positions), 1.0, cell)
    assert_near(model.compute(moved, cell=cell, near=near), numbers(wanted), NEAR)
    # Periodic images are not of the input: of a second list, ghosts are.
    places, kinds, owners = ghosts(cell, positions, types, model.info().cutoff + 1.0)
    everything, kinds = np.concatenate([positions, places]), np.concatenate([types, kinds])
    near = List.searched(model, everything, kinds, len(positions), 1.0)
    shifts = places - positions[owners]
    got = model.compute(np.concatenate([moved, moved[owners] + shifts]), near=near)
    for name in ("forces", "atom_virial"):
        folded = got[name][: len(positions)].copy()
        np.add.at(folded, owners, got[name][len(positions) :])
        got[name] = folded
    assert_near(got, numbers(wanted), NEAR)


def test_memory_that_is_asked_for(base):
    model, memory = Model(base), ctypes.c_void_p()
    numbers = model.allocated((1000, 3))
    assert numbers.ctypes.data % 64 == 0
    numbers[:] = 1.0
    allocate = library().mdops_allocate
    refused(
        INVALID,
        "bytes is negative",
        lambda: check(allocate(model.handle, ctypes.c_int64(-1), ctypes.byref(memory))),
    )
    huge = ctypes.c_int64(2**62)
    refused(MEMORY, "not enough memory", lambda: check(allocate(model.handle, huge, ctypes.byref(memory))))
    assert not memory.value
    refused(INVALID, "model is null", lambda: check(allocate(None, ctypes.c_int64(8), ctypes.byref(memory))))


def test_a_search_is_refused_as_computing_is(base, system):
    model, positions = Model(base), system["positions"]
    refused(INVALID, "types is null", List.searched, model, positions, None, 4)
    refused(INVALID, "skin is negative", List.searched, model, positions, system["types"], 4, -1.0)
    refused(INVALID, "types", List.searched, model, positions, system["types"] + 2, 4)


def test_devices_that_are_not_there(base):
    refused(INVALID, "device is gpu, expected cpu, cuda or cuda:N", Model, base, "float32", device="gpu")
    refused(INVALID, "device is cuda:x", Model, base, "float32", device="cuda:x")
    with pytest.raises(CoreError, match=r"cuda:99|without CUDA") as caught:
        Model(base, "float32", device="cuda:99")
    assert caught.value.status in (DEVICE, UNSUPPORTED)
    assert library().mdops_gpu_count() <= torch.cuda.device_count()
    assert Model(base, device="cpu").info().gpu == -1


# -- Answers on a GPU


@gpu
@pytest.mark.parametrize(
    "folder",
    [
        *(REFERENCE / name for name in OF_SE_E2_A),
        *(KINDS / name for name in ("se_e2_r_base", "se_e2_r_pairs")),
    ],
    ids=lambda folder: folder.name,
)
def test_as_on_the_cpu(folder, tmp_path):
    path = written(folder, tmp_path / "model.safetensors")
    here = Model(path, "float64")
    for k, precision in enumerate(("float32", "float64")):
        if precision == "float64" and folder.name == "se_e2_r_pairs":
            refused(
                UNSUPPORTED, "se_e2_r with excluded pairs .* float32", Model, path, precision, device="cuda"
            )
            continue
        there = Model(path, precision, device="cuda")
        assert (there.info().gpu, there.info().precision, there.info().threads) == (0, k, 1)
        limits = {"energy": 1e-11, "other": 1e-10} if k else {"energy": 5e-6, "other": 5e-5}
        for case, _ in systems(folder):
            assert_near(there.compute(**case), numbers(here.compute(**case)), limits)


@gpu
@pytest.mark.parametrize("case", ["dpa1_concat_attn0", "dpa1_attn0_strip", "se_atten_v2"])
def test_dpa1_without_attention(case, tmp_path):
    potential = without_mean(case)
    potential.save(tmp_path / "model.safetensors", core=["float32", "float64"])
    case, _ = next(systems(KINDS / case))
    wanted = Model(tmp_path / "model.safetensors", overflow=EXTEND).compute(**case)
    for precision, limits in (("float32", NEAR), ("float64", {"energy": 1e-11, "other": 1e-10})):
        got = Model(tmp_path / "model.safetensors", precision, EXTEND, device="cuda").compute(**case)
        assert_near(got, numbers(wanted), limits)


@gpu
@pytest.mark.parametrize(
    ("embedding", "axis", "fitting"), [((9,), 3, (37, 37, 53)), ((10, 20), 4, (64, 128))]
)
def test_float64_of_sizes_that_are_no_tiles(embedding, axis, fitting, tmp_path):
    """Atoms, types and nets; with the tensor cores' products."""
    model = sample_model((60, 90), 4.0, embedding, axis, fitting, torch.float64)
    model.use_spline()
    model.save(tmp_path / "model.safetensors", core=["float64"])
    here, there = (
        Model(tmp_path / "model.safetensors", "float64", EXTEND, device=device) for device in ("cpu", "cuda")
    )
    for count in (40, 129, 1501):
        box = sample_box(count, ["O", "H"])
        case = {"positions": box.positions, "types": (box.numbers == 1).astype(int), "cell": box.cell.array}
        wanted, got = (x.compute(**case) for x in (here, there))
        assert_near(got, numbers(wanted), {"energy": 1e-11, "other": 1e-10})
        alone = there.compute(**case, atom_virial=False)
        assert np.array_equal(alone["forces"], got["forces"]), "with virials of atoms or without"


@gpu
def test_ghosts_and_a_given_list(base, system):
    cutoff = Model(base).info().cutoff
    positions, types, _ = ghosts(system["cell"], system["positions"], system["types"], cutoff)
    atoms = len(system["positions"])
    everything = np.concatenate([system["positions"], positions])
    kinds = np.concatenate([system["types"], types])
    near = List(kinds, atoms, rows_of(everything, atoms, 1.2 * cutoff), 2)
    wanted = Model(base).compute(everything, near=near)
    model = Model(base, "float32", device="cuda:0")
    assert_near(model.compute(everything, near=near), numbers(wanted), NEAR)
    fewer = List(kinds[:atoms], atoms, rows_of(system["positions"], atoms, cutoff), 2)
    alone = Model(base).compute(system["positions"], near=fewer)
    assert_near(model.compute(system["positions"], near=fewer), numbers(alone), NEAR)
    assert_near(model.compute(everything, near=near), numbers(wanted), NEAR)


@gpu
def test_memory_of_the_gpu(any_kind):
    """Positions and types from there, answers to there; and the thread's device stays."""
    path, system, precision, limits = any_kind
    positions, types = crowd(system)
    wanted = Model(path).compute(positions, types)
    model, atoms = Model(path, precision, device="cuda"), len(positions)
    there = [torch.tensor(types, dtype=torch.int32, device="cuda"), torch.tensor(positions, device="cuda")]
    shapes = {"forces": (atoms, 3), "atom_energy": (atoms,), "atom_virial": (atoms, 3, 3)}
    out = {name: torch.zeros(s, dtype=torch.float64, device="cuda") for name, s in shapes.items()}
    torch.cuda.synchronize()
    input = given([*there, None, None, None, None], atoms, 0)
    output = Output(**{name: value.data_ptr() for name, value in out.items()})
    check(library().mdops_compute(model.handle, ctypes.byref(input), ctypes.byref(output)))
    got = {"energy": output.energy, "virial": np.array(output.virial).reshape(3, 3)}
    assert_near(got | {name: value.cpu().numpy() for name, value in out.items()}, numbers(wanted), limits)
    assert torch.cuda.current_device() == 0


@gpu
def test_no_atoms_and_lonely_ones(any_kind):
    path, _, precision, limits = any_kind
    model = Model(path, precision, device="cuda")
    assert model.compute(np.zeros((0, 3)), np.zeros(0, np.int32))["energy"] == 0
    places = [[0.0, 0, 0], [50.0, 0, 0]]
    got, wanted = model.compute(places, [0, 1]), Model(path).compute(places, [0, 1])
    assert_near(got, {"atom_energy": wanted["atom_energy"]}, limits)
    assert not got["forces"].any() and not got["virial"].any()
    assert got["nearest"] == pytest.approx(model.info().cutoff, rel=1e-6)


@gpu
def test_models_of_two_precisions_share_a_list(base, system):
    positions, types = crowd(system)
    wanted = Model(base).compute(positions, types)
    models = [Model(base, precision, device="cuda") for precision in ("float32", "float64")]
    near = List.searched(models[0], positions, types, len(positions), 0.5)
    assert_near(models[1].compute(positions, near=near), numbers(wanted), {"energy": 1e-11, "other": 1e-10})
    assert_near(models[0].compute(positions, near=near), numbers(wanted), NEAR)


@gpu
@pytest.mark.parametrize("threads", [1, 3])
def test_memory_of_the_host(base, system, threads):
    """Such as the model gives, and other."""
    positions, types = crowd(system, 60)
    model = Model(base, "float32", threads=threads, device="cuda")
    wanted = Model(base).compute(positions, types)
    near = List.searched(model, positions, types, len(positions))
    own, forces = (model.allocated(positions.shape) for _ in range(2))
    own[:] = positions
    input = given([None, own, None, None, None, None], len(positions), 0, near)
    output = Output(forces=forces.ctypes.data)
    check(library().mdops_compute(model.handle, ctypes.byref(input), ctypes.byref(output)))
    assert_near({"forces": forces}, {"forces": wanted["forces"]}, NEAR)
    got = model.compute(positions, near=near)
    assert np.array_equal(got["forces"], forces) and got["energy"] == output.energy


@gpu
def test_the_same_bits_and_threads_with_models_of_their_own(any_kind):
    path, system, precision, _ = any_kind
    positions, types = crowd(system)
    wanted = Model(path, precision, device="cuda").compute(positions, types)
    failures = []

    def work(_):
        model = Model(path, precision, device="cuda")
        for size in (len(positions), 40, len(positions)):
            got = model.compute(positions[:size], types[:size])
        if got["energy"] != wanted["energy"] or not np.array_equal(got["forces"], wanted["forces"]):
            failures.append(got)

    in_threads(work, 4)
    assert not failures


@gpu
def test_what_is_wrong_is_told(base, system, tmp_path):
    model, positions, types = Model(base, "float32", device="cuda"), system["positions"], system["types"]
    refused(INVALID, "types.*out of range", model.compute, positions, types + 2, system["cell"])
    refused(INVALID, "positions.*finite", model.compute, positions * np.nan, types, system["cell"])
    refused(INVALID, "singular", model.compute, positions, types, np.ones((3, 3)))
    together = positions.copy()
    together[5] = together[2]
    refused(NEIGHBORS, "same place as atom 2$", model.compute, together, types, system["cell"])
    near = List.searched(model, positions, types, len(positions))
    refused(INVALID, "made on a GPU, and the model is on the CPU", Model(base).compute, positions, near=near)
    path = written(REFERENCE / "overflow", tmp_path / "model.safetensors")
    case, _ = next(systems(REFERENCE / "overflow"))
    with pytest.raises(CoreError) as here:
        Model(path).compute(**case)
    refused(
        NEIGHBORS, r"neighbours of type \w+ .* sel is", Model(path, "float32", device="cuda").compute, **case
    )
    assert "sel is" in str(here.value)
    wanted = Model(path, overflow=EXTEND).compute(**case)
    assert_near(Model(path, "float32", EXTEND, device="cuda").compute(**case), numbers(wanted), NEAR)
    assert np.isfinite(model.compute(positions, types)["energy"]), "and it goes on"


@gpu
def test_nothing_and_virtual_atoms(base, system):
    model = Model(base, "float32", device="cuda")
    assert model.compute(np.zeros((0, 3)), np.zeros(0, np.int32))["energy"] == 0
    types = system["types"].copy()
    types[3] = -1
    wanted = Model(base).compute(system["positions"], types, system["cell"])
    got = model.compute(system["positions"], types, system["cell"])
    assert_near(got, numbers(wanted), NEAR)
    assert got["atom_energy"][3] == 0 and not got["forces"][3].any()
    near = List(types, len(types), rows_of(system["positions"], len(types), 6.0), 2)
    broken = system["positions"].copy()
    broken[1, 0] = np.nan
    result = model.compute(broken, near=near)
    assert np.isnan(result["energy"]) and np.isnan(result["nearest"])


HIDDEN = """
import sys
sys.path.insert(0, sys.argv[1])
from core_library import CoreError, Model, library
assert library().mdops_gpu_count() == 0
try:
    Model(sys.argv[2], "float32", device="cuda")
except CoreError as error:
    assert "there is no cuda:0: this process sees 0 GPUs" in str(error)
assert abs(Model(sys.argv[2], "float32").compute([[0.0, 0, 0], [1.0, 1, 0]], [0, 1])["energy"]) > 0
"""


@gpu
def test_no_gpu_in_sight(base):
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [sys.executable, "-c", HIDDEN, Path(__file__).parent, base], check=True, timeout=120, env=env
    )
