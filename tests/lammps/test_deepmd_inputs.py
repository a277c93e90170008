"""Inputs for DeePMD-kit's pair style, which run unchanged (lammps.md): its names, words, units and files."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from lammps_runs import ORTHOGONAL, RANKS, ROOT, assert_near, crystal, data, script, thermo

import mdops

WORDS = "precision float64 overflow extend"
REFERENCE = ROOT / "tests/data/reference"


@pytest.fixture
def atoms(run):
    atoms = crystal(ORTHOGONAL)
    atoms.wrap()
    (run.folder / "data.lmp").write_text(data(atoms))
    return atoms


def answers(path, atoms, dtype="float64", **parameters):
    potential = mdops.load(path, dtype=dtype, overflow="extend")
    named = atoms.copy()
    named.set_chemical_symbols([potential.type_map[k - 1] for k in atoms.numbers])
    return potential.compute(named, **parameters)


def log(run):
    return (run.folder / "log.lmp").read_text()


# -- Names and files


@pytest.mark.parametrize("ranks", RANKS)
def test_an_input_runs_unchanged(run, ranks):
    """With a frozen model, of which the data for the C core are made once."""
    atoms = crystal(np.multiply(ORTHOGONAL, 1.5))
    (run.folder / "data.lmp").write_text(data(atoms))
    shutil.copy(ROOT / "tests/data/formats/model.pth", run.folder / "graph.pth")
    text = """plugin load libdeepmd_lmp.so
    units metal
    read_data data.lmp
    pair_style deepmd graph.pth
    pair_coeff * *
    velocity all create 300 7
    fix 1 all nve
    run 0
    ENERGY"""
    wanted = answers(run.folder / "graph.pth", atoms, "float32")["energy"][0]
    assert run.energies(text, ranks) == pytest.approx([wanted], rel=1e-6)
    made = re.search(r"data of graph.pth for the C core are in (\S+)", log(run))[1]
    assert "process of Python" not in log(run)
    when = (run.folder / made).stat().st_mtime_ns
    run.energies(text, ranks)
    assert made in log(run) and (run.folder / made).stat().st_mtime_ns == when


def test_a_model_without_kernels_runs_in_python(run, atoms):
    text = script(f"deepmd {ROOT}/tests/data/reference_kinds/dpa3_base/model.dp {WORDS}", case="dpa3_base")
    for _ in range(2):  # the second time it is known
        run(text)
        assert "for the C core are in" not in log(run) and "process of Python" in log(run)


def test_in_overlays_and_scaled(run, models, atoms):
    path = models / "a.safetensors"
    more = "variable part equal 0.25\n fix 1 all adapt 1 pair deepmd scale * * v_part\n run 0\n ENERGY"
    text = script(f"hybrid/overlay deepmd {path} {WORDS} zero 3.0", coeff="deepmd", more=more)
    text = text.replace("compute v", "pair_coeff * * zero\n compute v")
    assert run.energies(text) == pytest.approx([0.25 * answers(path, atoms)["energy"][0]], rel=1e-11)


def test_types_beyond_the_named_ones_are_null(run, models, atoms):
    path, names = models / "a.safetensors", mdops.load(models / "a.safetensors").type_map
    wanted = answers(path, atoms[atoms.numbers == 1])["energy"][0]
    found = run.energies(script(f"deepmd {path} {WORDS}", coeff=names[0], more="run 0\n ENERGY"))
    assert found == pytest.approx([wanted], rel=1e-11)
    (run.folder / "data.lmp").write_text(data(atoms, kinds=3))
    found = run.energies(script(f"deepmd {path} {WORDS}", coeff=" ", more="run 0\n ENERGY"))
    assert found == pytest.approx([answers(path, atoms)["energy"][0]], rel=1e-11)


def test_a_gpu_is_taken_if_there_is_one(run, models, atoms, as_on_a_gpu):
    run.env["LD_PRELOAD"] = str(as_on_a_gpu)
    for style, count in (("deepmd", 1), ("mdops", 0)):
        run(script(f"{style} {models / 'a.safetensors'} {WORDS}"))
        assert log(run).count("1 processes on 1 GPUs") == count


OTHER = """
struct Plugin { const char *version, *style, *name, *info, *author; void *(*creator)(void *); void *handle; };
static void *make(void *lmp) { return 0; }
void lammpsplugin_init(void *lmp, void *handle, void (*enter)(struct Plugin *, void *)) {
  static struct Plugin plugin = {"any", "pair", "deepmd", "another", "others", make, 0};
  plugin.handle = handle;
  enter(&plugin, lmp);
}
"""


def test_the_plugin_that_is_loaded_first_has_the_name(run, models, atoms):
    """And the log says so."""
    (run.folder / "other.c").write_text(OTHER)
    subprocess.run(["gcc", "-shared", "-fPIC", "other.c", "-o", "otherplugin.so"], cwd=run.folder, check=True)
    told = "mdops: pair_style deepmd is that of another plugin, which was loaded before"
    wanted = [answers(models / "a.safetensors", atoms)["energy"][0]]
    text = "{}" + script("{} " + f"{models / 'a.safetensors'} {WORDS}", more="run 0\n ENERGY")
    assert run.energies(text.format("plugin load ./otherplugin.so\n", "deepmd")) == pytest.approx(wanted)
    assert "Ignoring load of pair style deepmd" in log(run) and told not in log(run)
    run.env["LAMMPS_PLUGIN_PATH"] = f"{run.folder}:{run.env['LAMMPS_PLUGIN_PATH']}"
    out = run(text.replace("ENERGY", "").format("", "mdops")).stdout
    assert told in out


# -- The deviation


@pytest.mark.parametrize("ranks", RANKS)
def test_relative_deviations_and_those_of_atoms(run, models, atoms, ranks):
    paths = [models / f"{name}.safetensors" for name in "ab"]
    each = [answers(path, atoms) for path in paths]
    forces, virials = (np.array([a[name] for a in each]) for name in ("forces", "virial"))
    virials = virials[:, 0] / len(atoms)
    off = np.linalg.norm(np.std(forces, 0), axis=1) / (np.linalg.norm(forces.mean(0), axis=1) + 0.5)
    of_virial = np.std(virials, 0) / (np.abs(virials.mean(0)) + 0.25)
    words = f"{WORDS} atomic relative 0.5 relative_v 0.25 out_freq 1 out_file md.out"
    run(script(f"deepmd {paths[0]} {paths[1]} {words}"), ranks)
    head, line = (run.folder / "md.out").read_text().splitlines()
    assert head.endswith("         avg_devi_f      atm_devi_f(N)")
    root = np.sqrt((of_virial**2).mean())
    wanted = [0, of_virial.max(), of_virial.min(), root, off.max(), off.min(), off.mean(), *off]
    np.testing.assert_allclose([float(x) for x in line.split()], wanted, rtol=2e-6)
    table = mdops.deepmd.calc_model_devi(
        atoms.positions[None], atoms.cell.array[None], atoms.numbers - 1,
        [mdops.deepmd.DeepPot(str(path), overflow="extend") for path in paths], relative=0.5,
    )  # fmt: skip
    np.testing.assert_allclose(wanted[4:7], table[0][4:7], rtol=1e-10)


def test_the_words_of_version_0(run, models, atoms):
    paths = [models / f"{name}.safetensors" for name in "ab"]
    run(script(f"deepmd {paths[0]} {paths[1]} 2 devi.out {WORDS}", more="fix 1 all nve\n run 4"))
    lines = (run.folder / "devi.out").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["#", "0", "2", "4"]


def test_the_file_goes_on_after_a_restart(run, models, atoms):
    style = f"deepmd {models / 'a.safetensors'} {models / 'b.safetensors'} {WORDS} out_freq 2"
    run(script(style, more="fix 1 all nve\n run 4\n write_restart half"))
    text = script(style, more="fix 1 all nve\n run 2")
    run(text.replace("read_data data.lmp", "read_restart half"))
    lines = (run.folder / "model_devi.out").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["#", "0", "2", "4", "4", "6"]
    run(script(style))
    assert len((run.folder / "model_devi.out").read_text().splitlines()) == 2


def test_an_interval_of_0_is_none(run, models, atoms):
    run(script(f"deepmd {models / 'a.safetensors'} {models / 'b.safetensors'} {WORDS} out_freq 0"))
    assert not (run.folder / "model_devi.out").exists()


# -- Parameters


def assert_follows(line, rows, path, atoms, number, aparam):
    """Energy and forces are those of the frame parameter, and others would not be."""
    wanted, other = (answers(path, atoms, fparam=[x], aparam=aparam) for x in (number, 1.1 * number))
    assert_near(line[1], wanted["energy"][0], 1e-7, "energy")
    assert_near(rows[:, 4:7], wanted["forces"], 1e-6, "forces")
    assert np.abs(other["energy"][0] / wanted["energy"][0] - 1) > 1e-5


@pytest.mark.parametrize("ranks", RANKS)
def test_parameters_of_computes(run, atoms, ranks):
    """A scalar, which a compute has before LAMMPS sets it up, and two numbers of each atom."""
    path = REFERENCE / "fparam_aparam/model.dp"
    more = """velocity all create 0.4 7
    compute now all temp
    compute each all property/atom vx vy
    run 0"""
    text = script(f"deepmd {path} {WORDS} fparam_from_compute now aparam_from_compute each", more=more)
    line, rows = thermo(run(text.replace("c_e c_s[*] c_c[*]", "vx vy"), ranks)), run.dumped()
    assert_follows(line, rows, path, atoms, 0.4, rows[:, 7:9])


def test_parameters_are_those_of_the_step(run, atoms):
    path = REFERENCE / "fparam_aparam/model.dp"
    more = """velocity all create 3000 7
    variable small atom x/100
    compute now all reduce max v_small
    fix 1 all nve
    thermo 1
    run 3"""
    done = run(script(f"deepmd {path} {WORDS} fparam_from_compute now aparam 0.1 -0.2", more=more))
    rows, moved = run.dumped(), atoms.copy()
    moved.positions = rows[:, 1:4]
    assert moved.positions[:, 0].max() != pytest.approx(atoms.positions[:, 0].max(), rel=1e-3)
    number = 0.01 * moved.positions[:, 0].max()
    assert_follows(thermo(done, 3), rows, path, moved, number, [[0.1, -0.2]] * len(atoms))


def test_parameters_of_vectors_and_fixes(run, atoms):
    path = REFERENCE / "fparam/model.dp"
    more = """variable a equal 0.3
    variable b equal -0.2
    fix ave all ave/time 1 1 1 v_a v_a v_b
    compute two all reduce max x y
    run 0
    run 0
    ENERGY"""
    for words, numbers in (
        ("fparam 0.3 -0.2", [0.3, -0.2]),
        ("fparam_from_compute two", atoms.positions[:, :2].max(0)),
        ("fparam_from_fix ave 2", [0.3, -0.2]),
    ):
        wanted = answers(path, atoms, fparam=numbers)["energy"][0]
        found = run.energies(script(f"deepmd {path} {WORDS} {words}", more=more))
        assert found == pytest.approx([wanted], rel=1e-10), words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("ttm 1", "ttm is not served"),
        ("virtual_len 0.4", "virtual_len is not served"),
        ("spin_norm 1.0", "spin_norm is not served"),
        ("fparam 1 2 fparam_from_compute now", "parameters are given twice"),
        ("fparam_from_compute none", "there is no compute none with a vector"),
        ("fparam_from_fix none", "there is no fix none with a scalar"),
        ("fparam_from_fix none 1", "there is no fix none with a vector of so many numbers"),
        ("fparam_from_fix none 0", "the index of fparam_from_fix is from 1"),
        ("fparam 1 2 aparam_from_compute now", "takes 0 atomic parameters"),
        ("fparam 1 2 relative -1", "relative must not be negative"),
        ("fparam 1 2 out_freq -1", "out_freq must be positive, or 0"),
    ],
)
def test_words_that_are_refused(run, atoms, words, told):
    text = script(f"deepmd {REFERENCE / 'fparam/model.dp'} {WORDS} {words}")
    assert told in run.fails(text.replace("thermo_style", "compute now all temp\n thermo_style"))


# -- Units


@pytest.mark.parametrize("units", ["real", "nano", "electron"])
def test_units(run, models, units):
    """Energies, forces and virials are those of units metal, in LAMMPS' own constants."""
    paths = [models / f"{name}.safetensors" for name in "ab"]
    length = {"real": 1.0, "nano": 0.1, "electron": 1.88972612}[units]
    found = []
    for name, scale in (("metal", 1.0), (units, length)):
        atoms = crystal(ORTHOGONAL)
        atoms.set_cell(scale * atoms.cell.array, scale_atoms=True)
        (run.folder / "data.lmp").write_text(data(atoms))
        skin = f"units {name}\n neighbor {2.0 * scale} bin"
        text = script(f"deepmd {paths[0]} {paths[1]} {WORDS} out_freq 1 atomic", more="run 0")
        line = thermo(run(text.replace("units metal", skin, 1)))
        devi = (run.folder / "model_devi.out").read_text().splitlines()[1]
        found.append((line, run.dumped(), np.array([float(x) for x in devi.split()])))
    (line, rows, devi), (own_line, own_rows, own_devi) = found
    energy = own_line[1] / line[1]
    physical = {"real": 23.060549, "nano": 160.2176634, "electron": 0.0367493221}[units]
    assert_near(energy, physical, 2e-4, "the unit of energy")
    np.testing.assert_allclose(own_rows[:, 4:7], rows[:, 4:7] * energy / length, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(own_rows[:, 7], rows[:, 7] * energy, rtol=1e-9)
    np.testing.assert_allclose(own_devi[1:4], devi[1:4] * energy, rtol=3e-6)
    np.testing.assert_allclose(own_devi[4:], devi[4:] * energy / length, rtol=3e-6)
    pressure = own_line[2:8] * own_line[8] / (line[2:8] * line[8])
    assert np.ptp(pressure) < 1e-9 * abs(pressure[0])
