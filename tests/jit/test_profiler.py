"""The profiler: its trace, its table, and that kernels without it are as if it were not there."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from statistics import median

import pytest
from test_rebuilt import as_before, small_model  # noqa: F401  (a fixture)

from mdops.cli import main
from mdops.cli.sample_model import sample_box
from mdops.jit import JitError, kernels, models, recipe, toolchain
from mdops.jit.profile import OUTSIDE, profile
from mdops.jit.stages import Stages
from mdops.jit.trace import Span, shares, table

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


@pytest.mark.parametrize("threads", [1, 2])
def test_the_stages_add_up_to_the_step(kept_cache, tmp_path, threads):
    """Within 5% of the time by the clock around a step, in the file as it was written."""
    import torch

    torch.set_num_threads(threads)
    model, steps = small_model(), 5
    found = profile(model, sample_box(600, model.type_map), steps)
    assert kernels.in_use(model) is None, "the prebuilt kernels run again"
    found.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [
        Span(e["name"], round(1000 * e["ts"]), round(1000 * (e["ts"] + e["dur"])), (e["pid"], e["tid"]))
        for e in events
        if e["ph"] == "X"
    ]
    assert len(spans) == len(found.spans)
    names = {span.name for span in spans} - {"neighbour search"}
    assert names == {*ON_CPU, OUTSIDE, "neighbour list checked", "sums over atoms"}
    assert sum(span.name == "moments" for span in spans) == steps * 600
    start = min(span.begin for span in found.spans)
    ratios, of_kernels = [], []
    for begin, end in found.windows:
        of = shares([s for s in spans if begin - start <= s.begin and s.end <= end - start])
        ratios.append(sum(of.values()) / (end - begin))
        of_kernels.append(sum(time for name, time in of.items() if name in ON_CPU) / (end - begin))
    assert median(ratios) == pytest.approx(1, rel=0.05)
    if threads == 1:  # no step is mostly what is around the kernels, unless the machine is busy otherwise
        assert max(of_kernels) > 0.5


def test_the_command_writes_a_trace_and_a_table(kept_cache, tmp_path, capsys):
    small_model().save(tmp_path / "model.dp")
    out = tmp_path / "out.json"
    assert main(["profile", str(tmp_path / "model.dp"), "--atoms", "96", "--steps", "2", "-o", str(out)]) == 0
    told = capsys.readouterr().out
    assert (
        "net up" in told
        and "a step" in told
        and "a neighbour search takes" in told
        and f"{out}: open it in" in told
    )
    assert json.loads(out.read_text())["traceEvents"]
    assert main(["profile", str(tmp_path / "model.dp"), "--no-spline", "-o", str(out)]) == 2
    assert "kernels are rebuilt for the evaluator `fused`" in capsys.readouterr().err


def test_kernels_without_the_profiler_have_no_stages(kept_cache):
    from test_rebuilt import built_for, torch

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
    shown = subprocess.run(
        ["objdump", "-d", "-s", "-j", ".text", made], capture_output=True, text=True, check=True
    )
    return shown.stdout.partition("\n\n")[2]


@pytest.fixture
def without_profiler(tmp_path):
    """The sources with macros that are defined empty."""
    shutil.copytree(recipe.source_folder(), tmp_path / "source")
    macros = "#define MDOPS_STAGE(id)\n#define MDOPS_STAGE_IF(condition, yes, no)\n"
    header = tmp_path / "source/common/profiler.h"
    header.write_text(f'#pragma once\n#include "common/kernel_table.h"\n{macros}')
    return tmp_path / "source"


def test_off_the_code_is_what_it_is_with_empty_macros(tmp_path, without_profiler):
    off = code(recipe.source_folder(), tmp_path)
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
    sources = recipe.source_folder()
    headers = sorted(str(path.relative_to(sources)) for path in sources.glob("*/gpu_*.h"))
    digest = recipe.sources_digest(sources, tuple(headers))
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
