"""Which neighbours count: those of LAMMPS' lists, on the CPU and on a GPU."""

import numpy as np
import pytest
from lammps_runs import ORTHOGONAL, crystal, data, expected

import mdops

WORDS = "precision float64 overflow extend"


def script(path, device="cpu", commands="", names="", style="mdops", atom_style="atomic", more="") -> str:
    names = names or " ".join(mdops.load(path, spline=False).type_map)
    mdops_style = f"mdops {path} {WORDS} device {device}"
    return f"""
    units metal
    atom_style {atom_style}
    {commands}
    read_data data.lmp
    pair_style {mdops_style if style == "mdops" else f"{style} {mdops_style} zero 6.0"}
    pair_coeff * * {"" if style == "mdops" else "mdops"} {names}
    thermo_style custom step pe press
    thermo_modify format float %20.15g
    {more}
    """


def bonded(atoms, types, pairs, kinds) -> str:
    """A data file with bonds."""
    head, _, tail = data(atoms, types, kinds).partition("Atoms # atomic")
    lines = tail.strip().splitlines()
    lines = [" ".join([line.split()[0], "1", *line.split()[1:]]) for line in lines]
    head = head.replace("atom types", f"atom types\n{len(pairs)} bonds\n1 bond types")
    bonds = [f"{k + 1} 1 {i + 1} {j + 1}" for k, (i, j) in enumerate(pairs)]
    return "\n".join([head, "Atoms # molecular", "", *lines, "", "Bonds", "", *bonds]) + "\n"


MOLECULAR = "bond_style zero\n special_bonds lj/coul {}"


@pytest.fixture(scope="module")
def path(models):
    return models / "a.safetensors"


def test_bonded_atoms_are_neighbours(run, path, device):
    """LAMMPS' default, 0 0 0, would leave them out."""
    atoms = crystal(ORTHOGONAL)
    chain = [(i, i + 1) for i in range(12)]
    (run.folder / "data.lmp").write_text(bonded(atoms, atoms.numbers, chain, 2))
    given = {
        "path": path,
        "device": device,
        "atom_style": "molecular",
        "more": "bond_coeff *\n run 0\n ENERGY",
    }
    for weights in ("0 0 0", "1 1 0.5", "0 1 1"):
        told = run.fails(script(**given, commands=MOLECULAR.format(weights)))
        assert "write special_bonds lj/coul 1 1 1" in told
    whole = expected(path, atoms)["energy"][0]
    found = run.energies(script(**given, commands=MOLECULAR.format("1 1 1")))
    assert found == pytest.approx([whole], rel=1e-11)
    # One bond: no atom is the second or third from another.
    (run.folder / "data.lmp").write_text(bonded(atoms, atoms.numbers, [(0, 1)], 2))
    found = run.energies(script(**given, commands=MOLECULAR.format("1 0 0")))
    assert found == pytest.approx([whole], rel=1e-11)


def test_bonds_of_atoms_that_the_model_has_not_may_have_weights(run, path):
    atoms = crystal(ORTHOGONAL)
    types = atoms.numbers.copy()
    types[:12] = 3
    (run.folder / "data.lmp").write_text(bonded(atoms, types, [(i, i + 1) for i in range(11)], 3))
    names = " ".join(mdops.load(path, spline=False).type_map)
    text = script(path, names=f"{names} NULL", atom_style="molecular", commands=MOLECULAR.format("0 0 0"),
                  more="bond_coeff *\n run 0\n ENERGY")  # fmt: skip
    assert run.energies(text) == pytest.approx([expected(path, atoms[types < 3])["energy"][0]], rel=1e-11)


EXCLUDED = """
    neigh_modify exclude type 1 2
    run 0
    ENERGY
    neigh_modify exclude none
    run 0
    ENERGY
    group few id <= 30
    neigh_modify exclude group few few
    run 0
    ENERGY
    neigh_modify exclude none exclude molecule/inter all
    run 0
    ENERGY
    """


def test_excluded_pairs(run, path, device):
    """From the first run on, and until they are no longer."""
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(bonded(atoms, atoms.numbers, [(0, 1)], 2))
    text = script(
        path, device, MOLECULAR.format("1 1 1"), atom_style="molecular", more="bond_coeff *\n" + EXCLUDED
    )
    types, none, group, inter = run.energies(text)
    whole = expected(path, atoms)["energy"][0]
    single = [expected(path, atoms[atoms.numbers == k])["energy"][0] for k in (1, 2)]
    assert types == pytest.approx(sum(single), rel=1e-9)
    assert none == pytest.approx(whole, rel=1e-11) == inter
    assert abs(group - whole) > 1e-3 * abs(whole)


def test_a_group_that_lists_are_built_for(run, path, device):
    """The others are alone."""
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(data(atoms))
    more = "group one id <= 40\n neigh_modify include one\n run 0\n ENERGY"
    found = run.energies(script(path, device, "atom_modify first one", more=more))
    lonely = atoms[40:].copy()
    lonely.positions += 100.0 * np.arange(len(lonely))[:, None]
    lonely.pbc = False
    whole = expected(path, atoms[:40])["energy"][0] + expected(path, lonely)["energy"][0]
    assert found == pytest.approx([whole], rel=1e-9)


@pytest.mark.parametrize("style", ["hybrid", "hybrid/overlay"])
def test_pairs_of_other_styles(run, path, device, style):
    """What pair_style hybrid gives to another style does not count; what hybrid/overlay adds does."""
    atoms = crystal(ORTHOGONAL)
    (run.folder / "data.lmp").write_text(data(atoms))
    text = script(path, device, style=style, more="pair_coeff 1 2 zero\n run 0\n ENERGY")
    whole = expected(path, atoms)["energy"][0]
    single = sum(expected(path, atoms[atoms.numbers == k])["energy"][0] for k in (1, 2))
    wanted = whole if "overlay" in style else single
    assert run.energies(text) == pytest.approx([wanted], rel=1e-9)


def test_types_that_change_between_two_lists(run, path, device):
    """The next energy is of the new ones."""
    atoms = crystal(ORTHOGONAL, pbc=False)
    atoms.positions = 0.9 * atoms.positions + 0.5  # inside of the box
    (run.folder / "data.lmp").write_text(data(atoms))
    more = "run 0\n ENERGY\n set atom 1*20 type 1\n run 1 pre no\n ENERGY"
    found = run.energies(script(path, device, "boundary f f f", more=more))
    wanted = [expected(path, atoms)["energy"][0]]
    atoms.numbers[:20] = 1
    wanted.append(expected(path, atoms)["energy"][0])
    assert found == pytest.approx(wanted, rel=1e-10)
