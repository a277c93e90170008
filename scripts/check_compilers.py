"""Builds the CPU library with installed compilers, and runs the op tests with it on every instruction set,
except those of what PyTorch does with the ops (opcheck, torch.compile).

    .venv/bin/python scripts/check_compilers.py [g++-11 g++-12 clang++-14 ...] [--sanitize g++-12] [--json table.json]

Each build is installed into its own virtual environment, which sees this one's packages. `--sanitize` also builds
with that compiler, AddressSanitizer and UndefinedBehaviorSanitizer, and runs every sample of
`mdops.testing` and steps of models, in inference and training; an error that they find ends the process.
`--only REGEX` uses them only for matching sources.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from op_tests import copied as op_tests_in

ROOT = Path(__file__).resolve().parents[1]
COMPILERS = ["g++-11", "g++-12", "clang++-13", "clang++-14"]
LEVELS = ["v2", "v3", "v4"]
# Tests of how PyTorch uses and compiles the ops take most of the time, and do not depend on the C++ compiler.
SKIPPED = ("-k", "not opcheck and not compiled")
SAMPLES = """
import torch
from mdops import Potential
from mdops.calculator import MDOps
from mdops.cli.sample_model import water_model
from mdops.jit.sample_box import sample_box
from mdops.models import DescriptorFitting
from mdops.models.standard import StandardOptions
from mdops.options import parse
from mdops.system import from_atoms
from mdops.testing import op_samples

PAIRS = {"rcut": 4.0, "rcut_smth": 1.0, "sel": [60, 90], "neuron": [5, 9]}
TRIPLES = {"rcut": 3.0, "rcut_smth": 1.0, "neuron": [3, 6]}
DESCRIPTORS = [
    {"type": "hybrid", "list": [{"type": "se_e2_a", "axis_neuron": 3, **PAIRS}, {"type": "se_e2_r", **PAIRS}]},
    {"type": "se_e3", "sel": [40, 60], **TRIPLES},
    {"type": "se_e3_tebd", "sel": 90, "tebd_dim": 4, "tebd_input_mode": "strip", **TRIPLES},
    {"type": "dpa1", "attn_layer": 2, "attn": 8, "axis_neuron": 3, **PAIRS, "sel": 90},
]


def steps(descriptor, dtype):
    sections = {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": {"neuron": [12, 12]}}
    model = DescriptorFitting.random(parse(StandardOptions, sections), 0, torch.float64)
    potential = Potential(model.to(dtype), overflow="truncate").eval()
    potential.use_spline()
    for box in (sample_box(101, ["O", "H"]), sample_box(3, ["O", "H"])):
        system = from_atoms([box], potential.type_map)
        potential.eval().evaluate(system, atom_virial=True)
        answers = potential.train().predict(system, potential.neighbor_list(system))
        (answers["energy"].sum() + answers["forces"].pow(2).sum()).backward()

for threads in (1, 2):
    torch.set_num_threads(threads)
    for dtype in (torch.float32, torch.float64):
        for sample in op_samples("cpu", dtype):
            sample.function(*sample.args)
            if sample.op == "spline_training":
                args, saved = sample.args, sample.function(*sample.args)[5]
                systems = len(args[1])
                grads = [torch.randn(*s, dtype=torch.float64) for s in ((5,), (5, 3), (systems, 3, 3))]
                torch.ops.mdops.spline_training_backward(*grads, saved, *args)
        model = water_model(dtype)
        atoms = sample_box(101, model.type_map)
        atoms.calc = MDOps(model)
        atoms.get_forces()
        for descriptor in DESCRIPTORS:
            steps(descriptor, dtype)
print("clean")
"""


def run(*command: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)


def version_of(compiler: str) -> str | None:
    """The compiler's version line; None if it is not installed."""
    if shutil.which(compiler) is None:
        return None
    return run(compiler, "--version").stdout.splitlines()[0]


def install(compiler: str, folder: Path, sanitize: str) -> Path:
    """The Python of a new environment with the library built by this compiler; `sanitize`: MDOPS_SANITIZE."""
    venv = folder / re.sub(r"\W", "", compiler)
    run(sys.executable, "-m", "venv", venv)
    packages = next((venv / "lib").glob("python3*/site-packages"))
    (packages / "packages.pth").write_text("\n".join(p for p in sys.path if "site-packages" in p))
    options = [f"CMAKE_CXX_COMPILER={compiler}", "MDOPS_CUDA=OFF", f"MDOPS_SANITIZE={sanitize}"]
    defines = [word for option in options for word in ("-C", f"cmake.define.{option}")]
    pip = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    build = ["-C", f"build-dir={folder / 'build'}", "--no-build-isolation", "--no-deps", "--ignore-installed"]
    made = run(*pip, *build, *defines, ROOT)
    shutil.rmtree(folder / "build", ignore_errors=True)
    if made.returncode:
        raise SystemExit(f"{compiler} does not build it:\n{made.stdout[-4000:]}{made.stderr[-2000:]}")
    return venv / "bin/python"


def environment(level: str) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return own | {"MDOPS_CPU_ISA": level, "OMP_NUM_THREADS": "1"}


def under_sanitizers(compiler: str, level: str) -> dict[str, str]:
    """The environment of a process that loads the sanitizers' runtimes at its start, as they require."""
    names = ("libasan.so", "libubsan.so")
    if "clang" in compiler:
        names = ("libclang_rt.asan-x86_64.so",)
    libraries = [run(compiler, f"-print-file-name={name}").stdout.strip() for name in names]
    return environment(level) | {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def supported(python: Path, environments: dict[str, dict[str, str]]) -> list[str]:
    """The instruction sets of this processor, among those with an environment."""
    asked = "import torch, mdops.ops; torch.ops.mdops.cpu_isa()"
    answers = {level: run(python, "-c", asked, cwd="/", env=env) for level, env in environments.items()}
    if answers["v2"].returncode:
        raise SystemExit(f"the library does not load: {answers['v2'].stderr[-2000:]}")
    return [level for level, answer in answers.items() if answer.returncode == 0]


def op_tests(python: Path, folder: Path, level: str) -> dict[str, str]:
    """pytest's result for the op tests, run outside of the checkout."""
    tests = op_tests_in(folder)
    command = (
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "-m",
        "not gpu",
        *SKIPPED,
        "ops",
    )
    result = run(*command, cwd=tests, env=environment(level))
    lines = result.stdout.strip().splitlines() or [result.stderr[-400:]]
    row = {"tests": re.sub(r"[=\s]*(.*?)(, \d+ warnings?)? in [\d.]+s.*", r"\1", lines[-1])}
    if result.returncode:
        row["why"] = "\n".join([x for x in lines if x.startswith(("FAILED", "ERROR"))] or lines[-20:])[:4000]
    return row


def sanitized(python: Path, env: dict[str, str]) -> dict[str, str]:
    """The result of the samples under the sanitizers."""
    result = run(python, "-c", SAMPLES, cwd="/", env=env)
    if result.returncode or "clean" not in result.stdout:
        return {"sanitizers": "an error", "why": (result.stdout + result.stderr)[:4000]}
    return {"sanitizers": "clean"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("compilers", nargs="*", help=f"{' '.join(COMPILERS)} unless anything is given")
    parser.add_argument("--sanitize", metavar="COMPILER", action="append", default=[])
    parser.add_argument("--only", metavar="REGEX", default="ON", help="sanitize sources that match")
    parser.add_argument("--json", type=Path, help="write the table here too")
    args = parser.parse_args()
    compilers = args.compilers if args.compilers or args.sanitize else COMPILERS
    rows = []
    for compiler, sanitize in [(c, False) for c in compilers] + [(c, True) for c in args.sanitize]:
        name = version_of(compiler)
        if name is None:
            print(f"{compiler}: not installed", flush=True)
            continue
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            python = install(compiler, folder, args.only if sanitize else "OFF")
            environments = {
                level: under_sanitizers(compiler, level) if sanitize else environment(level)
                for level in LEVELS
            }
            for level in supported(python, environments):
                if sanitize:
                    result = sanitized(python, environments[level])
                    result |= {} if args.only == "ON" else {"sources": args.only}
                else:
                    result = op_tests(python, folder, level)
                rows.append({"compiler": name, "isa": level, **result})
                print("  ".join(rows[-1].values()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    if any("why" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
