"""Neighbour lists of the C core: which models and cells they are for, and threads that share one."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from children import in_threads
from core_library import EXTEND, INVALID, CoreError, List, Model

import mdops.core
from mdops.cli.sample_model import sample_model
from mdops.jit.sample_box import sample_box

gpu = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=gpu)]


def needs_gpus(count: int) -> None:
    if torch.cuda.device_count() < count:
        pytest.skip(f"it needs {count} GPUs")


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Models that reach to 4 and to 5 A."""
    folder = tmp_path_factory.mktemp("lists")
    for cutoff in (4.0, 5.0):
        model = sample_model((60, 90), cutoff, (9,), 3, (20, 20), torch.float64)
        model.use_spline()
        model.save(folder / f"{cutoff:g}.safetensors", core=["float32", "float64"])
    return {cutoff: folder / f"{cutoff:g}.safetensors" for cutoff in (4, 5)}


@pytest.fixture(scope="module")
def system():
    box = sample_box(60, ["O", "H"])
    types = (box.numbers == 1).astype(np.int32)
    return {"positions": box.positions, "types": types, "cell": box.cell.array}


def searched(model, system, skin=0.0, **changes):
    return List.searched(model, atoms=len(system["types"]), skin=skin, **(system | changes))


def refused(match, call, *args, **options):
    with pytest.raises(CoreError, match=match) as caught:
        call(*args, **options)
    assert caught.value.status == INVALID


@pytest.mark.parametrize("device", DEVICES)
def test_a_list_reaches_to_the_models_cutoff(paths, system, device):
    near, far = (Model(paths[cutoff], "float64", EXTEND, device=device) for cutoff in (4, 5))
    given = {"positions": system["positions"], "cell": system["cell"]}
    refused(
        r"searched within 4.0+ A, and the model's cutoff is 5.0+ A",
        far.compute, **given, near=searched(near, system),
    )  # fmt: skip
    refused("searched within 4.9", far.compute, **given, near=searched(near, system, skin=0.9))
    for model in (near, far):
        wanted = model.compute(**system)
        for by, skin in ((near, 1.0), (far, 0.0)):  # which reach as far as either
            got = model.compute(**given, near=searched(by, system, skin))
            assert got["energy"] == pytest.approx(wanted["energy"], rel=1e-12)
            assert np.allclose(got["forces"], wanted["forces"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_a_list_is_used_in_the_cell_that_it_was_searched_in(paths, system, device):
    model = Model(paths[4], "float64", EXTEND, device=device)
    positions, cell = system["positions"], system["cell"]
    match = "searched with other periodic directions"
    refused(match, model.compute, positions, near=searched(model, system))
    refused(match, model.compute, positions, cell=cell, near=searched(model, system, cell=None))
    slab = searched(model, system, periodic=[1, 1, 0])
    refused(match, model.compute, positions, cell=cell, near=slab)
    got = model.compute(positions, cell=cell, periodic=[1, 1, 0], near=slab)
    wanted = model.compute(**system, periodic=[1, 1, 0])
    assert got["energy"] == pytest.approx(wanted["energy"], rel=1e-12)
    # Nothing is periodic in either way of saying so.
    alone = searched(model, system, cell=None)
    got = model.compute(positions, cell=cell, periodic=[0, 0, 0], near=alone)
    assert got["energy"] == pytest.approx(model.compute(positions, system["types"])["energy"], rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_a_filled_list_has_ghosts_in_the_place_of_a_cell(paths, system, device):
    model = Model(paths[4], "float64", EXTEND, device=device)
    near = List(system["types"], 60, [[1]] + [[0]] * 59, 2)
    refused("a list that was filled", model.compute, system["positions"], cell=system["cell"], near=near)


def test_an_error_leaves_a_list_empty(paths, system):
    model = Model(paths[4])
    near = searched(model, system)
    refused("is of type 2", near.fill, system["types"] + 2, 60, [[]] * 60, 2)
    refused("the list was filled for 0", model.compute, system["positions"], cell=system["cell"], near=near)


# -- Several GPUs


@gpu
def test_models_on_two_gpus_share_a_list(paths, system):
    """In threads, each with a copy of it on its own GPU."""
    needs_gpus(2)
    count = 40
    positions = np.concatenate([system["positions"] + [0, 0, 60.0 * k] for k in range(count)])
    types = np.tile(system["types"], count)
    apart = np.linalg.norm(system["positions"][:, None] - system["positions"], axis=-1)
    rows = [np.flatnonzero((row < 6.0) & (row > 0)) + 60 * k for k in range(count) for row in apart]
    near = List(types, len(types), rows, 2)
    wanted = Model(paths[5], "float64", EXTEND).compute(positions, near=near)
    failures, together = [], threading.Barrier(2)

    def work(index):
        model = Model(paths[5], "float64", EXTEND, device=f"cuda:{index}")
        together.wait()
        for _ in range(50):
            got = model.compute(positions, near=near)
            if not np.allclose(got["forces"], wanted["forces"], rtol=0, atol=1e-8):
                failures.append(got)

    for _ in range(3):  # the list is copied anew
        near.fill(types, len(types), rows, 2)
        in_threads(work, 2, seconds=100)
        assert not failures


# In a process that uses CUDA by the core alone; PyTorch is not imported.
CONTEXTS = """
import ctypes, sys, types
sys.path.insert(0, sys.argv[1])
import numpy as np
for name in ("mdops", "mdops.core"):  # whose import loads PyTorch
    sys.modules[name] = types.ModuleType(name)
sys.modules["mdops"].core = sys.modules["mdops.core"]
sys.modules["mdops.core"].library = lambda: sys.argv[2]
from core_library import List, Model, library
index, path = int(sys.argv[3]), sys.argv[4]
cuda = ctypes.CDLL("libcuda.so.1")


def current():
    context = ctypes.c_void_p()
    assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


def active(device):
    flags, is_active = ctypes.c_uint(), ctypes.c_int()
    assert cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active)) == 0
    return is_active.value


model = Model(path, "float32", 1, device=f"cuda:{index}")
positions = np.random.default_rng(0).uniform(0, 12, (64, 3))
types = np.arange(64) % 2
energy = model.compute(positions, types)["energy"]
near = List.searched(model, positions, types, 64, 1.0)
assert model.compute(positions, near=near)["energy"] == energy
memory = model.allocated((64, 3))
memory[:] = positions
assert model.compute(memory, near=near)["energy"] == energy
assert current() is None, "the thread has a context that it had not"
del near
del model
assert current() is None
for device in range(library().mdops_gpu_count()):
    assert active(device) == (device == index), f"a context on GPU {device}"
"""


@gpu
@pytest.mark.parametrize("index", [0, 1])
def test_a_model_makes_a_context_on_its_own_gpu_alone(paths, index):
    """And leaves the thread without one, if it had none."""
    needs_gpus(index + 1)
    command = [
        sys.executable,
        "-c",
        CONTEXTS,
        Path(__file__).parent,
        mdops.core.library(),
        str(index),
        paths[4],
    ]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=200, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr


@gpu
def test_the_threads_device_is_what_it_was(paths, system):
    """Of a program that uses CUDA, too."""
    needs_gpus(2)
    torch.cuda.set_device(1)
    try:
        model = Model(paths[4], "float32", EXTEND, device="cuda:0")
        model.compute(**system)
        assert torch.cuda.current_device() == 1
        assert torch.zeros(1, device="cuda").device.index == 1
    finally:
        torch.cuda.set_device(0)
