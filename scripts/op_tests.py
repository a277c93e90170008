"""Copies the op tests out of the checkout, where they see only an installed wheel."""

import shutil
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"


def copied(folder: Path, *settings: str) -> Path:
    """A folder in this one from which pytest runs them, with these lines in its settings in addition to the marks."""
    tests = folder / "tests"
    shutil.copytree(TESTS / "ops", tests / "ops", dirs_exist_ok=True)
    for name in ("conftest.py", "children.py", "gpu_lock.py", "nn/torch_reference.py"):
        shutil.copy(TESTS / name, tests)
    if not (sources := folder / "source").exists():  # some tests build programs from the sources
        sources.symlink_to(TESTS.parent / "source")
    marks = "markers =", "  gpu: needs an NVIDIA GPU", "  fills_gpu: runs alone", "  long: begun first"
    (tests / "pytest.ini").write_text("\n".join(["[pytest]", *settings, *marks, ""]))
    return tests
