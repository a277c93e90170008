"""Rebuilt kernels answer as the prebuilt ones, for the models they were built for and no others."""

import re
import shutil
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recipes import tiny

from mdops.cli import doctor, main
from mdops.cli.sample_model import sample_model
from mdops.files import cache, package
from mdops.jit import JitError, builder, kernels, models
from mdops.jit.sample_box import sample_box
from mdops.jit.stages import Stages
from mdops.system import from_atoms

ROOT = Path(__file__).parents[2]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def small_model(dtype=torch.float32, fitting=(24, 24)):
    model = sample_model((30, 60), 5.0, (8, 16, 32), 4, fitting, dtype)
    model.use_spline()
    return model


@pytest.fixture(autouse=True)
def as_before():
    """The prebuilt kernels run before and after each test."""

    def forget():
        for name in [*kernels._in_use]:
            kernels._in_use.pop(name)
        kernels._looked_for.clear()
        kernels._warned.clear()

    forget()
    yield
    for key in installed:
        kernels._switch(small_model(), key, False)
    installed.clear()
    forget()


installed: set[str] = set()


def built_for(model, **options):
    """The entry for a model, installed and not in use."""
    entry = kernels.entry_for(model, **options)
    kernels.install(model, entry)
    installed.add(entry.key)
    return entry


def use_cache_of(entry, folder, monkeypatch):
    """A cache with this entry alone, which may be changed."""
    place = folder / "jit" / entry.key
    shutil.copytree(entry.path.parent, place)
    for above in (folder, folder / "jit"):
        above.chmod(0o700)
    monkeypatch.setenv("MDOPS_CACHE", str(folder))
    return replace(entry, path=place / entry.path.name)


def answers(model):
    system = from_atoms([sample_box(60, model.type_map)], model.type_map)
    with torch.no_grad():
        return model.evaluate(system)


def called(model, entry) -> bool:
    """Whether the model's steps call an installed library, which was built with the profiler."""
    stages = Stages(entry.path)
    stages.record(1000)
    kernels._switch(model, entry.key, True)
    answers(model)
    kernels._switch(model, entry.key, False)
    return len(stages.events()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rebuilt_kernels_answer_as_the_prebuilt_ones(kept_cache, dtype):
    """In float32 with the profiler, in float64 without: both build, load and run."""
    model = small_model(dtype)
    entry = built_for(model, profiler=dtype == torch.float32)
    expected = answers(model)
    kernels.use(model, entry.key, True)
    assert kernels.in_use(model) == entry.key
    assert (
        model.explain() == f"fused: one op a step by kernels rebuilt for models of these sizes ({entry.key})"
    )
    for name, value in answers(model).items():
        bound = TOLERANCE[dtype] * float(expected[name].abs().max())
        torch.testing.assert_close(value, expected[name], rtol=0, atol=bound)
    kernels.use(model, entry.key, False)
    assert kernels.in_use(model) is None and torch.equal(answers(model)["forces"], expected["forces"])


def test_other_models_go_on_with_the_prebuilt_kernels(kept_cache):
    model = small_model()
    entry = built_for(model, profiler=True)
    assert called(model, entry)
    for other in (
        small_model(torch.float64),
        small_model(fitting=(24, 25)),
        small_model(fitting=(24, 24, 24)),
    ):
        assert not called(other, entry)
    softer = small_model()
    for net in (softer.model.fitting.net(t) for t in range(2)):
        for layer in net.layers[:-1]:
            layer.activation_name = "silu"
    assert not called(softer, entry)


def test_what_pays_is_used_by_models_that_come_later(kept_cache, tmp_path, monkeypatch):
    model = small_model(torch.float64)
    entry = use_cache_of(built_for(model), tmp_path / "cache", monkeypatch)
    for ratio, used in ((0.99, False), (0.9, True)):
        cache.keep_calibration(entry, {"prebuilt": 1.0, "rebuilt": ratio, "atoms": 384, "threads": 1})
        told = kernels.build(model)
        assert (told.prebuilt, told.rebuilt, told.pays, told.used) == (1.0, ratio, used, used)
        kernels._in_use.clear(), kernels._looked_for.clear()
        later = small_model(torch.float64)
        later.evaluator()
        assert kernels.in_use(later) == (entry.key if used else None)
    kernels.use(model, entry.key, False)
    assert kernels.build(model, always=True).used


def test_a_calibration_measures_both_and_stays_in_the_cache(kept_cache, tmp_path, monkeypatch):
    model = small_model(torch.float64)
    use_cache_of(built_for(model), tmp_path / "cache", monkeypatch)
    built = kernels.build(model)
    assert 0.3 < built.rebuilt / built.prebuilt < 3
    assert cache.find_all({"name": "spline_potential"})
    assert kernels.entry_for(model).calibration["atoms"] == 384
    assert kernels.build(model).prebuilt == built.prebuilt, "it is measured once"


def test_without_a_compiler_the_prebuilt_kernels_go_on_with_one_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    model = small_model()
    expected = answers(model)
    with pytest.warns(
        UserWarning, match=r"no C\+\+ compiler on this machine: install g\+\+.* The prebuilt kernels are used"
    ):
        assert kernels.build(model) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.build(model) is None
    assert torch.equal(answers(model)["forces"], expected["forces"])


def test_without_ninja_or_permission_the_prebuilt_kernels_go_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        builder.toolchain, "ninja", lambda: builder.toolchain._first("ninja", [], "pip install ninja")
    )
    with pytest.warns(UserWarning, match="no ninja on this machine: pip install ninja"):
        assert kernels.build(small_model()) is None
    monkeypatch.setenv("MDOPS_JIT", "0")
    with pytest.warns(
        UserWarning, match="MDOPS_JIT=0 forbids compiling: spline_potential-.*neurons.*would have been"
    ):
        assert kernels.build(small_model()) is None


def test_a_cache_that_cannot_be_trusted_is_told_and_not_used(tmp_path, monkeypatch):
    (tmp_path / "cache/jit").mkdir(parents=True)
    (tmp_path / "cache/jit").chmod(0o777)
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
    with pytest.warns(UserWarning, match="rebuilt kernels are not used: others may write to"):
        assert small_model().explain() == "fused: one op a step"


def test_models_of_other_evaluators_have_no_kernels_to_rebuild(kept_cache):
    model = sample_model((30, 60), 5.0, (8, 16, 32), 4, (24, 24))
    with pytest.warns(
        UserWarning, match="kernels are rebuilt for the evaluator `fused`: the embedding nets are"
    ):
        assert kernels.build(model) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "has no function mdops_kernel_table"),
        (
            'extern "C" const void* mdops_kernel_table() { static unsigned t[32] = {77, 128}; return t; }',
            "has a table of version 77, and this mdops calls version",
        ),
    ],
)
def test_another_library_is_refused(tmp_path, monkeypatch, source, message):
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
    made = tiny(tmp_path / "source")
    (tmp_path / "source/answer.cpp").write_text(source)
    entry = builder.entry_of(made)
    with pytest.raises(JitError, match=message):
        kernels.install(small_model(), entry)
    (tmp_path / "none.so").write_bytes(b"no library")
    with pytest.raises(JitError, match=r"rebuilt kernels do not load: .*none\.so"):
        kernels.install(small_model(), replace(entry, path=tmp_path / "none.so"))


def test_the_sources_in_the_package_are_those_of_the_library():
    folder = package.source_folder()
    for name in (
        "spline_potential/rebuilt.cpp",
        "spline_potential/cuda.cu",
        "gemm/net.h",
        "common/profiler.h",
    ):
        assert (folder / name).read_bytes() == (ROOT / "source/op" / name).read_bytes(), "build mdops again"


def test_flags_are_those_of_the_prebuilt_kernels():
    told = (ROOT / "CMakeLists.txt").read_text()
    for flag in models.CPU_FLAGS:
        if flag.startswith(("-fno", "-ffp")):
            assert flag in told
    assert "-DMDOPS_MODEL_NEURONS=24,24" in models.model_defines(models.wanted(small_model()).sizes)


@pytest.mark.skipif(torch.ops.mdops.cpu_isa() != "v4", reason="the program takes x86-64-v4")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_flags_keep_calls_of_what_writes(tmp_path):
    """GCC 12 takes this function for one without effects: of the address that it copies from it knows no base."""
    source, program = Path(__file__).with_name("writes.cpp"), tmp_path / "writes"
    flags = [*models.CPU_FLAGS, "-O2", "-march=x86-64-v4"]
    subprocess.run(["g++", *flags, str(source), "-o", str(program)], check=True)
    assert subprocess.run([program], check=True, capture_output=True, text=True).stdout == "11 572\n"


def test_the_command_builds_lists_and_clears(tmp_path, kept_cache, monkeypatch, capsys):
    model = small_model(torch.float64)
    model.save(tmp_path / "model.dp")
    entry = use_cache_of(built_for(model), tmp_path / "cache", monkeypatch)
    cache.keep_calibration(entry, {"prebuilt": 1.0, "rebuilt": 0.99, "atoms": 384, "threads": 1})
    monkeypatch.setenv("MDOPS_JIT", "0")  # what is there needs no compiler
    assert main(["build", str(tmp_path / "model.dp"), "--dtype", "float64"]) == 0
    assert "of the time with the prebuilt ones" in capsys.readouterr().out
    assert main(["build", "--list"]) == 0
    assert f"{entry.key} (" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "model.dp")]) == 0
    assert "kernels           prebuilt (`mdops build MODEL`" in capsys.readouterr().out
    assert main(["build", str(tmp_path / "model.dp")]) == 2
    assert "MDOPS_JIT=0 forbids compiling" in capsys.readouterr().err
    assert main(["build", "--clear"]) == 0
    assert "1 entries removed" in capsys.readouterr().out
    assert main(["build"]) == 2


def test_doctor_lists_the_cache_and_the_compilers(kept_cache, monkeypatch):
    built_for(small_model(torch.float64))
    assert re.fullmatch(
        rf"[1-9]\d* in {kept_cache} \([\d.]+ MiB; `mdops build --list`\)", doctor._rebuilt().value
    )
    assert re.match(r"/\S+, (/\S+|no nvcc), /\S+ninja$", doctor._tools().value)
    monkeypatch.setenv("PATH", "")
    assert doctor._tools().value.startswith("no C++ compiler, ")


def test_arguments_have_one_layout_in_all_libraries(tmp_path):
    """A rebuilt library reads what the op filled in: with constants of its own, and at the op's places."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    told = []
    sizes = models.wanted(small_model()).sizes
    for k, defines in enumerate(
        [(), models.model_defines(sizes), models.model_defines({**sizes, "extra": 2})]
    ):
        program = tmp_path / f"layout{k}"
        flags = ["-std=c++20", "-w", "-DMDOPS_ISA=isa_portable", "-I", str(ROOT / "source/op"), *defines]
        source = Path(__file__).with_name("layout.cpp")
        subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
        told.append(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    assert told[0] == told[1] == told[2]
