"""Runs the tests of code that calls ASE (calculator, simulations, data) with several versions of ASE.

    .venv/bin/python scripts/check_ase_versions.py [3.26.0 3.27.0 ...] [--json table.json]

Each version is installed into its own folder, which comes before this environment's ASE on Python's path.
pyproject.toml allows the versions that pass.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ["3.26.0", "3.27.0", "3.28.0", "3.29.0"]
TESTS = [
    "tests/md/test_run.py", "tests/md/test_engine.py", "tests/test_calculator.py", "tests/train/test_dataset.py",
]  # fmt: skip


def check(ase: str) -> dict[str, str]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
        got = subprocess.run([*pip, "--target", folder, f"ase=={ase}"], capture_output=True, text=True)
        if got.returncode:
            return {"ase": ase, "result": "not installed", "why": got.stderr.strip().splitlines()[-1]}
        environment = os.environ | {"PYTHONPATH": folder}
        which = [sys.executable, "-c", "import ase; print(ase.__version__)"]
        used = subprocess.run(
            which, env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        if used != ase:
            return {"ase": ase, "result": "not used", "why": f"Python imports {used}"}
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
        done = subprocess.run(pytest, cwd=ROOT, env=environment, capture_output=True, text=True)
    summary = re.search(r"^=*\s*(\d+ (?:passed|failed).*?) in [\d.]+s", done.stdout, re.MULTILINE)
    row = {"ase": ase, "result": summary[1] if summary else ("passed" if done.returncode == 0 else "failed")}
    if done.returncode:
        failures = [x for x in done.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
        row["why"] = "\n".join(failures)[:4000] or (done.stdout + done.stderr)[-1000:]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--json", type=Path, help="write the table here too")
    args = parser.parse_args()
    rows = []
    for ase in args.versions:
        rows.append(check(ase))
        print(f"{ase:8}  {rows[-1]['result']}", flush=True)
        if "why" in rows[-1]:
            print(rows[-1]["why"])
    if args.json:
        about = {"python": platform.python_version(), "torch": version("torch"), "tests": TESTS}
        args.json.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n")
    if any("why" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
