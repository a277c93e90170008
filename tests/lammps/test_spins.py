"""Models with magnetic moments, in LAMMPS with its atom_style spin."""

import math
import subprocess

import numpy as np
import pytest
import torch
from ase import Atoms
from lammps_runs import BAR_PER_EV, ORTHOGONAL, ROOT, assert_near, crystal, script, thermo

import mdops
from mdops.models.registry import find
from mdops.train import parse_config

VIRTUAL = {"use_spin": [True, False], "virtual_scale": [0.314]}
DESCRIPTORS = {
    "dpa4": {"type": "dpa4", "rcut": 4.5, "channels": 6, "n_radial": 5, "lmax": 2, "n_blocks": 2, "mixing_layers": 2},
    "se_e2_a": {"type": "se_e2_a", "sel": [40, 40], "rcut": 4.5, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 2},
    "dpa3": {"type": "dpa3", "repflow": {"n_dim": 8, "e_dim": 4, "a_dim": 4, "nlayers": 2, "e_rcut": 4.0,
             "e_rcut_smth": 2.0, "e_sel": 200, "a_rcut": 3.0, "a_rcut_smth": 2.0, "a_sel": 90, "axis_neuron": 2}},
}  # fmt: skip
HBAR = 4.135667403e-3 / (2 * math.pi)  # eV ps, LAMMPS' own


@pytest.fixture(autouse=True)
def has_package(run):
    told = subprocess.run([run.program, "-h"], env=run.env, capture_output=True, text=True).stdout
    if " SPIN " not in told.replace("\n", " "):
        pytest.skip("this LAMMPS has no package SPIN")


DPA4C = ROOT / "tests/data/reference_spin/dpa4c/model.dp"
DPA4_VIRTUAL = ROOT / "tests/data/reference_spin/dpa4_virtual/model.dp"


def section(descriptor):
    native = {"type": "dpa4", "spin": {"scheme": "native", "use_spin": ["Ni"]}}
    return {
        "type_map": ["Ni", "O"],
        "descriptor": {**DESCRIPTORS[descriptor], "precision": "float64"},
        "fitting_net": {"neuron": [8, 8], "precision": "float64"},
        **(native if descriptor == "dpa4" else {"spin": VIRTUAL}),
    }


def random_model(given):
    training = {"training_data": {"systems": ["none"]}, "numb_steps": 1}
    model = parse_config({"model": given, "training": training}).model
    return find("model", model.KIND).random(model, 3, torch.float64)


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    """Models with and without messages, whose moments are vectors or virtual atoms. Those of "far" are 4 A away."""
    folder, found = tmp_path_factory.mktemp("models"), {"dpa4c": DPA4C, "dpa4_virtual": DPA4_VIRTUAL}
    for descriptor in DESCRIPTORS:
        made = random_model(section(descriptor))
        random = np.random.default_rng(4)
        for weights in made.parameters():  # a new model with vectors does not see them
            if descriptor == "dpa4" and not weights.any():
                weights.data.copy_(torch.from_numpy(0.3 * random.normal(size=weights.shape)))
        found[descriptor] = folder / f"{descriptor}.dp"
        mdops.Potential(made, overflow="extend").save(found[descriptor])
    found["far"] = folder / "far.dp"
    far = section("se_e2_a") | {"spin": {**VIRTUAL, "virtual_scale": [4.0]}}
    mdops.Potential(random_model(far), overflow="extend").save(found["far"])
    return found


def magnet(cell=ORTHOGONAL, sizes=(3, 3, 4)):
    """Atoms with moments of all lengths and directions."""
    atoms = crystal(cell, sizes=sizes)
    spins = np.random.default_rng(2).normal(size=(len(atoms), 3))
    spins[np.flatnonzero(atoms.numbers == 2)[0]] = 0
    atoms.set_initial_magnetic_moments(spins)
    return atoms


def data(atoms):
    spins = atoms.get_initial_magnetic_moments()
    lengths = np.linalg.norm(spins, axis=1)
    directions = np.where(lengths[:, None] > 0, spins / np.maximum(lengths, 1e-300)[:, None], [0, 0, 1])
    h = atoms.cell.array.tolist()
    sides = "".join(f"0 {h[k][k]!r} {axis}lo {axis}hi\n" for k, axis in enumerate("xyz"))
    sides += f"{h[1][0]!r} {h[2][0]!r} {h[2][1]!r} xy xz yz\n"
    rows = "".join(
        f"{i + 1} {t} {' '.join(repr(float(v)) for v in (*place, *direction, length))}\n"
        for i, (t, place, direction, length) in enumerate(
            zip(atoms.numbers, atoms.positions, directions, lengths, strict=True)
        )
    )
    return f"\n\n{len(atoms)} atoms\n2 atom types\n{sides}\nMasses\n\n1 20\n2 30\n\nAtoms # spin\n\n{rows}"


def text_for(path, words="precision float64", more="run 0"):
    names = " ".join(mdops.load(path).type_map[:2])
    text = script(f"mdops {path} {words} overflow extend", coeff=names, more=more)
    text = text.replace("atom_style atomic", "atom_style spin\n    atom_modify map array")
    text = text.replace(
        "compute e all", "compute m all property/atom fmx fmy fmz sp spx spy spz\n    compute e all"
    )
    return text.replace("fz c_e", "fz c_e c_m[*]")


def answers(atoms, path, dtype="float64", **asked):
    potential = mdops.load(path, dtype=dtype, overflow="extend")
    named = atoms.copy()
    named.set_chemical_symbols([potential.type_map[k - 1] for k in atoms.numbers])
    named.set_initial_magnetic_moments(atoms.get_initial_magnetic_moments())
    return potential.compute(named, **asked)


@pytest.mark.parametrize(
    ("kind", "precision", "ranks"),
    [
        *(("dpa4", "float64", ranks) for ranks in (1, 2, 4)),
        ("dpa4", "float32", 2),
        *(("dpa4c", "float64", ranks) for ranks in (1, 2)),
        *((kind, "float64", ranks) for kind in ("se_e2_a", "dpa3", "dpa4_virtual") for ranks in (1, 2)),
    ],
)
def test_forces_and_fields_are_those_of_python(run, paths, kind, precision, ranks):
    atoms = magnet()
    (run.folder / "data.lmp").write_text(data(atoms))
    done = run(text_for(paths[kind], f"precision {precision}"), ranks)
    wanted = answers(atoms, paths[kind], precision, atom_virial=True)
    frame, line, tolerance = run.dumped(), thermo(done), 1e-11 if precision == "float64" else 3e-5
    assert_near(line[1], wanted["energy"][0], tolerance, "energy")
    assert_near(frame[:, 4:7], wanted["forces"], tolerance, "forces")
    assert_near(frame[:, 7], wanted["atom_energy"], tolerance, "energies of atoms")
    fields = (
        wanted["force_mag"] * np.linalg.norm(atoms.get_initial_magnetic_moments(), axis=1)[:, None] / HBAR
    )
    assert np.abs(fields).max() > 1
    assert_near(frame[:, 8:11], fields, max(tolerance, 1e-8), "fields")
    virial = line[2:8] * line[8] / BAR_PER_EV
    assert_near(virial, wanted["virial"][0].flatten()[[0, 4, 8, 1, 2, 5]], max(tolerance, 1e-7), "virial")
    if kind == "dpa4c":
        of_atoms = -frame[:, 15:21].sum(0) / BAR_PER_EV
        assert_near(of_atoms[:3], wanted["virial"][0].diagonal(), 1e-7, "virials of atoms")


def test_deepspin_is_the_same_style(run, paths):
    atoms = magnet()
    (run.folder / "data.lmp").write_text(data(atoms))
    done = run(text_for(paths["dpa4c"]).replace("pair_style mdops", "pair_style deepspin"))
    assert_near(thermo(done)[1], answers(atoms, paths["dpa4c"])["energy"][0], 1e-11, "energy")


def test_a_process_may_have_no_atoms(run):
    atoms = magnet([[4.2, 0, 0], [1, 4.0, 0], [-1, 1.5, 4.4]], sizes=(2, 1, 2))
    (run.folder / "data.lmp").write_text(data(atoms))
    run(text_for(DPA4_VIRTUAL), 4)
    assert_near(run.dumped()[:, 4:7], answers(atoms, DPA4_VIRTUAL)["forces"], 1e-11, "forces")


@pytest.mark.parametrize("kind", ["dpa4", "se_e2_a"])
def test_the_pressure_tilts_the_box(run, paths, kind):
    """The virial is not symmetric: its upper triangle is minus the derivative of the energy by the box's tilts."""
    (run.folder / "data.lmp").write_text(data(magnet([[9, 0, 0], [3, 8, 0], [-2, 0, 10]], sizes=(3, 3, 3))))
    tilts, lines = {"xy": 8, "xz": 10, "yz": 10}, ["run 0"]
    for tilt in tilts:
        for change in (1e-3, -2e-3, 1e-3):
            lines += [f"change_box all {tilt} delta {change} remap units box", "run 0", "ENERGY"]
    energies = run.energies(text_for(paths[kind], more="\n    ".join(lines)))
    line = thermo(run(text_for(paths[kind])))
    virial = line[5:8] * line[8] / BAR_PER_EV
    slopes = (np.array(energies[1::3]) - energies[0::3]) / 2e-3 * list(tilts.values())
    assert_near(virial, slopes, 1e-5, "virial")


def test_a_minimiser_turns_the_moments(run):
    atoms = magnet()
    (run.folder / "data.lmp").write_text(data(atoms))
    more = "run 0\n    min_style spin\n    min_modify alpha_damp 1.0 discrete_factor 10.0\n    minimize 0 1e-8 300 300"
    run(text_for(DPA4C, more=more), 2)
    frame, before = run.dumped(), np.linalg.norm(atoms.get_initial_magnetic_moments(), axis=1)
    assert_near(frame[:, 11], before, 1e-12, "lengths of moments")
    after = atoms.copy()
    after.positions = frame[:, 1:4]
    after.set_initial_magnetic_moments(frame[:, 11:12] * frame[:, 12:15])
    first, found = (answers(one, DPA4C) for one in (atoms, after))
    assert found["energy"][0] < first["energy"][0]

    def torque(force_mag, spins):
        return np.linalg.norm(np.cross(spins, force_mag), axis=1).max()

    start = torque(first["force_mag"], atoms.get_initial_magnetic_moments())
    assert torque(found["force_mag"], after.get_initial_magnetic_moments()) < 0.2 * start


def test_a_minimization_may_have_an_integrator_of_moments(run):
    """As in DeePMD-kit's example; it moves nothing there."""
    atoms = magnet()
    (run.folder / "data.lmp").write_text(data(atoms))
    found = []
    for fix in ("", "fix 1 all nve/spin lattice moving\n    "):
        run(text_for(DPA4C, more=f"{fix}min_style cg\n    minimize 0 1e-8 5 5"))
        found.append(run.dumped()[:, 1:4])
    assert_near(found[1], found[0], 1e-12, "positions")


@pytest.mark.parametrize("kind", ["dpa4", "dpa3"])
def test_atoms_move_with_their_moments(run, paths, kind):
    """Energy is conserved where the moments stay as they are."""
    (run.folder / "data.lmp").write_text(data(magnet()))
    more = "velocity all create 300 1\n    fix 1 all nve\n    timestep 0.0005\n    thermo 1\n    run 30"
    done = run(text_for(paths[kind], more=more), 2)
    totals = np.array([thermo(done, k)[[1, 9]] for k in range(31)])
    assert np.ptp(totals[:, 1]) < 0.02 * np.ptp(totals[:, 0])


def test_models_deviate(run, tmp_path):
    paths = [DPA4C, tmp_path / "other.dp"]
    other = mdops.load(paths[0], dtype="float64")
    with torch.no_grad():
        for weight in other.model.fitting.parameters():
            weight.mul_(1.05)
    other.save(paths[1])
    atoms = magnet()
    (run.folder / "data.lmp").write_text(data(atoms))
    run(text_for(DPA4C, "other.dp precision float64 out_freq 1"), 2)
    both, wanted = [answers(atoms, path) for path in paths], []
    for name in ("forces", "force_mag"):
        values = [one[name] for one in both]
        deviation = np.sqrt(np.mean([((one - np.mean(values, 0)) ** 2).sum(1) for one in values], 0))
        wanted += [deviation.max(), deviation.min(), deviation.mean()]
    heading, line = (tmp_path / "model_devi.out").read_text().splitlines()
    kinds = [f"{which}_devi_{what}" for what in ("v", "fr", "fm") for which in ("max", "min", "avg")]
    assert heading.split()[2:] == kinds
    assert_near(np.array([float(x) for x in line.split()[4:]]), np.array(wanted), 1e-5, "deviation")


def far_apart(length):
    """Atoms on two processes. If the length is 1, a virtual atom of the model "far" is near the other's first atom."""
    atoms = Atoms(numbers=[1, 1, 2], positions=[[9.8, 3, 3], [17.5, 3, 3], [3, 3, 3]], cell=[20, 8, 8])
    atoms.set_initial_magnetic_moments(length * np.array([[0.1, 0.2, 0], [-1, 0, 0], [0, 0, 0]]))
    return atoms


@pytest.mark.parametrize("order", [("se_e2_a", "far"), ("far", "se_e2_a")])
def test_ghosts_are_enough_for_every_model(run, paths, order):
    atoms, (first, second) = far_apart(1), [paths[kind] for kind in order]
    (run.folder / "data.lmp").write_text(data(atoms))
    text = text_for(first, f"{second} precision float64 out_freq 1").replace("p p p", "f f f")
    assert "pair mdops, perpetual" not in run(text, 2).stdout  # LAMMPS makes no list for virtual atoms
    forces = np.array([answers(atoms, path)["forces"] for path in (first, second)])
    wanted = np.sqrt(((forces - forces.mean(0)) ** 2).sum(2).mean(0)).max()
    line = (run.folder / "model_devi.out").read_text().splitlines()[-1]
    assert wanted > 1e-8
    assert float(line.split()[4]) == pytest.approx(wanted, rel=1e-5)


def test_moments_may_grow_between_runs_alone(run, paths):
    (run.folder / "data.lmp").write_text(data(far_apart(0.1)))
    lines = [
        "run 0",
        f"set atom 1 spin/atom {math.hypot(0.1, 0.2)!r} 0.1 0.2 0",
        "set atom 2 spin/atom 1 -1 0 0",
    ]
    text = text_for(paths["far"], more="\n    ".join([*lines, "run 1"])).replace("p p p", "f f f")
    run(text, 2)
    assert_near(run.dumped()[:, 4:7], answers(far_apart(1), paths["far"])["forces"], 1e-8, "forces")
    assert "a moment has grown to 0.22" in run.fails(text.replace("run 1", "run 1 pre no"), 2)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("run 0", "fix 1 all nve/spin lattice moving\n    run 0", "fix nve/spin turns moments by the fields"),
        ("overflow extend", f"{ROOT}/tests/data/reference_kinds/dpa4c_base/model.dp", "has magnetic moments"),
    ],
)
def test_what_would_be_wrong_is_refused(run, old, new, told):
    (run.folder / "data.lmp").write_text(data(magnet()))
    text = text_for(DPA4C)
    assert told in run.fails(text.replace(old, new, 1))


def test_virtual_atoms_find_their_own_neighbours(run, paths):
    """So what changes LAMMPS' lists would have no effect."""
    (run.folder / "data.lmp").write_text(data(magnet()))
    text = text_for(paths["se_e2_a"]).replace("run 0", "neigh_modify exclude type 1 2\n    run 0")
    assert "would have no effect" in run.fails(text)
    text = with_zeros("hybrid", text_for(paths["se_e2_a"])).replace("run 0", "pair_coeff 1 2 zero\n    run 0")
    assert "would have no effect" in run.fails(text)


def with_zeros(style, text):
    """With a second pair style, without forces."""
    text = text.replace("pair_style mdops", f"pair_style {style} zero 3 mdops")
    return text.replace("pair_coeff * *", "pair_coeff * * zero\n    pair_coeff * * mdops")


@pytest.mark.parametrize("kind", ["se_e2_a", "dpa4"])
def test_other_styles_may_be_added(run, paths, kind):
    atoms = magnet()
    (run.folder / "data.lmp").write_text(data(atoms))
    run(with_zeros("hybrid/overlay", text_for(paths[kind])), 2)
    assert_near(run.dumped()[:, 4:7], answers(atoms, paths[kind])["forces"], 1e-11, "forces")


def test_virtual_atoms_need_a_moment(run):
    """The error names the atom's ID, which the index of the model's atom need not be."""
    atoms = magnet()
    spins = atoms.get_initial_magnetic_moments()
    which = np.flatnonzero(atoms.numbers == 1)[-1]
    spins[which] = 0
    atoms.set_initial_magnetic_moments(spins)
    (run.folder / "data.lmp").write_text(data(atoms))
    told = run.fails(text_for(DPA4_VIRTUAL), 2)
    assert "has a moment of zero" in told and f"its atom ID is {which + 1})" in told


def test_atoms_need_moments(run):
    text = text_for(DPA4C).replace("atom_style spin", "atom_style atomic").replace(" c_m[*]", "")
    text = "\n".join(line for line in text.splitlines() if "compute m" not in line)
    plain = data(magnet()).replace("# spin", "# atomic")
    head, rows = plain.split("# atomic\n\n")
    rows = "".join(" ".join(row.split()[:5]) + "\n" for row in rows.splitlines())
    (run.folder / "data.lmp").write_text(f"{head}# atomic\n\n{rows}")
    assert "atom_style is atomic, expected spin" in run.fails(text)
