"""Runs tests with the lowest versions of the dependencies that pyproject.toml allows.

    .venv/bin/python scripts/check_lower_bounds.py [--torch VERSION | --torch-from PYTHON] [--tests tests/io ...]

A new virtual environment gets each dependency at its lower bound, and the package as built by `make build`. The
environment is removed at the end. PyPI's PyTorch is a download of gigabytes: `--torch` uses another version, and
`--torch-from` the one of another interpreter on this machine (and none of its other packages).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
# Tests that read files and data, compute, simulate and train; tests with many processes are left out.
TESTS = (
    *("tests/io", "tests/nn/test_potential.py", "tests/nn/test_inputs.py", "tests/ops/test_neighbor.py"),
    *(
        "tests/md/test_run.py",
        "tests/md/test_engine.py",
        "tests/test_calculator.py",
        "tests/cli/test_train.py",
    ),
    *("tests/train/test_dataset.py", "tests/train/test_trainer.py", "tests/train/test_evaluation.py"),
)
TOOLS = ("pytest", "pytest-timeout", "matplotlib", "phonopy")
WHAT = "import importlib.metadata as m, sys; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"


def lower_bounds() -> dict[str, str]:
    """The lowest version of each dependency. Raises SystemExit if one has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {}
    for needed in map(Requirement, project["dependencies"]):
        lowest = [clause.version for clause in needed.specifier if clause.operator in (">=", "==", "~=")]
        if len(lowest) != 1:
            raise SystemExit(f"pyproject.toml: {needed} has no lower bound")
        bounds[needed.name] = lowest[0]
    return bounds


def run(*command: object) -> None:
    words = [str(word) for word in command]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if subprocess.run(words, cwd=ROOT, env=env).returncode:
        raise SystemExit(f"failed: {' '.join(words)}")


def site_packages(python: str | Path) -> Path:
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--torch", metavar="VERSION", help="another version of PyTorch than the lowest")
    which.add_argument("--torch-from", metavar="PYTHON", help="an interpreter whose PyTorch to take")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="what to run")
    args = parser.parse_args()
    bounds = lower_bounds()
    if args.torch is not None:
        bounds["torch"] = args.torch
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        run(sys.executable, "-m", "venv", venv)
        python = venv / "bin/python"
        wanted = [f"{n}=={v}" for n, v in bounds.items() if n != "torch" or args.torch_from is None]
        run(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *wanted, *TOOLS)
        place = site_packages(python)
        # This package: the files of an editable installation.
        for path in site_packages(sys.executable).glob("*mdops*"):
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, place / path.name)
        if args.torch_from is not None:
            # After the environment's own folder, so that packages there have priority.
            (place / "zz_torch.pth").write_text(f"{site_packages(args.torch_from)}\n")
        run(python, "-c", WHAT, *bounds)
        run(python, "-m", "pytest", "-p", "no:cacheprovider", *args.tests)


if __name__ == "__main__":
    main()
