"""The profiler: its trace, its table, and that kernels without it are as if it were not there."""

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from parts_cases import ATTENTIVE, A, R, hybrid, potential_of
from test_rebuilt import as_before, small_model  # noqa: F401  (a fixture)
from traces import covered, spans_of

from mdops.cli import main
from mdops.files import package
from mdops.jit import JitError, kernels, models, toolchain
from mdops.jit.by_stages import OUTSIDE
from mdops.jit.profile import profile
from mdops.jit.sample_box import sample_box
from mdops.jit.stages import Stages
from mdops.jit.trace import AROUND, GPU, HOST, Span, shares, table

ON_CPU = {"pairs within the cutoff", "moments", "moments to T", "features", "net up", "net down", "features back",
          "T to moments", "forces"}  # fmt: skip


def test_the_moments_of_a_track_belong_to_the_innermost_span():
    spans = [
        Span("step", 0, 100, (1, 1)),
        Span("net", 10, 60, (1, 1)),
        Span("features", 20, 30, (1, 1)),
        Span("net", 60, 70, (1, 1)),  # begins where the other ends
    ]
    assert shares(spans) == {"step": 40, "net": 50, "features": 10}


def test_tracks_that_are_busy_at_once_share_the_time():
    spans = [
        Span("step", 0, 100, (1, 1)),
        Span("net", 40, 80, (1, 2)),
        Span("net", 40, 80, (1, 3)),
        Span("forces", 200, 210, (2, 1)),
    ]
    assert shares(spans) == {"step": 73, "net": 27, "forces": 10}  # of 40, the net has two parts of three
    assert table(spans, 1, 110).splitlines()[-3].split() == ["all", "0.0001", "100.0%"]


def test_a_gpus_kernels_have_the_time_of_the_ops_that_wait_for_them():
    spans = [
        Span("around", 0, 100, (AROUND, 1)),
        Span("op", 10, 90, (HOST, 1)),
        Span("backward", 50, 70, (HOST, 2)),  # another thread
        Span("kernel", 60, 100, (GPU, 7)),
    ]
    assert shares(spans) == {"around": 10, "op": 45, "backward": 5, "kernel": 40}


def test_names_beyond_the_first_share_a_line():
    spans = [Span(f"op {k}", 100 * k, 100 * k + 90, (HOST, 1)) for k in range(40)]
    lines = table(spans, 1, 4000, "op").splitlines()
    assert lines[0].split()[0] == "op" and len(lines) == 1 + 30 + 1 + 3
    assert lines[31].split() == ["10", "others", "0.0009", "22.5%", "10.0"]
    assert lines[32].split() == ["all", "0.0036", "90.0%"]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_stages_add_up_to_the_step(kept_cache, tmp_path, threads):
    """Within 5% of the time by the clock around a step, in the file as it was written."""
    torch.set_num_threads(threads)
    model, steps = small_model(), 5
    found = profile(model, sample_box(600, model.type_map), steps)
    assert kernels.in_use(model) is None, "the prebuilt kernels run again"
    path = tmp_path / "trace.json"
    found.write(path)
    spans = spans_of(path)
    assert len(spans) == len(found.spans)
    assert {span.name for span in spans} == {*ON_CPU, OUTSIDE, "neighbour list", "sums over atoms"}
    assert sum(span.name == "moments" for span in spans) == steps * 600
    assert covered(found, path) == pytest.approx(1, rel=0.05)
    if threads == 1:  # steps are not mostly what is around the kernels
        of = shares(found.spans)
        assert sum(time for name, time in of.items() if name in ON_CPU) > 0.3 * sum(of.values())


def test_the_command_writes_a_trace_and_a_table(kept_cache, tmp_path, capsys):
    small_model().save(tmp_path / "model.dp")
    out = tmp_path / "out.json"
    assert main(["profile", str(tmp_path / "model.dp"), "--atoms", "96", "--steps", "2", "-o", str(out)]) == 0
    told = capsys.readouterr().out
    for words in ("stages, by kernels rebuilt with", "net up", "a step", "a neighbour search takes",
                  f"{out}: open it in"):  # fmt: skip
        assert words in told
    assert json.loads(out.read_text())["traceEvents"]


def test_ops_of_a_model_without_rebuilt_kernels_add_up_to_the_step(tmp_path):
    """Within 5% of the time by Python's clock around a step, in the file as it was written."""
    model, steps = potential_of(ATTENTIVE, dtype=torch.float32, overflow="extend"), 3
    done = []
    found = profile(model, sample_box(96, model.type_map), steps, on_step=done.append)
    path = tmp_path / "trace.json"
    found.write(path)
    assert done[-1] == steps and found.key is None
    assert found.way.startswith(
        "ops by PyTorch's profiler, not stages: kernels are rebuilt for the evaluator `fused`"
    )
    counts = Counter(span.name for span in found.spans)
    assert {counts["evaluation"], counts["around the ops"]} == {steps}
    assert counts["mdops::spline_rows"] == counts["mdops::spline_rows_backward"] >= steps
    assert not any("Generated" in name for name in counts)
    assert covered(found, path) == pytest.approx(1, rel=0.05)
    lines = found.table().splitlines()
    assert lines[0].split() == ["op", "ms/step", "share", "times/step"]
    assert [line.split()[0] for line in lines[-5:]] == ["all", "between", "a", "a", "a"]
    assert "without the profiler" in lines[-2]


def test_the_command_says_which_profile_it_is_and_why(kept_cache, tmp_path, monkeypatch, capsys):
    def told(model, *options):
        model.save(tmp_path / "model.dp")
        out = tmp_path / "out.json"
        command = ["profile", str(tmp_path / "model.dp"), "--atoms", "48", "--steps", "1", "-o", str(out)]
        assert main([*command, *options]) == 0 and json.loads(out.read_text())["traceEvents"]
        return re.search("ops by PyTorch's profiler, not stages: (.*)", capsys.readouterr().out)[1]

    assert "`fused`: the embedding nets are evaluated exactly" in told(small_model(), "--no-spline")
    assert told(small_model(), "--ops") == "--ops asks for that"
    joined = potential_of(hybrid(A, R), dtype=torch.float32, overflow="extend")
    assert "one descriptor of sums over neighbours, and this is a standard model of se_e2_a, se_r" in told(
        joined
    )
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("MDOPS_JIT", "0")
    assert told(small_model()).startswith("MDOPS_JIT=0 forbids compiling")


def test_kernels_without_the_profiler_have_no_stages(kept_cache):
    from test_rebuilt import built_for

    with pytest.raises(JitError, match="was built without the profiler"):
        Stages(built_for(small_model(torch.float64)).path)


def code(sources: Path, folder: Path, *flags: str) -> str:
    """The machine code of the rebuilt kernels' source, as objdump shows it."""
    made = folder / "object.o"
    model = models.model_defines(models.wanted(small_model()).sizes)
    options = ["-std=c++20", "-O1", "-DMDOPS_ISA=isa_portable", *model, *flags, f"-I{sources}"]
    compiler = toolchain.host_compiler().path
    subprocess.run(
        [compiler, *options, "-c", sources / "spline_potential/rebuilt.cpp", "-o", made], check=True
    )
    shown = subprocess.run(["objdump", "-d", made], capture_output=True, text=True, check=True)
    return shown.stdout.partition("\n\n")[2]


@pytest.fixture
def without_profiler(tmp_path):
    """The sources with macros that are defined empty."""
    shutil.copytree(package.source_folder(), tmp_path / "source")
    macros = "#define MDOPS_STAGE(id)\n#define MDOPS_STAGE_IF(condition, yes, no)\n"
    header = tmp_path / "source/common/profiler.h"
    header.write_text(f'#pragma once\n#include "common/kernel_table.h"\n{macros}')
    return tmp_path / "source"


def test_off_the_code_is_what_it_is_with_empty_macros(tmp_path, without_profiler):
    off = code(package.source_folder(), tmp_path)
    assert len(off) > 10_000
    assert off == code(without_profiler, tmp_path)


def nvcc(sources: Path, unit: Path, made: Path, *flags: str) -> str:
    """What nvcc makes of a source, for a chip of any kind."""
    command = ["nvcc", "-std=c++20", "-arch=compute_80", *flags, f"-I{sources}", unit, "-o", made]
    subprocess.run(command, check=True)
    return made.read_text()


def preprocessed(sources: Path, unit: Path, made: Path) -> str:
    """The lines that the compiler sees of our own headers, but for the profiler's and what checks a stage's name."""
    lines, ours = [], False
    for line in nvcc(sources, unit, made, "-E").splitlines():
        if line.startswith("#"):
            file = line.split('"')[1] if '"' in line else ""
            ours = file.startswith(str(sources)) and not file.endswith("profiler.h")
        elif ours:
            lines.append(
                re.sub(r"static_assert\(static_cast<int>\(::mdops::Stage::\w+\) >= 0\)|;|\s", "", line)
            )
    return "".join(lines)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="there is no nvcc")
def test_the_gpus_kernels_compile_with_either_value_of_the_flag(pytestconfig, tmp_path, without_profiler):
    """What was compiled once is not compiled again while its sources are the same."""
    sources = package.source_folder()
    headers = sorted(str(path.relative_to(sources)) for path in sources.glob("*/gpu_*.h"))
    digest = package.sources_digest(sources, tuple(headers))
    done = pytestconfig.cache.mkdir("mdops-ptx") / digest
    if done.exists():
        return
    staged = [name for name in headers if "MDOPS_STAGE(" in (sources / name).read_text()]
    unit = tmp_path / "staged.cu"
    unit.write_text("".join(f'#include "{name}"\n' for name in staged))
    off = preprocessed(sources, unit, tmp_path / "off.ii")
    assert len(off) > 10_000 and "StageTimer" not in off
    assert off == preprocessed(without_profiler, unit, tmp_path / "empty.ii")
    on = nvcc(sources, unit, tmp_path / "on.ptx", "-ptx", "-DMDOPS_PROFILER")
    assert "globaltimer" in on
    done.touch()
