"""The command `mdops`: in this process where that will do, since importing torch takes seconds."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.io import read, write
from children import python

import mdops
from mdops.cli import main
from mdops.cli.self_test import ENERGY, FORCE, reference
from mdops.errors import InputError
from mdops.md.plot import plot_log
from mdops.plots import figure

DATA = Path(__file__).parents[1] / "data"
MODEL = str(DATA / "formats" / "model.dp")
BROKEN_LIBRARY = """
import sys, torch
def fail(path): raise OSError("undefined symbol: xyz")
torch.ops.load_library = fail
from mdops.cli import main
sys.exit(main(sys.argv[1:]))
"""
WITHOUT = """
import sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "ase"):
            print("imports", name)
            sys.exit(7)
for name in [name for name in sys.modules if name.split(".")[0] in ("torch", "numpy", "ase")]:
    del sys.modules[name]
sys.meta_path.insert(0, Finder)
from mdops.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def crystal(tmp_path, monkeypatch):
    """The name of a structure file in the current folder, which is empty otherwise."""
    monkeypatch.chdir(tmp_path)
    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    atoms.symbols[::4] = "Al"
    write("start.xyz", atoms)
    return "start.xyz"


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"mdops {mdops.__version__}\n"


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("--version", 0),
        ("--help", 0),
        ("md --help", 0),
        ("relax --help", 0),
        ("train --help", 0),
        ("train", 2),
        ("build --list", 0),
        ("build", 2),
        ("lammps", 2),
        ("core --cflags", 0),
        ("md --steps x", 2),
    ],
)
def test_what_needs_no_model_does_not_wait_for_pytorch(command, status):
    env = {**os.environ, "MDOPS_LAMMPS": "/nowhere"}
    done = python("-c", WITHOUT, *command.split(), env=env)
    assert done.returncode == status, done.stdout + done.stderr


def test_freed_memory_is_kept():
    """After a command a large array takes the pages of the one before, which are there."""
    code = """
import resource, sys
import mdops.cli

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    len(b"x" * 2**26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = new_pages(), new_pages()
mdops.cli.main(["info", sys.argv[1]])
print(before[1], [new_pages(), new_pages()][1])
"""
    found = subprocess.run([sys.executable, "-c", code, MODEL], capture_output=True, text=True, check=True)
    before, after = map(int, found.stdout.split()[-2:])
    assert before > 1000 and after < 100


def test_names_are_imported_when_they_are_used():
    """And PyTorch's compiler where something is compiled: to import it takes as long as all the rest."""
    code = (
        "import sys, mdops; print(mdops.ops.mlp.__name__, mdops.errors.InputError.__name__, mdops.load.__module__,"
        "'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mlp", "InputError", "mdops.loading", "False"]
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        mdops.laod  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'laod'"):
        from mdops import laod  # noqa: F401


def test_info(capsys):
    assert main(["info", MODEL]) == 0
    shown = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert shown["elements"] == "Cu, Al"
    assert shown["cutoff"].startswith("5 A")
    assert shown["sel"] == "Cu 80, Al 60"
    assert "deepmd-kit 3.2.0" in shown["source"]
    assert shown["a step"] == "fused: one op a step"
    assert shown["parameters"] == "19,586"


@pytest.mark.parametrize(
    ("case", "name", "begins"),
    [
        ("activation_relu", "evaluated as", "exact nets, float64"),
        ("activation_relu", "a step", "autograd: "),
        ("fparam_aparam", "frame, atomic", "1 frame and 2 atomic parameters"),
        ("no_statistics", "evaluated as", "splines of 32 intervals beyond 0.5 A, float64"),
    ],
)
def test_info_on_models_of_all_sorts(case, name, begins, capsys):
    assert main(["info", str(DATA / "reference" / case / "model.dp"), "--dtype", "float64"]) == 0
    shown = {line[:18].strip(): line[18:] for line in capsys.readouterr().out.splitlines()}
    assert shown[name].startswith(begins)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["info", "nope.dp"], "no such file"),
        (["md", "nope.xyz", "-m", MODEL, "--steps", "1"], "nope.xyz: there is no such file in "),
        (["md", "start.xyz@3", "-m", MODEL, "--steps", "1"], "start.xyz has no frame 3 (the first is 0)"),
        (["relax", "start.xyz@3:", "-m", MODEL, "--steps", "1"], "start.xyz has no frame 3:"),
        (["md", "start.xyz", "-m", "nope.dp", "--steps", "1"], "no such file"),
        (["train", "start.xyz", "-o", "start.xyz"], "--output start.xyz: it is a file, expected a folder"),
        (["learn", "learn.yaml", "-o", "start.xyz"], "--output start.xyz: it is a file, expected a folder"),
        (["train", "start.xyz"], "as in --names energy=REF_energy"),
        (["md", "start.xyz", "-m", MODEL, "--steps", "1"], "--temperature"),
        (["md", "start.xyz", "-m", MODEL, "--steps", "1", "--ensemble", "nvt"], "nvt needs a temperature"),
        (["md", "water.xyz", "-m", MODEL, "--steps", "1", "-T", "300"], "does not know H, O"),
        (["md", "start.xyz", "-m", MODEL, "--time", "nan", "-T", "300"], "--time nan: expected ps"),
        (
            ["md", "start.xyz", "-m", MODEL, "--time", "1", "--timestep", "0", "-T", "300"],
            "--timestep 0.0: expected fs",
        ),
        (["md", "start.xyz", "-m", MODEL, "--time", "1e308", "-T", "300"], "--time 1e+308: expected ps"),
        (
            ["md", "start.xyz", "-m", MODEL, "--steps", "1", "-T", "300", "--plot", "md.log"],
            "another file of the run",
        ),
        (
            ["md", "start.xyz", "-m", MODEL, "--steps", "1", "-T", "300", "--plot", "x.foo"],
            "the suffix '.foo' is not that of a picture, such as ",
        ),
        (
            ["spectrum", "start.xyz", "-m", MODEL, "--interval", "1", "--plot", "x"],
            "the suffix '' is not that of a picture",
        ),
        (
            ["spectrum", "start.xyz", "-m", MODEL, "--interval", "1", "--factor", "nan"],
            "--factor nan: expected",
        ),
        (
            ["spectrum", "start.xyz", "-m", MODEL, "--interval", "1", "--charges", "O=inf"],
            "--charges O=inf: expected",
        ),
        (["bench", MODEL, "--atoms", "0"], "at least one atom"),
        (["bench", MODEL, "--seconds", "-1"], "--seconds -1.0: expected more than 0"),
        (["profile", MODEL, "start.xyz", "--out", "nowhere/p.json"], "there is no folder nowhere"),
        (["eval-desc", "-m", MODEL, "-s", "start.xyz", "-o", "start.xyz"], "it is a file, expected a folder"),
        (["model-devi", "-m", MODEL, MODEL, "--relative", "-1e-3"], "--relative -0.001: expected"),
        (["model-devi", "-m", MODEL, MODEL, "--frequency", "0"], "--frequency 0: expected 1 step or more"),
        (["bench", "--r-min", "-1"], "--r-min -1.0: expected a positive distance"),
        (["md", "start.xyz", "-m", MODEL, "--steps", "1", "-T", "300", "--r-min", "0"], "of 1e-05 A or more"),
        (
            ["md", "start.xyz", "-m", MODEL, "--steps", "1", "-T", "300", "--r-min", "5"],
            "the model's cutoff, 5 A",
        ),
    ],
)
def test_errors_are_one_line(crystal, capsys, command, says):
    write("water.xyz", molecule("H2O"))
    assert main(command) == 2
    shown = capsys.readouterr().err.splitlines()
    if shown[0].startswith(f"{MODEL}: "):  # which evaluator runs
        del shown[0]
    assert len(shown) == 1 and shown[0].startswith("mdops: ") and says in shown[0]
    assert main([*command, "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("pressure", ["-1e-4", "-1.E+2", "-.5e0", "-2"])
def test_negative_numbers_may_have_an_exponent(crystal, pressure):
    """argparse takes -1e-4 for the name of an option."""
    run = [
        "md",
        crystal,
        "-m",
        MODEL,
        "--ensemble",
        "npt",
        "-T",
        "300",
        "--pressure",
        pressure,
        "--steps",
        "0",
    ]
    assert main([*run, "-o", "npt.xyz"]) == 0
    assert len(read("npt.xyz", ":")) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["model-devi", "-m", MODEL, "start.xyz", "-s", "start.xyz", "--output", "./start.xyz"],
        ["profile", MODEL, "start.xyz", "--out", "./start.xyz"],
        ["test", "-m", MODEL, "-d", "start.xyz", "--table", "./start.xyz"],
        ["spectrum", "start.xyz@0:", "-m", MODEL, "--interval", "1", "--overwrite", "-o", "./start.xyz"],
        ["quantize", MODEL, "--scheme", "w8", "--data", "start.xyz", "--report", "./start.xyz", "-o", "q.dp"],
    ],
)
def test_a_command_does_not_write_over_what_it_reads(crystal, capsys, command):
    before = Path("start.xyz").read_bytes()
    assert main(command) == 2
    assert "start.xyz: it is an input of this command" in capsys.readouterr().err
    assert Path("start.xyz").read_bytes() == before


def test_a_program_does_not_replace_its_model(tmp_path, capsys):
    model = tmp_path / "model.pt2"
    model.write_bytes(b"a model")
    assert main(["export", str(model), str(model), "--overwrite"]) == 2
    assert "it is an input of this command" in capsys.readouterr().err and model.read_bytes() == b"a model"


def test_a_run_of_no_steps_has_no_mean_temperature(crystal, capsys):
    assert main(["md", crystal, "-m", MODEL, "-T", "300", "--steps", "0", "-o", "none.xyz"]) == 0
    assert capsys.readouterr().out == "0 steps: the structure was computed, and nothing moved\n"


def test_lammps_helps_without_lammps(monkeypatch, capsys):
    monkeypatch.setenv("MDOPS_LAMMPS", "/no/such/program")
    with pytest.raises(SystemExit) as ended:
        main(["lammps", "--help"])
    assert ended.value.code == 0 and "mpirun -np 4 mdops lammps" in capsys.readouterr().out


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 1 TiB"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte.\nmore"),
    ],
)
def test_too_little_memory_is_one_line(monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("mdops.loading.load", fail)
    assert main(["bench", MODEL]) == 2
    shown = capsys.readouterr().err
    assert "fewer atoms or smaller batches" in shown and shown.count("\n") == 1


def test_other_failures_are_not_hidden(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a mistake of the program")

    monkeypatch.setattr("mdops.loading.load", fail)
    with pytest.raises(RuntimeError, match="a mistake of the program"):
        main(["bench", MODEL])


@pytest.mark.parametrize("output", ["--trajectory", "--log", "--checkpoint"])
def test_a_run_does_not_write_over_what_it_begins_with(crystal, capsys, output):
    before = Path("start.xyz").read_bytes()
    run = ["md", "start.xyz", "-m", MODEL, "-T", "300", "--steps", "2", "--overwrite", output, "./start.xyz"]
    assert main(run) == 2
    assert "start.xyz is the input of the run" in capsys.readouterr().err
    assert Path("start.xyz").read_bytes() == before


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("command", ["md", "relax"])
def test_a_run_does_not_write_into_what_is_printed(crystal, capsys, command, stream):
    """`mdops md ... -o run.xyz > run.log`: the shell has made a file of the log's name."""
    run = [command, crystal, "-m", MODEL, "--steps", "2", "-o", "run.xyz", "--overwrite"]
    run += ["-T", "300"] if command == "md" else []
    kept = os.dup(stream)
    with open("run.log", "wb") as file:
        os.dup2(file.fileno(), stream)
    try:
        status = main(run)
    finally:
        os.dup2(kept, stream)
        os.close(kept)
    assert status == 2
    assert "run.log is where the shell redirects the output of this command" in capsys.readouterr().err
    assert not Path("run.xyz").exists()


def test_md_and_restart(crystal, capsys):
    command = ["md", crystal, "-m", MODEL, "--ensemble", "npt", "-T", "300", "--timestep", "2"]
    command += ["--interval", "10", "-o", "md.xyz"]
    assert main([*command, "--steps", "20"]) == 0
    assert "ns/day" in capsys.readouterr().out
    assert main([*command, "--steps", "40"]) == 2
    assert "--restart" in capsys.readouterr().err
    assert main([*command, "--time", "0.08", "--restart"]) == 0
    assert [f.info["step"] for f in read("md.xyz", ":")] == [0, 10, 20, 30, 40]
    assert main([*command, "--steps", "40", "--restart"]) == 0
    assert "complete" in capsys.readouterr().out


def test_the_command_survives_a_kill(crystal, capsys):
    """The installed command, SIGKILL once frames are there, and the same command again, here."""
    command = [sys.executable, "-m", "mdops", "md", crystal, "-m", MODEL, "-T", "300", "--timestep", "2"]
    command += ["--steps", "1000", "--interval", "5", "--checkpoint-every", "50", "--restart"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    trajectory, deadline = Path("md.traj"), time.monotonic() + 60
    while (not trajectory.exists() or trajectory.stat().st_size < 200_000) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert main(command[3:]) == 0
    assert "ns/day" in capsys.readouterr().out
    assert [f.info["step"] for f in read("md.traj", ":")] == list(range(0, 1001, 5))


def test_errors_name_the_options_of_the_command(crystal, capsys):
    atoms = read(crystal)
    atoms.set_constraint(FixAtoms([0]))
    write("fixed.traj", atoms)
    dense = read(crystal)
    dense.set_cell(0.6 * dense.cell.array, scale_atoms=True)
    write("dense.xyz", dense)
    start = ["-m", MODEL, "-T", "300", "--steps", "1"]
    for command, says in (
        (["fixed.traj", *start, "--ensemble", "npt"], "npt cannot keep constraints"),
        (["fixed.traj", *start, "--ensemble", "nvt"], "Langevin dynamics can (--thermostat langevin)"),
        (["dense.xyz", *start], "--overflow truncate does too, --overflow extend keeps all"),
    ):  # fmt: skip
        assert main(["md", *command]) == 2
        shown = capsys.readouterr().err
        assert says in shown and "=" not in shown
    assert main(["md", crystal, *start, "--r-min", "3"]) == 0
    assert "Load the model with a smaller --r-min, or with --no-spline" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".", "/", ".."])
def test_a_folder_is_no_model_whose_energies_change(name, capsys):
    assert main(["change-bias", name, "--bias-value", "1"]) == 2
    assert "it is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".", "", "/"])
@pytest.mark.parametrize("command", ["md", "relax"])
def test_an_output_without_a_name_is_refused(command, name, crystal, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, crystal, "-m", MODEL, "--steps", "1", "-o", name])
    assert ended.value.code == 2 and f"{name!r} is not the name of a file" in capsys.readouterr().err


def test_without_utf8_the_same_files_are_read_and_written(tmp_path):
    """A locale that is not UTF-8: an input with a comment, a table of a folder with an accent, a message."""
    folder = tmp_path / "données"
    folder.mkdir()
    atoms = bulk("Cu", a=3.6, cubic=True)
    atoms.rattle(0.1, seed=0)
    atoms.calc = EMT()
    atoms.get_forces()
    write(folder / "a.extxyz", atoms)
    given = {
        "_comment": "é",
        "model": {"type_map": ["Cu"]},
        "training": {"numb_steps": 0, "training_data": {}},
    }
    (tmp_path / "input.json").write_text(json.dumps(given, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "latin.json").write_bytes("é".encode("latin-1"))
    environment = os.environ | {
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "OMP_NUM_THREADS": "1",
    }

    # One process for all: to start one takes longer than what it does.
    code = "import sys; from mdops.cli import main\n"
    code += "for words in sys.argv[1:]: print('returned', main(words.split()), file=sys.stderr, flush=True)"
    test, options = f"test -m {MODEL} -d données", "--table table.csv --overflow extend"
    commands = [f"{test} {options}", f"{test}/a.extxyz {options}", "train input.json", "train latin.json"]
    program = [sys.executable, "-c", code, *commands]
    done = subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    folder_alone, file, with_comment, in_latin, _ = re.split(rb"(?<=returned \d)\n", done.stderr)
    assert b"no system" in folder_alone and folder_alone.endswith(b"returned 2")
    assert file.endswith(b"returned 0"), file
    assert "données" in (tmp_path / "table.csv").read_text(encoding="utf-8")
    assert b"is not text" not in with_comment and b"training.training_data" in with_comment
    assert with_comment.endswith(b"returned 2")
    assert b"is not text in UTF-8" in in_latin and in_latin.endswith(b"returned 2")


def test_text_is_written_and_read_as_utf8():
    """Whatever the locale: every opening of a text file in mdops says so."""
    for path in Path(mdops.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            mode = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            of = ast.unparse(node.func)
            is_text = name in ("read_text", "write_text") or (
                name == "open"
                and of not in ("os.open", "Image.open", "lmdb.open")
                and not any("b" in m for m in mode[-1:])
            )
            if is_text:
                words = [keyword.arg for keyword in node.keywords]
                assert "encoding" in words, f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_files_are_named_after_the_trajectory_and_the_log_is_drawn(crystal, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    command = ["md", crystal, "-m", MODEL, "-T", "300", "--interval", "5", "-o", "a.xyz", "--plot"]
    assert main([*command, "--steps", "20"]) == 0
    assert "wrote a.png" in capsys.readouterr().out
    assert {path.name for path in Path().iterdir()} == {"start.xyz", "a.xyz", "a.log", "a.restart", "a.png"}
    first = plt.imread("a.png")
    assert main([*command, "--steps", "60", "--restart"]) == 0
    shown = capsys.readouterr()
    assert "mean temperature of all 60 steps" in shown.out and "continuing from step 20 of 60" in shown.err
    assert first.shape == plt.imread("a.png").shape and (first != plt.imread("a.png")).any()
    assert main([*command, "--steps", "60", "--restart", "--plot", "a.nonsense"]) == 2
    assert "a.nonsense" in capsys.readouterr().err
    Path("a.log").write_text("a diary\nof a sailor\n")
    with pytest.raises(InputError, match=r"a\.log is not the log of a run"):
        plot_log(Path("a.log"), Path("b.png"))


def test_a_log_of_one_line_is_drawn(tmp_path, monkeypatch):
    """As that of a run that is shorter than the interval of its log."""
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr("mdops.md.plot.figure", lambda *of: drawn.append(figure(*of)) or drawn[0])
    (tmp_path / "a.log").write_text("# step time/ps T/K Epot/eV\n0 0.0 300.0 1.5\n", encoding="utf-8")
    plot_log(tmp_path / "a.log", tmp_path / "a.png")
    assert [axes.lines[0].get_marker() for axes in drawn[0].axes] == [".", "."]


@pytest.mark.parametrize("constraint", [None, FixAtoms([0])])
def test_near_pairs_are_told_once_and_the_advice_can_be_followed(crystal, capsys, constraint):
    atoms = read(crystal)
    atoms.set_constraint(constraint)
    write("start.traj", atoms)
    command = ["md", "start.traj", "-m", MODEL, "-T", "900", "--timestep", "2", "--steps", "100"]
    command += ["--overwrite", "--checkpoint-every", "20", "--interval", "10"]
    warning = "mdops: warning: atoms have a neighbour nearer than 2.7 A"
    assert main([*command, "--r-min", "2.7"]) == 0
    shown = capsys.readouterr().err
    assert shown.count(warning) == shown.count("warning") == 1
    assert "--r-min" in shown and "--no-spline" in shown
    for advice in (["--r-min", "1.5"], ["--no-spline"]):
        assert main([*command, *advice]) == 0
        assert "warning" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--r-min", "1.5", "--no-spline"])


def test_the_test_of_a_model_takes_the_advice_too(crystal, capsys):
    atoms = read(crystal)
    atoms.rattle(0.1, seed=0)
    atoms.calc = EMT()
    atoms.get_forces()
    write("labelled.extxyz", atoms)
    command, errors = ["test", "--model", MODEL, "--data", "labelled.extxyz", "--dtype", "float64"], []
    for options in (["--r-min", "4.5"], ["--r-min", "1.5"], ["--no-spline"]):
        assert main([*command, *options]) == 0
        shown = capsys.readouterr()
        assert ("nearer than 4.5 A" in shown.err) == (options[-1] == "4.5")
        errors.append(shown.out)
    assert errors[0] != errors[1] == errors[2]


def test_bench_without_splines(capsys):
    for model in ([], [MODEL]):
        times = []
        for options in (["--r-min", "0.4"], ["--no-spline"]):
            assert main(["bench", *model, "--atoms", "24", "--seconds", "0.1", *options]) == 0
            times.append(float(capsys.readouterr().out.splitlines()[-1].split()[1]))
        assert times[1] > 1.5 * times[0]


def test_bench(capsys):
    assert main(["bench", "--atoms", "24", "--seconds", "0.05"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[0] == "24" and all(float(value) > 0 for value in row)
    assert main(["bench", MODEL, "--atoms", "32", "--seconds", "0.05"]) == 0


class TestDoctor:
    def test_a_good_installation(self, capsys):
        assert main(["doctor"]) == 0
        shown = capsys.readouterr().out
        for name in ("python", "torch", "ase", "library", "instruction set", "threads", "cuda", "self test"):
            assert f"ok       {name}" in shown
        assert shown.endswith("everything works\n")

    def test_a_library_that_does_not_load(self):
        done = python("-c", BROKEN_LIBRARY, "doctor")
        assert done.returncode == 1
        assert "problem  library" in done.stdout and "undefined symbol: xyz" in done.stdout
        assert "-> build mdops again, in a clone of mdops: `make build`" in done.stdout
        assert "1 problem to fix" in done.stdout
        assert "Traceback" not in done.stderr

    def test_advice_names_no_package_that_is_not_published(self, monkeypatch, capsys):
        def missing(name):
            raise PackageNotFoundError(name)

        monkeypatch.setattr("mdops.cli.doctor.version", missing)
        assert main(["doctor"]) == 1
        shown = capsys.readouterr().out
        assert "-> install it, in a clone of mdops: `make build`, or `pip install --no-build-iso" in shown
        assert "-> pip install numpy" in shown
        sources = [path.read_text() for path in Path(mdops.__file__).parent.rglob("*.py")]
        assert not re.findall(r"pip install [^`\n]*\bmdops\b", "\n".join(sources))

    def test_a_library_of_other_sources(self):
        stale = BROKEN_LIBRARY.replace('raise OSError("undefined symbol: xyz")', "pass")
        done = python("-c", stale, "doctor")
        assert done.returncode == 1 and "problem  library" in done.stdout
        assert "lacks the op" in done.stdout and "Build it again" in done.stdout
        done = python("-c", stale, "info", MODEL)
        assert done.returncode == 2 and "lacks the op" in done.stderr and "Traceback" not in done.stderr

    def test_other_commands_then_point_to_doctor(self):
        done = python("-c", BROKEN_LIBRARY, "info", MODEL)
        assert done.returncode == 2
        assert "undefined symbol: xyz" in done.stderr and "mdops doctor" in done.stderr

    def test_an_instruction_set_that_is_not_there(self, monkeypatch):
        monkeypatch.setenv("MDOPS_CPU_ISA", "v9")
        done = python("-m", "mdops", "doctor")
        assert done.returncode == 1
        assert "problem  instruction set" in done.stdout and "unset MDOPS_CPU_ISA" in done.stdout

    def test_the_known_numbers_are_those_of_exact_nets(self):
        energy, force = reference(torch.float64, spline=False)
        assert energy == pytest.approx(ENERGY, rel=1e-12)
        assert force == pytest.approx(FORCE, rel=1e-10)

    def test_wrong_numbers_are_noticed(self, monkeypatch, capsys):
        monkeypatch.setattr("mdops.cli.self_test.ENERGY", ENERGY * 1.001)
        assert main(["doctor"]) == 1
        assert "problem  self test" in capsys.readouterr().out
