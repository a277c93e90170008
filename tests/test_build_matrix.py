"""scripts/build_matrix.py: its table says which sources it is of. That all combinations build is for `make matrix`."""

import importlib.util
import itertools
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
        patch.syspath_prepend(SCRIPT.parent)
        spec.loader.exec_module(module)
        yield module


def test_the_commit_and_changes_since_are_named(script, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert script.sources(tmp_path)[1].startswith("of no commit")

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
    assert script.sources(tmp_path) == (commit[:7], f"of commit {commit}, without changes")
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "build_matrix.txt").write_text("the last table")
    assert script.sources(tmp_path) == (commit[:7], f"of commit {commit}, without changes")
    (tmp_path / "kernel.cu").write_text("2")
    changed = f"{commit[:7]}+", f"of commit {commit} and changes since: kernel.cu"
    assert script.sources(tmp_path) == changed


@pytest.fixture
def made(script, tmp_path, monkeypatch):
    """Runs the script, of a commit, with two combinations that say what they are told to; gives the table's lines."""

    def work(name, told):
        def work(_):
            if told is None:
                raise script.FailedError("error: one\nand more")
            return told

        return script.Combination(name, work)

    def run(commit, one, other, *options):
        both = [work("rebuilt, CPU    v2", one), work("rebuilt, GPU    sm_80", other)]
        monkeypatch.setattr(script, "combinations", lambda cuda: iter(both))
        monkeypatch.setattr(script, "sources", lambda: (commit, f"of commit {commit}, without changes"))
        out = tmp_path / "table.txt"
        monkeypatch.setattr("sys.argv", ["build_matrix.py", "--out", str(out), *options])
        code = script.main()
        lines = out.read_text().splitlines()
        assert code == any("FAILED" in line for line in lines if f" {commit} " in line)
        return lines

    return run


def test_a_line_names_the_commit_that_it_is_of(made):
    lines = made("1234567", "one", "other")
    assert [line.split("s  ")[1].split() for line in lines[:2]] == [
        ["1234567", "ok", "one"],
        ["1234567", "ok", "other"],
    ]
    assert lines[3].startswith("2 combinations, 0 not run, 0 failed; ")
    assert lines[4:] == ["1234567: of commit 1234567, without changes"]


def test_pieces_are_added_to_the_table(made):
    """In the order of all combinations, each of its own commit; what failed in several lines is read back whole."""
    lines = made("1111111", "one", None, "--only", "sm_80")
    assert "not run: rebuilt, CPU v2" in lines and any(
        "2 combinations, 1 not run, 1 failed" in line for line in lines
    )
    lines = made("2222222", "one", "other", "--missing")
    assert [line.split()[:2] for line in lines[:2]] == [["rebuilt,", "CPU"], ["rebuilt,", "GPU"]]
    assert " 2222222  ok      one" in lines[0] and lines[1].endswith(" 1111111  FAILED")
    assert lines[2:4] == ["  error: one", "  and more"]
    assert lines[-2:] == [f"{of}: of commit {of}, without changes" for of in ("1111111", "2222222")]
    lines = made("3333333", "one", "other", "--only", "GPU sm_80", "nothing")
    assert " 2222222  ok      one" in lines[0] and " 3333333  ok      other" in lines[1] and lines[2] == ""
    assert not any("1111111" in line for line in lines)


def test_nothing_to_build_is_an_error(made, capsys):
    for options in (["--only", "sm_70"], ["--missing"]):
        made("1111111", "one", "other")
        with pytest.raises(SystemExit):
            made("1111111", "one", "other", *options)
        assert "there is nothing to build" in capsys.readouterr().err


def test_every_kind_of_rebuilt_kernels_is_built(script):
    names = [c.name for c in script.combinations(cuda=True)]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 56
    for kind, where in itertools.product(script.OTHER_KINDS, ("CPU", "GPU")):
        assert any(name.startswith(f"rebuilt, {where}") and name.endswith(kind) for name in names)
