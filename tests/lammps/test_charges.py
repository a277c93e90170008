"""`fix mdops/dplr` (lammps.md): charges beyond the cutoff by LAMMPS' kspace, beside `Potential.compute`, which sums
them itself, and beside DeePMD-kit."""

import re

import ase
import numpy as np
import pytest
from dipole_models import SE_E2_A, dipole_model, in_fields, random_model, with_charges
from lammps_runs import BAR_PER_EV, ROOT, SIX, assert_near, thermo

import mdops
from mdops.long_range import COULOMB

OUTPUTS = ROOT / "tests/data/outputs"
EXACT = "kspace_style ewald 1e-11\nkspace_modify gewald 0.4"
MESH = "kspace_style pppm 1e-7\nkspace_modify gewald 0.4 order 7 mesh 40 40 40"
# LAMMPS' number for the energy of two charges has eight digits.
SHARE = 14.399645 / COULOMB


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return with_charges(tmp_path_factory.mktemp("charges"))


def frame(k: int) -> ase.Atoms:
    with np.load(OUTPUTS / "dipole_water.npz") as found:
        symbols = [("O", "H")[t] for t in found["types"]]
        return ase.Atoms(symbols, found["positions"][k], cell=found["cell"][k], pbc=True)


def data(atoms: ase.Atoms, bonds: bool = True, charges=(6, 1, -8), apart: float = 0.0) -> str:
    """With a centroid for each oxygen, where that is, or apart from there."""
    h, n = atoms.cell.array.tolist(), len(atoms)
    oxygens = [i for i, symbol in enumerate(atoms.symbols) if symbol == "O"]
    kinds = [*(1 if symbol == "O" else 2 for symbol in atoms.symbols), *(3 for _ in oxygens)]
    places = [*atoms.positions.tolist(), *(atoms.positions[oxygens] + apart).tolist()]
    lines = ["water", "", f"{len(kinds)} atoms", "3 atom types"]
    lines += [f"{len(oxygens)} bonds"] if bonds else []
    lines += ["2 bond types", *(f"0 {h[k][k]!r} {axis}lo {axis}hi" for k, axis in enumerate("xyz"))]
    lines += [f"{h[1][0]!r} {h[2][0]!r} {h[2][1]!r} xy xz yz"] if np.ptp(atoms.cell.angles()) else []
    lines += ["", "Masses", "", "1 16", "2 2", "3 16"]
    lines += ["", "Atoms # full", ""]
    for i, (kind, (x, y, z)) in enumerate(zip(kinds, places, strict=True)):
        lines.append(f"{i + 1} 1 {kind} {charges[kind - 1]} {x!r} {y!r} {z!r}")
    if bonds:
        lines += ["", "Bonds", "", *(f"{k + 1} 1 {i + 1} {n + k + 1}" for k, i in enumerate(oxygens))]
    return "\n".join(lines) + "\n"


def script(
    model, kspace=EXACT, words="type_associate 1 3 bond_type 1", more="run 0", elements="O H NULL"
) -> str:
    return f"""
    units metal
    atom_style full
    neighbor 1.0 bin
    read_data data.lmp
    group real type 1 2
    pair_style mdops {model} precision float64
    pair_coeff * * {elements}
    bond_style zero
    bond_coeff *
    special_bonds lj/coul 1 1 1
    {kspace}
    fix charges all mdops/dplr model {model} {words}
    compute v all pressure NULL virial
    compute atoms all pe/atom
    compute sum all reduce sum c_atoms
    thermo_style custom step pe c_v[*] vol etotal c_sum
    thermo_modify format float %20.15g
    dump d all custom 1000 dump.txt id x y z fx fy fz ix
    dump_modify d sort id format float %20.15g
    {more}
    """


def expected(model, atoms, charges=None):
    """Those of the model with LAMMPS' number for charges, or with this part of the charges."""
    whole, short = (
        mdops.load(model, dtype="float64", modifier=added).compute(atoms) for added in (True, False)
    )
    found = {}
    for name in ("energy", "forces", "virial"):
        own = whole[name] - short[name] if charges is None else charges[name].reshape(short[name].shape)
        assert np.abs(own).max() > 0.01 * np.abs(short[name]).max()
        found[name] = short[name] + SHARE * own
    return found


def assert_answers(run, done, wanted, tolerance) -> None:
    rows, line, atoms = run.dumped(), thermo(done), len(wanted["forces"])
    assert_near(line[1], wanted["energy"][0], tolerance, "energy")
    assert_near(rows[:atoms, 4:7], wanted["forces"], tolerance, "forces")
    assert not rows[atoms:, 4:7].any()
    virial = wanted["virial"][0].ravel()[list(SIX)] * BAR_PER_EV
    assert_near(line[2:8] * line[8], virial, 5 * tolerance, "virial")
    assert_near(line[10], line[1], 1e-11, "the sum of the atoms' energies")


@pytest.mark.parametrize("ranks", (1, 2, 4))
@pytest.mark.parametrize("cell", (0, 1), ids=("orthogonal", "triclinic"))
def test_answers(run, model, cell, ranks):
    atoms = frame(cell)
    (run.folder / "data.lmp").write_text(data(atoms))
    assert_answers(run, run(script(model), ranks), expected(model, atoms), 1e-10)


def test_without_elements_the_types_behind_the_models_are_centroids(run, model):
    atoms = frame(0)
    (run.folder / "data.lmp").write_text(data(atoms))
    assert_answers(run, run(script(model, elements="")), expected(model, atoms), 1e-10)


def test_answers_are_those_of_deepmd(run, model):
    """Of its modifier, which make_dipole_charge.py asked about the same model of dipoles."""
    with np.load(ROOT / "tests/data/dipole_charge.npz") as found:
        names = {"energy": "energy", "forces": "force", "virial": "virial"}
        theirs = {name: found[f"dipole_water_{own}"][1] for name, own in names.items()}
    (run.folder / "data.lmp").write_text(data(frame(1)))
    assert_answers(run, run(script(model)), expected(model, frame(1), theirs), 1e-9)


@pytest.mark.parametrize("derivative", ("ik", "ad"))
def test_a_mesh_is_near(run, model, derivative):
    atoms = frame(0)
    (run.folder / "data.lmp").write_text(data(atoms))
    done = run(script(model, f"{MESH} diff {derivative}"), 2)
    assert_answers(run, done, expected(model, atoms), 1e-6)


@pytest.mark.parametrize("units", ("metal", "real"))
def test_an_input_of_deepmd_runs_unchanged(run, model, units):
    """With DeePMD-kit's names, and a file of which the data for the C core are made first."""
    atoms = frame(0)
    (run.folder / "data.lmp").write_text(data(atoms))
    mdops.load(model.with_name("alone.safetensors")).save(model.with_name("ener.dp"))
    text = script(model, MESH.replace("pppm", "pppm/dplr"), elements="").replace("mdops/dplr", "dplr")
    text = text.replace("pair_style mdops", "pair_style deepmd").replace("model.safetensors", "ener.dp")
    text = text.replace("compute v", "fix_modify charges virial yes\n    compute v").replace(
        "units metal", f"units {units}"
    )
    done, wanted = run(text, 2), expected(model, atoms)
    if units == "metal":
        return assert_answers(run, done, wanted, 1e-6)
    energy = 0.0019872067 / 8.617343e-5  # of LAMMPS' constants of Boltzmann, kcal/mol an eV
    assert_near(
        thermo(done)[1], energy * wanted["energy"][0], 2e-5, "energy"
    )  # its constants of charges differ
    assert_near(run.dumped()[:81, 4:7], energy * wanted["forces"], 2e-5, "forces")
    virial = energy * 68568.415 * wanted["virial"][0].ravel()[list(SIX)]
    assert_near(thermo(done)[2:8] * thermo(done)[8], virial, 5e-5, "virial")
    return None


@pytest.mark.parametrize("units", ("metal", "nano"))
def test_dipoles_of_atoms(run, model, units):
    """By DeePMD-kit's compute, whose types are the model's in their order; centroids have none."""
    atoms, length = frame(0), 1.0 if units == "metal" else 0.1
    moved = atoms.copy()
    moved.set_cell(length * atoms.cell.array, scale_atoms=True)
    (run.folder / "data.lmp").write_text(data(moved, bonds=False, apart=0.1 * length))
    text = f"""units {units}
    atom_style full
    neighbor {length} bin
    read_data data.lmp
    pair_style zero {5 * length}
    pair_coeff * *
    group some id 1:40
    compute mu some deeptensor/atom {model.with_name("dw.dp")}
    dump d all custom 1 dump.txt id c_mu[*]
    dump_modify d sort id format float %20.15g
    run 0"""
    run(text, 2)
    wanted = mdops.load(model.with_name("dw.dp"), dtype="float64").compute(atoms)["atom_dipole"]
    rows = run.dumped()[:, 1:] / length
    assert np.abs(wanted[:40]).max() > 0.01 and not rows[40:].any()
    assert_near(rows[:40], wanted[:40], 1e-9, "dipoles")
    assert "farther than the pair style" in run.fails(
        text.replace(f"zero {5 * length}", f"zero {3 * length}")
    )
    random_model(SE_E2_A, {}).save(run.folder / "energies.safetensors")
    told = run.fails(text.replace(str(model.with_name("dw.dp")), "energies.safetensors"))
    assert "it is no model of dipoles" in told


def test_centroids_may_begin_anywhere_near(run, model):
    """Apart from their atoms, and on other processes."""
    (run.folder / "data.lmp").write_text(data(frame(1), apart=1.7))
    assert_answers(run, run(script(model), 4), expected(model, frame(1)), 1e-10)


def test_runs_follow_each_other_across_a_border(run, model):
    """The images of centroids are those of their atoms, also where a run begins with some beyond the box."""
    (run.folder / "data.lmp").write_text(data(frame(0)))
    text = script(model, more="displace_atoms all move 7.3 -11.2 30.1\n    run 0\n    run 0")
    done, wanted = run(text, 2), expected(model, frame(0))
    assert_near(thermo(done)[1], wanted["energy"][0], 1e-10, "energy")
    assert_near(run.dumped()[:81, 4:7], wanted["forces"], 1e-9, "forces")
    assert done.stdout.count("Inconsistent image flags") == 0


MOVES = """
    velocity real create 300 7 loop geom
    fix 1 real nve
    compute t real temp
    thermo_modify temp t
    timestep 0.0002
    neigh_modify every 1 delay 0 check yes
    thermo 10
    run {steps}
    """


def test_energy_is_conserved(run, model):
    """And the last structure has the energy and the forces of the model."""
    (run.folder / "data.lmp").write_text(data(frame(0)))
    mesh = "kspace_style pppm 1e-6\nkspace_modify gewald 0.4 order 6 mesh 24 24 24"
    done = run(script(model, mesh, more=MOVES.format(steps=300) + "write_dump all custom dump.txt id xu yu zu fx fy fz "
    "modify sort id format float %20.15g"), 2)  # fmt: skip
    line = np.array(
        [
            [float(x) for x in row.split()]
            for row in re.findall(r"\n( +\d+(?: +[-+.e\d]+){10})(?=\s*\n)", done.stdout)
        ]
    )
    potential, total = line[:, 1], line[:, 9]
    assert len(line) == 31 and np.ptp(potential) > 0.3
    assert np.ptp(total) < 0.01 * np.ptp(potential)
    rows, atoms = run.dumped(), frame(0)
    atoms.positions = rows[:81, 1:4]
    wanted = expected(model, atoms)
    assert_near(potential[-1], wanted["energy"][0], 1e-6, "energy")
    assert_near(rows[:81, 4:7], wanted["forces"], 1e-5, "forces")
    dipoles = mdops.load(model.with_name("dw.dp"), dtype="float64").compute(atoms)["atom_dipole"]
    shift = rows[81:, 1:4] - rows[:27, 1:4]
    np.testing.assert_allclose(shift, dipoles[:27], atol=1e-9)


def test_steps_do_not_depend_on_processes(run, model):
    (run.folder / "data.lmp").write_text(data(frame(1)))
    text = script(model, more=MOVES.format(steps=40))
    lines = [thermo(run(text, ranks), 4) for ranks in (1, 4)]
    assert lines[0][0] == 40
    np.testing.assert_allclose(lines[0], lines[1], rtol=1e-7)


@pytest.mark.parametrize(
    "style",
    (
        "hybrid/overlay mdops {model} precision float64 zero 4.0",
        "mdops {model} precision float64 device cuda",
    ),
)
def test_answers_beside_another_style_and_with_the_models_own_list(run, model, style, request):
    """In pair_style hybrid/overlay, and where LAMMPS makes no list for the pair style, but for the fix."""
    (run.folder / "data.lmp").write_text(data(frame(1)))
    if "cuda" in style:
        run.env["LD_PRELOAD"] = str(request.getfixturevalue("as_on_a_gpu"))
    text = script(model).replace(f"mdops {model} precision float64\n", style.format(model=model) + "\n", 1)
    if "hybrid" in style:
        text = text.replace(
            "pair_coeff * * O H NULL", "pair_coeff * * mdops O H NULL\n    pair_coeff * * zero"
        )
    assert_answers(run, run(text, 2), expected(model, frame(1)), 1e-10)


def test_a_field_reaches_the_atoms_by_the_centroids(run, model):
    """LAMMPS' own, in a line before the fix."""
    atoms, e = frame(0), np.array([0.0, 0.3, 0.1])
    (run.folder / "data.lmp").write_text(data(atoms))
    field = "fix field all efield 0.0 0.3 0.1\n    fix_modify field energy yes\n    fix charges"
    line, rows = thermo(run(script(model).replace("fix charges", field), 2)), run.dumped()
    wanted, is_oxygen = expected(model, atoms), np.array(list(atoms.symbols)) == "O"
    of_centroids = np.where(is_oxygen[:, None], -8 * e, 0.0)
    own = in_fields(mdops.load(model.with_name("dw.dp"), dtype="float64"), atoms, of_centroids)
    direct = np.where(is_oxygen[:, None], 6 * e, e) + of_centroids
    assert_near(rows[:81, 4:7], wanted["forces"] + direct + own["forces"], 1e-10, "forces")
    energy = own["energy"] - (direct * atoms.positions).sum()
    assert_near(line[1], wanted["energy"][0] + energy, 1e-10, "energy")


def test_a_minimisation_goes_down(run, model):
    (run.folder / "data.lmp").write_text(data(frame(0)))
    done = run(script(model, more="thermo 5\n    minimize 0 1e-3 20 100"), 2)
    energies = [thermo(done, k)[1] for k in range(4)]
    assert np.all(np.diff(energies) < 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"kspace": ""}, "there is no kspace_style, which sums the charges"),
        ({"kspace": "kspace_style ewald 1e-6\nkspace_modify gewald 0.5"}, "write `kspace_modify gewald 0.4"),
        ({"kspace": "kspace_style pppm/disp 1e-4\nkspace_modify gewald 0.4"}, "kspace|Kspace"),
        ({"kspace": EXACT + "\ndielectric 2"}, "the dielectric constant is not 1"),
        ({"words": "bond_type 1"}, "type_associate has 0 types, expected pairs"),
        ({"words": "type_associate 1 3 2"}, "type_associate has 3 types, expected pairs"),
        ({"words": "type_associate 1 4"}, "type_associate has 4, expected types from 1 to 3"),
        ({"words": "type_associate 2 3"}, "atom type 1, O, has centroids in the model"),
        ({"words": "type_associate 1 3 2 1"}, "names a type twice"),
        ({"words": "type_associate 1 3 bond_type 2"}, "have a bond of type 1, which is none of bond_type"),
        ({"words": "type_associate 1 3 efield 0 0 1"}, "fix ID all efield"),
        ({"words": "type_associate 1 3 color red"}, "color is none of the words"),
        ({"elements": "O H H"}, "is one of centroids, and pair_coeff calls it H, expected NULL"),
        ({"more": "compute s all stress/atom NULL\n dump s all custom 1 s.txt c_s[1]\n run 0"}, "no virials of atoms"),
        ({"more": "fix again all mdops/dplr model MODEL type_associate 1 3\n run 0"}, "there is one already"),
        ({"more": "unfix charges\n run 0"}, "lacks the energy of charges beyond the cutoff"),
        ({"more": "run_style respa 2 2 pair 1 kspace 2\n run 0"}, "respa"),
        ({"more": "fix field all efield 0 0 1\n run 2"}, "defined after it puts forces on the centroids"),
        ({"more": "fix field all efield 0 0 1\n run 0"}, "defined after it puts forces on the centroids"),
        ({"more": "fix field all efield 0 0 1\n minimize 0 1e-3 5 50"}, "puts forces on the centroids"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused(run, model, changes, told):
    (run.folder / "data.lmp").write_text(data(frame(0)))
    changes = {name: text.replace("MODEL", str(model)) for name, text in changes.items()}
    assert re.search(told, run.fails(script(model, **changes)))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bonds": False}, "is a centroid with bonds to 0 atoms of type 1"),
        ({"charges": (6, 1, 0)}, r"of type 3, has the charge 0\.0+, and the model has -8\.0+ there"),
        ({"charges": (5, 1.5, -8)}, r"has the charge 5\.0+, and the model has 6\.0+ there"),
    ],
)
def test_wrong_data_are_refused(run, model, given, told):
    (run.folder / "data.lmp").write_text(data(frame(0), **given))
    assert re.search(told, run.fails(script(model), 2))


def test_an_atom_without_a_centroid_is_refused(run, model):
    (run.folder / "data.lmp").write_text(data(frame(0)))
    kspace = f"{EXACT}\n    delete_atoms group last bond yes"
    text = script(model, kspace).replace("group real", "group last id 108\n    group real")
    assert "has 0 centroids, expected one" in run.fails(text)


def test_other_files_are_refused(run, model):
    (run.folder / "data.lmp").write_text(data(frame(0)))
    other = random_model(SE_E2_A, {})
    other.save(run.folder / "energies.safetensors")
    dipole_model().save(run.folder / "dipoles.safetensors")
    fixed = f"mdops/dplr model {model}"
    for name, told in (
        ("energies", "it is no model of dipoles, and has no charges"),
        ("dipoles", "is a model of dipoles alone"),
        ("none", "none.safetensors"),
    ):
        assert told in run.fails(script(model).replace(fixed, f"mdops/dplr model {name}.safetensors"))
    for name, told in (
        ("energies", "there is no pair_style mdops whose model has charges"),
        ("dipoles", "it is a model of dipoles, and one of energies is asked for"),
    ):
        text = script(model, "").replace(f"pair_style mdops {model}", f"pair_style mdops {name}.safetensors")
        assert told in run.fails(text)


def test_a_file_without_the_cores_part_says_what_writes_it(run, model):
    (run.folder / "data.lmp").write_text(data(frame(0)))
    told = run.fails(
        script(model, "").replace(
            f"pair_style mdops {model}", f"pair_style mdops {model.with_name('alone.safetensors')}"
        )
    )
    assert "for which programs take a file that `mdops convert IN OUT.safetensors` writes" in told


def test_centroids_in_an_integrators_group_are_told_of(run, model):
    (run.folder / "data.lmp").write_text(data(frame(0)))
    done = run(script(model, more="fix 1 all nve\n    run 2"))
    assert "centroids are in the group of fix 1" in done.stdout
