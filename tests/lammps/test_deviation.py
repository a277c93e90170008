"""The file of the model deviation: a line for each step's last structure."""

import re

import numpy as np
import pytest
from lammps_runs import ORTHOGONAL, crystal, data, expected, script

WORDS = "precision float64 overflow extend out_freq 1"


@pytest.fixture
def atoms(run):
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(data(atoms))
    return atoms


@pytest.fixture(scope="module")
def paths(models):
    return [models / f"{name}.safetensors" for name in "ab"]


@pytest.fixture(scope="module")
def style(paths):
    return f"mdops {paths[0]} {paths[1]} {WORDS}"


def rows(run, name="model_devi.out"):
    """Steps, and the largest deviation of the forces at each."""
    lines = [line.split() for line in (run.folder / name).read_text().splitlines()[1:]]
    return [int(line[0]) for line in lines], np.array([float(line[4]) for line in lines])


def frames(run, atoms, name="dump.txt"):
    """Every frame of a dump of id, type, x, y, z."""
    found = []
    for text in (run.folder / name).read_text().split("ITEM: ATOMS")[1:]:
        lines = [line.split() for line in text.splitlines()[1:] if re.match(r"\d+ \d ", line)][: len(atoms)]
        frame = atoms.copy()
        frame.numbers = [int(line[1]) for line in lines]
        frame.positions = [[float(x) for x in line[2:5]] for line in lines]
        found.append(frame)
    return found


def largest(paths, atoms):
    forces = [expected(path, atoms)["forces"] for path in paths]
    return np.linalg.norm(np.std(forces, 0), axis=1).max()


DUMP = """undump d
    dump d all custom 1 dump.txt id type x y z
    dump_modify d sort id format float %20.15g
    thermo 1
    """


def test_a_minimisation(run, atoms, paths, style):
    """The structure that a step ends with, not one that was tried along its line."""
    run(script(style, more=DUMP + "min_style cg\n min_modify dmax 1.0 line backtrack\n minimize 0 0 4 60"))
    steps, found = rows(run)
    assert steps == [0, 1, 2, 3, 4]
    assert found == pytest.approx([largest(paths, frame) for frame in frames(run, atoms)], rel=2e-6)


def test_swaps(run, atoms, paths, style):
    """A step ends with the types that were taken."""
    more = DUMP + "fix 1 all atom/swap 1 3 29494 1.0 types 1 2\n run 4"
    run(script(style, more=more))
    steps, found = rows(run)
    assert steps == [0, 1, 2, 3, 4]
    assert found == pytest.approx([largest(paths, frame) for frame in frames(run, atoms)], rel=2e-6)


def test_finite_differences_are_no_step(run, atoms, paths, style):
    """They are computed after the step's own forces."""
    text = script(style, more=DUMP + "group one id 1\n fix 1 one numdiff 1 0.1\n run 1")
    run(text.replace("atom_style atomic", "atom_style atomic\n atom_modify map yes"))
    steps, found = rows(run)
    assert steps == [0, 1]
    assert found == pytest.approx([largest(paths, atoms)] * 2, rel=2e-6)


def test_several_runs_at_one_step(run, atoms, paths, style):
    """Each has its line, unless nothing has changed."""
    more = """run 0
    run 0
    displace_atoms all random 0.1 0.1 0.1 11
    run 0
    undump d
    fix 1 all nve
    run 2
    run 2"""
    run(script(style, more=more))
    steps, found = rows(run)
    assert steps == [0, 0, 1, 2, 3, 4]
    assert (
        found[0] == pytest.approx(largest(paths, atoms), rel=2e-6)
        and abs(found[1] - found[0]) > 1e-3 * found[0]
    )


def test_a_run_that_computes_nothing_has_no_line(run, atoms, style):
    """LAMMPS evaluates nothing in `run 0 pre no`: its forces stay those of the structure before."""
    forces = "custom {}.txt fx fy fz modify sort id format float %20.15g"
    more = f"""run 0
    write_dump all {forces.format("before")}
    displace_atoms all random 0.1 0.1 0.1 11
    run 0 pre no
    write_dump all {forces.format("after")}"""
    run(script(style, more=more))
    assert np.array_equal(run.dumped("before.txt"), run.dumped("after.txt"))
    assert rows(run)[0] == [0]


def test_each_world_has_its_file(run, atoms, paths, style):
    """As LAMMPS' logs."""
    text = script(style, more="displace_atoms all move ${d} 0 0\n run 0").replace("dump.txt", "dump.${d}")
    text = text.replace("displace_atoms all move ${d}", "group one id 1\n displace_atoms one move ${d}")
    run("variable d world 0.0 0.2\n" + text, 2, "-partition", "2x1", "-plog", "none", "-pscreen", "none")
    moved = atoms.copy()
    moved.positions[0, 0] += 0.2
    for world, wanted in enumerate([atoms, moved]):
        steps, found = rows(run, f"model_devi.out.{world}")
        assert steps == [0]
        assert found == pytest.approx([largest(paths, wanted)], rel=2e-6)
    assert not (run.folder / "model_devi.out").exists()
