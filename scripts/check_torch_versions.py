"""Builds one wheel and runs the op tests with it and several versions of PyTorch.

    .venv/bin/python scripts/check_torch_versions.py [2.11.0 2.12.0 ...] [--wheel FILE] [--json table.json]

The wheel is built from the source distribution, with the PyTorch of this environment, unless one is given.
Each version then gets its own virtual environment, one at a time, which is removed afterwards. It needs 6 GB of disk if
there are only CUDA builds. The tests run outside of the checkout, so that they see only the installed wheel.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from op_tests import copied as op_tests_in

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ["2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0"]
WHAT = "import torch; print(torch.__version__)"


def run(*command: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)


def checked(*command: object) -> None:
    result = run(*command)
    if result.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))} failed:\n{result.stdout[-2000:]}{result.stderr[-4000:]}"
        )


def build_wheel(folder: Path) -> Path:
    """The wheel, built from the source distribution."""
    make_sdist = (
        "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    )
    result = run(sys.executable, "-c", make_sdist, folder, cwd=ROOT)
    if result.returncode:
        raise SystemExit(result.stderr)
    (sdist,) = folder.glob("mdops-*.tar.gz")
    checked(sys.executable, "-m", "pip", "wheel", "-w", folder, "--no-build-isolation", "--no-deps", sdist)
    (wheel,) = folder.glob("mdops-*.whl")
    return wheel


def op_tests(torch_version: str, wheel: Path, folder: Path) -> dict[str, str]:
    """One row of the table."""
    venv = folder / f"torch-{torch_version}"
    python = venv / "bin/python"
    row = {"torch": torch_version}
    try:
        checked(sys.executable, "-m", "venv", venv)
        pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
        pins = [f"{name}=={version(name)}" for name in ("numpy", "ase", "pytest", "pytest-timeout")]
        for needed in ([f"torch=={torch_version}"], [wheel, *pins]):
            got = run(*pip, *needed)
            if got.returncode:
                return row | {"result": "not installed", "why": got.stderr.strip().splitlines()[-1]}
        found = run(python, "-c", WHAT)
        if found.returncode:
            return row | {"result": "PyTorch does not import", "why": found.stderr.strip().splitlines()[-1]}
        row["build"] = found.stdout.strip()
        tests = op_tests_in(folder, "timeout = 600")
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        result = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "ops", cwd=tests, env=env)
        last = result.stdout.strip().splitlines()[-1] if result.stdout.strip() else result.stderr[-200:]
        row["result"] = re.sub(r"[=\s]*(.*?)(, \d+ warnings?)? in [\d.]+s.*", r"\1", last)
        if result.returncode:
            row["why"] = "\n".join(
                x for x in result.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))
            )[:4000]
        return row
    finally:
        shutil.rmtree(venv, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--wheel", type=Path, help="test this one")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--tmp", type=Path, help="where to put wheel and environments")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.tmp) as made:
        folder = Path(made)
        wheel = args.wheel.resolve() if args.wheel else build_wheel(folder)
        print(f"{wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB", flush=True)
        rows = []
        for torch_version in args.versions:
            row = op_tests(torch_version, wheel, folder)
            rows.append(row)
            print(f"{torch_version:8}  {row.get('build', '-'):16}  {row['result']}", flush=True)
            if "why" in row:
                print(row["why"])
        if args.json:
            table = {
                "wheel": wheel.name,
                "MB": round(wheel.stat().st_size / 1e6, 2),
                "built_with_torch": None if args.wheel else version("torch"),
                "python": platform.python_version(),
                "machine": f"{platform.system()} {platform.machine()}",
                "tests": "tests/ops",
                "rows": rows,
            }
            args.json.write_text(json.dumps(table, indent=2) + "\n")
    if any("why" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
