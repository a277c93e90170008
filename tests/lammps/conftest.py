"""A LAMMPS to run, and models for it."""

import os
import subprocess

import pytest
import torch
from lammps_runs import ROOT, Runner

import mdops
from mdops.core import compile_flags, library
from mdops.errors import JitError
from mdops.lammps import find_lammps, find_program


@pytest.fixture(scope="session")
def found(own_cache):
    try:
        find_program()
        if "MDOPS_LAMMPS_PLUGIN" not in os.environ:
            find_lammps()  # with its headers
    except JitError as error:
        pytest.skip(str(error))


@pytest.fixture
def run(found, tmp_path):
    return Runner(tmp_path)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Two models with other weights, one as it is saved where nothing is said, one for float64 alone."""
    folder = tmp_path_factory.mktemp("models")
    potential = mdops.load(ROOT / "tests/data/reference/base/model.dp", dtype="float64")
    potential.save(folder / "a.safetensors")
    with torch.no_grad():
        for weight in potential.model.fitting.parameters():
            weight.mul_(1.02)
    potential.save(folder / "b.safetensors", core=["float64"])
    return folder


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mdops.h>

static void *real(const char *name) { return dlsym(dlopen(CORE, RTLD_NOW), name); }

int mdops_gpu_count(void) { return 1; }

int mdops_load(const char *path, const mdops_options *options, mdops_model **model) {
  mdops_options here = *options;
  here.device = "cpu";
  return ((int (*)(const char *, const mdops_options *, mdops_model **))real("mdops_load"))(path, &here, model);
}

int mdops_describe(const mdops_model *model, mdops_info *info) {
  const int status = ((int (*)(const mdops_model *, mdops_info *))real("mdops_describe"))(model, info);
  info->gpu = 0;
  return status;
}
"""


@pytest.fixture(scope="session")
def as_on_a_gpu(tmp_path_factory):
    """A library that says that models are on a GPU, so that LAMMPS goes the way of those where there is none."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    build = [
        "gcc",
        "-Wall",
        "-shared",
        "-fPIC",
        *compile_flags(),
        f'-DCORE="{library()}"',
        folder / "shim.c",
        "-ldl",
    ]
    subprocess.run([*map(str, build), "-o", str(folder / "shim.so")], check=True)
    return folder / "shim.so"


@pytest.fixture(params=["cpu", "way of a GPU", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, run):
    """The word for pair_style: on the CPU, on the CPU as if it were a GPU, and on one."""
    if request.param == "way of a GPU":
        run.env["LD_PRELOAD"] = str(request.getfixturevalue("as_on_a_gpu"))
    return "cpu" if request.param == "cpu" else "cuda"
