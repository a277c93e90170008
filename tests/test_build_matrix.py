"""scripts/build_matrix.py: its table says which sources it is of. That all combinations build is for `make matrix`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "build_matrix.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("build_matrix", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "build_matrix", module)  # where dataclasses look for it
        spec.loader.exec_module(module)
        yield module


def test_the_commit_and_changes_since_are_named(script, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "of no commit" in script.sources(tmp_path)

    def git(*command):
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", "-C", tmp_path, *who, *command], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init")
    (tmp_path / "kernel.cu").write_text("1")
    git("add", "kernel.cu")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert script.sources(tmp_path) == f"of commit {commit}, without changes"
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "build_matrix.txt").write_text("the last table")
    assert script.sources(tmp_path) == f"of commit {commit}, without changes"
    (tmp_path / "kernel.cu").write_text("2")
    assert script.sources(tmp_path) == f"of commit {commit} and changes since: kernel.cu"


def test_the_table_ends_with_it(script, tmp_path, monkeypatch, capsys):
    made = script.Combination("nothing", lambda _: "made")
    monkeypatch.setattr(script, "combinations", lambda cuda: iter([made]))
    monkeypatch.setattr(script, "sources", lambda: "of commit 1234, without changes")
    monkeypatch.setattr("sys.argv", ["build_matrix.py", "--out", str(tmp_path / "table.txt")])
    assert script.main() == 0
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert lines[-1] == capsys.readouterr().out.splitlines()[-1] == "of commit 1234, without changes"
    assert lines[-2].startswith("1 combinations, 0 failed")
