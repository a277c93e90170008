"""The ASE calculator: right numbers, never a stale one, and ASE's tools on top of it."""

import copy
import pickle
import re
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.filters import FrechetCellFilter
from ase.io import read, write
from ase.md.nose_hoover_chain import IsotropicMTKNPT, NoseHooverChainNVT
from ase.md.nptberendsen import NPTBerendsen
from ase.md.verlet import VelocityVerlet
from ase.optimize import LBFGS
from ase.phonons import Phonons

from mdops import load
from mdops.calculator import MDOps
from mdops.deepmd import DeepPot
from mdops.errors import InputError
from mdops.md import BatchEngine, Engine, EnsembleSettings, Minimizer, Output, Relaxation, run
from mdops.md.relax import relax
from mdops.system import from_atoms, voigt
from mdops.train import Trainer

DATA = Path(__file__).parent / "data"
MODEL = DATA / "formats" / "model.dp"
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def single():
    return load(MODEL)


@pytest.fixture(scope="module")
def double():
    return load(MODEL, dtype="float64")


def alloy(repeat=2, rattle=0.05, seed=0):
    atoms = bulk("Cu", a=4.0, cubic=True)
    atoms.symbols[0] = "Al"
    atoms *= (repeat, repeat, repeat)
    atoms.rattle(rattle, seed=seed)
    return atoms


def perturbed(potential, seed):
    """A copy with slightly other weights: another member of a committee."""
    other = copy.deepcopy(potential)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in other.model.fitting.parameters():
            p += 0.01 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return other


def fresh(atoms, potential):
    return potential.compute(atoms)


def test_answers_are_those_of_the_potential(double):
    atoms = alloy()
    atoms.set_cell(atoms.cell.array @ [[1, 0.1, 0], [0, 1.02, 0], [0.05, 0, 1]], scale_atoms=True)
    atoms.calc = MDOps(double)
    expected = fresh(atoms, double)
    assert atoms.get_potential_energy() == pytest.approx(expected["energy"][0], rel=1e-12)
    assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()
    np.testing.assert_allclose(atoms.get_potential_energies(), expected["atom_energy"], rtol=1e-11)
    np.testing.assert_allclose(atoms.get_forces(), expected["forces"], atol=1e-11)
    stress = -expected["virial"][0] / atoms.get_volume()
    np.testing.assert_allclose(atoms.get_stress(voigt=False), stress, atol=1e-12)
    np.testing.assert_allclose(atoms.calc.results["virial"], expected["virial"][0], atol=1e-10)


def test_derivatives_by_finite_differences(double):
    atoms = alloy(repeat=1, rattle=0.1)
    atoms.calc = MDOps(double)
    np.testing.assert_allclose(
        atoms.get_forces()[:2], calculate_numerical_forces(atoms, eps=1e-4, iatoms=[0, 1]), atol=1e-6
    )
    stress = calculate_numerical_stress(atoms, eps=1e-5, voigt=True)
    np.testing.assert_allclose(atoms.get_stress(), stress, atol=1e-7)


def test_stresses_of_atoms_sum_to_the_stress(double):
    atoms = alloy()
    atoms.calc = MDOps(double)
    np.testing.assert_allclose(atoms.get_stresses().sum(0), atoms.get_stress(), atol=1e-11)
    assert atoms.get_stresses().shape == (len(atoms), 6)


@pytest.mark.parametrize("models", [1, 2])
def test_models_that_pass_messages_have_stresses_of_atoms(models):
    path = DATA / "reference_kinds" / "dpa3_base" / "model.dp"
    atoms = alloy()
    atoms.calc = MDOps([path] * models, dtype="float64", overflow="extend")
    atoms.symbols[:] = np.resize(atoms.calc.type_map, len(atoms))
    np.testing.assert_allclose(atoms.get_stresses().sum(0), atoms.get_stress(), atol=1e-12)
    wanted = atoms.calc.models[0].compute(atoms, atom_virial=True)["atom_virial"]
    np.testing.assert_allclose(atoms.get_stresses(), voigt(-wanted / atoms.get_volume()), atol=1e-12)


def test_a_slab_and_a_cluster_have_no_stress(single):
    for pbc in (False, [True, True, False]):
        atoms = alloy()
        atoms.pbc = pbc
        atoms.calc = MDOps(single)
        np.testing.assert_allclose(atoms.get_forces(), fresh(atoms, single)["forces"], atol=2e-5)
        for ask in (atoms.get_stress, atoms.get_stresses):
            with pytest.raises(PropertyNotImplementedError, match="not periodic in three directions"):
                ask()
        atoms.calc.calculate(atoms, ["energy", "stress"])  # a program that asks for all that it could use
        assert "energy" in atoms.calc.results and "stress" not in atoms.calc.results


def test_lists_are_kept_and_stay_right(single):
    atoms = alloy()
    calculator = atoms.calc = MDOps(single)
    rng = np.random.default_rng(0)
    for _ in range(30):
        atoms.positions += rng.normal(scale=0.02, size=(len(atoms), 3))
        np.testing.assert_allclose(atoms.get_forces(), fresh(atoms, single)["forces"], atol=2e-5)
    assert 1 <= calculator.neighbor_lists[0].builds < 15


def test_no_stale_answers(double):
    """One calculator, several Atoms, and every change that matters."""
    calculator = MDOps(double)
    first, second = alloy(), alloy(repeat=1, seed=3)
    first.calc = second.calc = calculator
    other = first.copy()
    other.calc = calculator
    changes = (
        lambda: None,
        lambda: first.positions.__setitem__((3, 1), first.positions[3, 1] + 1e-9),
        lambda: first.symbols.__setitem__(5, "Al"),
        lambda: first.set_cell(first.cell.array * 1.01),
        lambda: first.set_pbc([True, False, True]),
        lambda: first.__delitem__(2),
        lambda: first.rotate(30, "x"),
    )
    for change in changes:
        change()
        for atoms in (first, second, other):
            expected = fresh(atoms, double)
            assert atoms.get_potential_energy() == pytest.approx(expected["energy"][0], rel=1e-12)
            np.testing.assert_allclose(atoms.get_forces(), expected["forces"], atol=1e-11)


def imaginary_positions(atoms):
    atoms.arrays["positions"] = atoms.positions + 0.1j


def imaginary_cell(atoms):
    atoms.cell.array = atoms.cell.array + 0.1j


@pytest.mark.parametrize("change", [imaginary_positions, imaginary_cell])
def test_complex_numbers_are_refused(single, change):
    """NumPy would drop their imaginary part."""
    atoms = alloy()
    atoms.calc = MDOps(single)
    atoms.get_potential_energy()
    change(atoms)
    nve = EnsembleSettings("nve", 300)
    for ask in (atoms.get_forces, lambda: single.compute(atoms), lambda: Engine(atoms, single, nve)):
        with pytest.raises(InputError, match=r"(positions|cell): given are complex numbers .*expected real"):
            ask()
    assert not atoms.calc.results
    atoms = alloy()
    atoms.calc = MDOps(single)
    atoms.info["fparam"] = np.array([1j])
    with pytest.raises(InputError, match="fparam: given are complex"):
        atoms.get_potential_energy()


def test_a_failure_leaves_no_answer(single):
    atoms = alloy()
    atoms.calc = MDOps(single)
    atoms.get_potential_energy()
    atoms.positions[0] = np.nan
    for _ in range(2):
        with pytest.raises(InputError):
            atoms.get_potential_energy()
    assert atoms.calc.results == {}


def test_near_pairs_are_told_once_and_the_advice_can_be_followed(single):
    """However near atoms come in a long run, and however many do."""
    for options, expected in (({"r_min": 2.8}, 1), ({"r_min": 1.5}, 0), ({"spline": False}, 0)):
        atoms = alloy(rattle=0.01)
        atoms.calc = MDOps(MODEL, **options)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for k in range(10):
                atoms.rattle(0.03, seed=k)
                atoms.get_forces()
        assert len(seen) == expected
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        atoms.calc = MDOps(MODEL, r_min=2.8)
        atoms.get_forces()
    assert "neighbour nearer than 2.8 A" in str(seen[0].message)
    assert "Load the model with a smaller r_min, or with spline=False" in str(seen[0].message)


def test_spline_options_of_a_potential_are_refused(single):
    for options, says in (({"r_min": 1.0}, r"r_min=1\.0"), ({"spline": False}, "spline=False")):
        with pytest.raises(
            InputError, match=rf"{says} applies to model files only: .* mdops\.load\(\.\.\., {says}\)"
        ):
            MDOps([MODEL, single], **options)
    exact = load(MODEL, spline=False)
    assert MDOps(exact, spline=False).models == [exact]


def test_what_is_neither_true_nor_false_is_refused(single):
    """A text would count as True, "False", too."""
    nvt, nve = {"ensemble": "nvt", "temperature": 300}, EnsembleSettings("nve", 300)
    calls = {
        "spline": [lambda x, use=use: use(MODEL, spline=x) for use in (load, MDOps, DeepPot)],
        "allow_low_bit": [lambda x: load(MODEL, allow_low_bit=x), lambda x: MDOps(MODEL, allow_low_bit=x)],
        "modifier": [lambda x: load(MODEL, modifier=x)],
        "graphs": [lambda x: Engine(alloy(), single, nve, graphs=x)],
        "atom_virial": [
            lambda x: Engine(alloy(), single, nve, atom_virial=x),
            lambda x: single.compute(alloy(), atom_virial=x),
            lambda x: single.export(atom_virial=x),
        ],
        "flexible": [lambda x: EnsembleSettings(**nvt, flexible=x)],
        "restart": [lambda x: Output(1, Path("x.restart"), restart=x), lambda x: Trainer(None, restart=x)],
        "new_velocities": [lambda x: run(alloy(), nve, None, new_velocities=x)],
    }  # fmt: skip
    for name, uses in calls.items():
        for use in uses:
            for value in ("False", "x", None, 1, 0.0, []):
                with pytest.raises(
                    InputError, match=f"{name} is {re.escape(repr(value))}, expected True or False"
                ):
                    use(value)
    assert load(MODEL, spline=np.False_).r_min is None


def test_what_is_no_number_is_refused(single):
    nve = EnsembleSettings("nve", 300)
    calls = {
        "r_min": lambda x: load(MODEL, r_min=x),
        "temperature": lambda x: EnsembleSettings("nvt", x),
        "timestep": lambda x: EnsembleSettings("nve", timestep=x),
        "pressure": lambda x: EnsembleSettings("npt", 300, pressure=x),
        "fmax": lambda x: Relaxation(x),
        "r_min ": lambda x: load(MODEL, spline=False).use_spline(x),
        "tolerance": lambda x: load(MODEL, spline=False).use_spline(tolerance=x),
        "pressure ": lambda x: Relaxation(cell="all", pressure=x),
    }
    whole = {
        "seed": lambda x: EnsembleSettings("nve", seed=x),
        "checkpoint_every": lambda x: EnsembleSettings("nve", checkpoint_every=x),
        "steps": lambda x: list(Engine(alloy(), single, nve).run(x)),
        "every": lambda x: list(Engine(alloy(), single, nve).run(2, every=x)),
        "step": lambda x: Engine(alloy(), single, nve, step=x),
        "steps ": lambda x: Output(x, Path("x.restart")),
        "interval": lambda x: Output(1, Path("x.restart"), x),
    }
    for name, use in (calls | whole).items():
        for value in ("1", 1j, [300], *([2.5, 2.0] if name in whole else [])):
            with pytest.raises(
                InputError, match=rf"^{name.strip()} is {re.escape(repr(value))}, expected a (whole )?number"
            ):
                use(value)
    assert EnsembleSettings("nve", np.float32(300), seed=np.int64(2)).seed == 2
    assert [frame.step for frame in Engine(alloy(), single, nve).run(np.int64(2), every=1)] == [1, 2]
    with pytest.raises(InputError, match="head is 3, expected a name"):
        load(MODEL, head=3)
    for steps, every in ((-1, 0), (2, -1)):
        with pytest.raises(InputError, match=f"steps is {steps} and every is {every}, expected 0 or more"):
            list(Engine(alloy(), single, nve).run(steps, every))
    with pytest.raises(InputError, match="step is -1, expected 0 or more"):
        Engine(alloy(), single, nve, step=-1)


@pytest.mark.parametrize("path", [None, 3, b"model.dp", "", Path, [MODEL]])
def test_what_is_no_path_is_refused(path):
    for name, use in {
        "the model file": load,
        "the model file ": lambda x: load(MODEL).save(x),
        "checkpoint": lambda x: Output(1, x),
        "trajectory": lambda x: Output(1, "x.restart", trajectory=x),
        "log": lambda x: Output(1, "x.restart", log=x),
    }.items():
        if path is None and name in ("trajectory", "log"):
            continue
        with pytest.raises(
            InputError, match=rf"^{name.strip()} is {re.escape(repr(path))}, expected the path"
        ):
            use(path)


def test_files_of_a_run_may_be_named_by_text():
    assert Output(1, "x.restart", log="x.log") == Output(1, Path("x.restart"), log=Path("x.log"))


def test_a_run_without_its_parts_is_refused(single):
    atoms, nve = alloy(), EnsembleSettings("nve", 300)
    output = Output(1, Path("x.restart"))
    for given, says in (
        ((None, nve, output), "atoms is of the type NoneType, expected Atoms"),
        ((atoms, "nve", output), "physics is of the type str, expected EnsembleSettings"),
        ((atoms, nve, "x.traj"), "output is of the type str, expected Output"),
        ((atoms, nve, output), r"no calculator MDOps: set atoms\.calc"),
    ):
        with pytest.raises(InputError, match=says):
            run(*given)
    for structures in (None, 3, atoms, [None], (a for a in [atoms])):
        for use in (
            lambda x: BatchEngine(x, single, nve),
            lambda x: Minimizer(x, single),
            lambda x: relax(x, single, Relaxation(), output),
        ):
            with pytest.raises(InputError, match=r"a list of ase\.Atoms"):
                use(structures)
    with pytest.raises(InputError, match="relaxation is of the type str, expected Relaxation"):
        Minimizer([atoms], single, "all")
    with pytest.raises(InputError, match="restraints is 3, expected a list of Tether and Distance"):
        Engine(atoms, single, nve, restraints=3)
    for given, says in (
        (([atoms], single, 0.1, output), "relaxation is of the type float, expected Relaxation"),
        (([atoms], single, Relaxation(), None), "output is of the type NoneType, expected Output"),
        ((atoms, single, Relaxation(), output), "relax takes a list"),
    ):
        with pytest.raises(InputError, match=says):
            relax(*given)


def test_results_are_the_callers_own(single):
    atoms = alloy()
    atoms.calc = MDOps(single)
    forces, kept = atoms.get_forces(), atoms.get_forces().copy()
    forces[:] = 0
    np.testing.assert_array_equal(atoms.get_forces(), kept)
    atoms.positions += 0.01 * np.sin(np.arange(3 * len(atoms))).reshape(-1, 3)
    atoms.get_forces()
    np.testing.assert_array_equal(forces, 0)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_independent(single, clone):
    atoms = alloy()
    atoms.calc = MDOps(single)
    energy = atoms.get_potential_energy()
    twin = atoms.copy()
    twin.calc = clone(atoms.calc)
    twin.positions[0] += 0.3
    assert twin.get_potential_energy() == pytest.approx(fresh(twin, single)["energy"][0], abs=1e-5)
    assert twin.get_potential_energy() != energy
    assert atoms.calc.results["energy"] == energy and not atoms.calc.check_state(atoms)
    assert (twin.calc.models[0] is single) == (clone is copy.copy)


@pytest.mark.parametrize("folder", ["formats", "reference_kinds/dpa2_base", "reference_kinds/dpa3_base"])
def test_autocast_changes_no_answer(folder):
    model = load(DATA / folder / "model.dp", dtype="float32", overflow="extend")
    atoms = Atoms((model.type_map * 6)[:6], alloy().positions[:6], cell=[8, 8, 8], pbc=True)
    expected = model.compute(atoms)["forces"]
    atoms.calc = MDOps(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        np.testing.assert_array_equal(atoms.get_forces(), expected)


@pytest.mark.parametrize("folder", ["formats", "reference_kinds/dpa3_base", "reference_kinds/dpa4c_base"])
def test_inference_mode_changes_no_answer(folder):
    """What a calculator keeps of calls in that mode serves outside of it, and the reverse."""
    model = load(DATA / folder / "model.dp", dtype="float64", overflow="extend")
    atoms = Atoms((model.type_map * 6)[:6], alloy().positions[:6], cell=[8, 8, 8], pbc=True)
    expected = model.compute(atoms)["forces"]
    with torch.inference_mode():
        inside = load(DATA / folder / "model.dp", dtype="float64", overflow="extend")
        atoms.calc = MDOps(inside)
        for found in (model.compute(atoms)["forces"], inside.compute(atoms)["forces"], atoms.get_forces()):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    atoms.positions[0, 0] += 0.1
    moved = atoms.get_forces()
    np.testing.assert_allclose(moved, model.compute(atoms)["forces"], rtol=1e-12, atol=1e-14)
    with torch.inference_mode():
        atoms.positions[0, 0] -= 0.1
        np.testing.assert_allclose(atoms.get_forces(), expected, rtol=1e-12, atol=1e-14)
    assert abs(moved - expected).max() > 1e-6


def test_unknown_elements_and_virtual_atoms(single):
    calculator = MDOps(single)
    water = molecule("H2O")
    water.calc = calculator
    with pytest.raises(InputError, match=r"does not know H, O; its elements are Cu, Al"):
        water.get_potential_energy()
    for number in (-1, 119):
        none = Atoms(numbers=[number], calculator=calculator)
        for ask in (none.get_potential_energy, lambda none=none: calculator.models[0].compute([none])):
            with pytest.raises(InputError, match=f"atomic number {number}, expected 0 to 118"):
                ask()
    atoms = alloy()
    atoms.calc = calculator
    expected = atoms.get_potential_energy()
    ghost = atoms + Atoms("X", [[1.0, 1.0, 1.0]])
    ghost.calc = calculator
    assert ghost.get_potential_energy() == pytest.approx(expected, abs=1e-5)
    assert (ghost.get_forces()[-1] == 0).all()


def test_empty_atoms(single):
    atoms = Atoms(pbc=True, cell=[5, 5, 5])
    atoms.calc = MDOps(single)
    assert atoms.get_potential_energy() == 0
    assert atoms.get_forces().shape == (0, 3)


class TestCommittee:
    def test_mean_and_deviation(self, double):
        models = [double, perturbed(double, 1), perturbed(double, 2)]
        atoms = alloy()
        atoms.calc = MDOps(models)
        answers = [fresh(atoms, m) for m in models]
        forces = np.array([a["forces"] for a in answers])
        np.testing.assert_allclose(atoms.get_forces(), forces.mean(0), atol=1e-11)
        energies = [a["energy"][0] for a in answers]
        assert atoms.get_potential_energy() == pytest.approx(np.mean(energies), rel=1e-12)
        deviation = np.sqrt((np.linalg.norm(forces - forces.mean(0), axis=-1) ** 2).mean(0))
        np.testing.assert_allclose(atoms.calc.results["forces_std"], deviation, atol=1e-11)
        assert atoms.calc.results["energy_std"] == pytest.approx(np.std(energies), rel=1e-9)
        assert len(atoms.calc.neighbor_lists) == 1
        assert "forces_std" not in atoms.calc.export_properties()

    def test_models_may_order_their_elements_differently(self, tmp_path):
        two = [load(DATA / "reference" / name / "model.dp", dtype="float64") for name in ("base", "widths")]
        two[1].model.type_map = two[1].type_map[::-1]
        atoms = Atoms([two[0].type_map[k % 2] for k in range(8)], alloy(1).repeat((2, 1, 1)).positions)
        atoms.calc = MDOps(two)
        expected = np.mean([fresh(atoms, m)["energy"][0] for m in two])
        assert atoms.get_potential_energy() == pytest.approx(expected, rel=1e-10)

    def test_models_of_other_elements_are_refused(self, single):
        other = load(DATA / "se_a_oneside" / "model.dp")
        with pytest.raises(InputError, match=r"first has Cu, Al, number 2 has O, H"):
            MDOps([single, other])
        with pytest.raises(InputError, match="no model"):
            MDOps([])
        for wrong in (None, 5, [None]):
            with pytest.raises(InputError, match="expected a file, a Potential, or a list of those"):
                MDOps(wrong)
        with pytest.raises(InputError, match="skin is 'wide', expected a length"):
            MDOps(single, skin="wide")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parameters_are_those_of_the_models(dtype):
    """For records of a calculation: a Potential is used as it is."""
    model = load(DATA / "reference" / "base" / "model.dp", dtype=dtype)
    assert MDOps(model).parameters["dtype"] == dtype
    assert MDOps(model).parameters["device"] == "cpu"
    other = load(DATA / "reference" / "base" / "model.dp", dtype="float32")
    both = MDOps([model, other]).parameters["dtype"]
    assert both == ("float32" if dtype == "float32" else "float64, float32")


class TestParameters:
    @pytest.fixture
    def model(self):
        return load(DATA / "reference" / "fparam_aparam" / "model.dp", dtype="float64")

    def test_by_atoms_or_by_calculator(self, model):
        atoms = self.atoms(model)
        n, sizes = len(atoms), (model.model.fitting.fparam.size, model.model.fitting.aparam.size)
        fparam, aparam = np.linspace(0.1, 0.4, sizes[0]), np.linspace(0, 1, n * sizes[1]).reshape(n, -1)
        expected = model.compute(atoms, fparam, aparam)["energy"][0]
        atoms.calc = MDOps(model, fparam=fparam, aparam=aparam)
        assert atoms.get_potential_energy() == pytest.approx(expected, rel=1e-12)
        atoms.calc = MDOps(model)
        atoms.info["fparam"], atoms.arrays["aparam"] = fparam.tolist(), aparam
        assert atoms.get_potential_energy() == pytest.approx(expected, rel=1e-12)

    def test_changes_are_seen(self, model):
        atoms = self.atoms(model)
        aparam = np.zeros((len(atoms), model.model.fitting.aparam.size))
        atoms.arrays["aparam"] = aparam
        atoms.calc = MDOps(model, fparam=np.zeros(model.model.fitting.fparam.size))
        seen = [atoms.get_potential_energy()]
        assert not atoms.calc.check_state(atoms)
        atoms.info["fparam"] = np.full(model.model.fitting.fparam.size, 0.3)
        assert atoms.calc.check_state(atoms) == ["fparam"]
        seen.append(atoms.get_potential_energy())
        atoms.info["fparam"][0] += 0.1
        seen.append(atoms.get_potential_energy())
        aparam[0] = 1.0
        seen.append(atoms.get_potential_energy())
        del atoms.info["fparam"]
        atoms.calc.set(fparam=np.full(model.model.fitting.fparam.size, 0.7))
        seen.append(atoms.get_potential_energy())
        assert len({round(e, 9) for e in seen}) == len(seen)

    def test_missing_or_needless(self, model, single):
        atoms = self.atoms(model)
        atoms.calc = MDOps(model)
        with pytest.raises(InputError, match="fparam"):
            atoms.get_potential_energy()
        atoms.info["fparam"] = "warm"
        with pytest.raises(InputError, match="expected numbers"):
            atoms.get_potential_energy()
        with pytest.raises(InputError, match="takes none"):
            MDOps(single, fparam=[1.0])
        with pytest.raises(InputError, match="skin"):
            MDOps(single).set(skin=2.0)
        needless = alloy(repeat=1)
        needless.calc, needless.info["fparam"] = MDOps(single), [1.0]
        with pytest.raises(InputError, match="fparam is given, but the model takes none"):
            needless.get_potential_energy()

    @pytest.mark.parametrize("name", ["fparam", "aparam"])
    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e39])
    def test_what_is_not_finite_in_float32_is_refused(self, model, name, wrong):
        atoms = self.atoms(model)
        sizes = model.parameter_sizes
        values = {"fparam": np.zeros(sizes["fparam"]), "aparam": np.zeros((len(atoms), sizes["aparam"]))}
        values[name].flat[-1] = wrong
        atoms.calc = MDOps(model)
        atoms.info["fparam"], atoms.arrays["aparam"] = values["fparam"], values["aparam"]
        system = from_atoms([atoms], model.type_map)
        given = {key: torch.from_numpy(value) for key, value in values.items()}
        asked = [
            atoms.get_potential_energy,
            lambda: MDOps(model, **values),
            lambda: Engine(atoms, model, EnsembleSettings("nve", 100, 1.0)),
            lambda: model.compute(atoms, **values),
            lambda: model(system.positions, system.types, system.cell, system.pbc, **given),
            lambda: DeepPot(DATA / "reference" / "fparam_aparam" / "model.dp").eval(
                atoms.positions[None], atoms.cell.array[None], system.types.numpy(), **values
            ),
        ]
        for ask in asked:
            with pytest.raises(
                InputError, match=rf"{name}\[.*\] is {re.escape(str(wrong))}, expected finite"
            ):
                ask()

    def test_of_several_models_those_get_it_that_take_it(self, model):
        plain = load(DATA / "reference" / "base" / "model.dp", dtype="float64")
        assert sorted(plain.type_map) == sorted(model.type_map)
        atoms = self.atoms(model)
        values = [np.full(getattr(model.model.fitting, name).size, 0.3) for name in ("fparam", "aparam")]
        expected = (model.compute(atoms, *values)["energy"][0] + plain.compute(atoms)["energy"][0]) / 2
        atoms.calc = MDOps([plain, model], fparam=values[0], aparam=values[1])
        assert atoms.get_potential_energy() == pytest.approx(expected, rel=1e-12)

    @staticmethod
    def atoms(model):
        atoms = alloy(repeat=1)
        atoms.symbols[:] = [model.type_map[k % 2] for k in range(len(atoms))]
        return atoms


class TestTools:
    """What of ASE, and phonopy, is used with calculators."""

    def test_cell_filter(self, double):
        atoms = alloy(repeat=1)
        atoms.set_cell(atoms.cell.array @ np.diag([1.02, 0.99, 1.01]), scale_atoms=True)
        atoms.calc = MDOps(double)
        assert LBFGS(FrechetCellFilter(atoms), logfile=None).run(fmax=0.005, steps=200)
        assert np.abs(fresh(atoms, double)["virial"]).max() < 0.03
        assert np.abs(atoms.get_stress()).max() < 1e-3

    def test_energy_is_conserved(self, single):
        atoms = alloy(repeat=3, rattle=0.0)
        atoms.calc = MDOps(single)
        rng = np.random.default_rng(1)
        atoms.set_momenta(np.sqrt(atoms.get_masses() * units.kB * 600)[:, None] * rng.normal(size=(108, 3)))
        dynamics = VelocityVerlet(atoms, 1.0 * units.fs)
        energies = []
        dynamics.attach(lambda: energies.append(atoms.get_total_energy() / len(atoms)), interval=5)
        dynamics.run(400)
        rise = np.polyfit(np.linspace(0, 0.4, len(energies)), energies, 1)[0]
        assert abs(rise) < 5e-5  # eV/atom/ps
        assert np.ptp(energies) < 1e-4
        assert atoms.calc.neighbor_lists[0].builds < 30

    @pytest.mark.parametrize("kind", ["chain", "berendsen", "nvt"])
    def test_pressure_and_temperature_baths(self, single, kind):
        atoms = alloy(repeat=2)
        atoms.calc = MDOps(single)
        atoms.set_momenta(np.random.default_rng(0).normal(size=(len(atoms), 3)))
        step, pressure = 2 * units.fs, 1 * units.GPa
        bath = {"temperature_K": 300}
        dynamics = {
            "chain": lambda: IsotropicMTKNPT(
                atoms, step, pressure_au=pressure, tdamp=100 * units.fs, pdamp=500 * units.fs, **bath
            ),
            "berendsen": lambda: NPTBerendsen(
                atoms, step, pressure_au=pressure, compressibility_au=0.01 / units.GPa, **bath
            ),
            "nvt": lambda: NoseHooverChainNVT(atoms, step, tdamp=100 * units.fs, **bath),
        }[kind]()
        volume = atoms.get_volume()
        dynamics.run(40)
        np.testing.assert_allclose(atoms.get_forces(), fresh(atoms, single)["forces"], atol=2e-5)
        assert (atoms.get_volume() != volume) == (kind != "nvt")

    def test_phonons(self, double, tmp_path):
        """Acoustic modes at Gamma are zero, and phonopy finds what ASE finds."""
        phonopy = pytest.importorskip("phonopy")
        atoms = bulk("Cu", a=4.0)
        calculator = MDOps(double)
        phonons = Phonons(atoms, calculator, supercell=(3, 3, 3), delta=0.01, name=str(tmp_path / "p"))
        phonons.run()
        phonons.read(acoustic=True)
        point = [1 / 3, 1 / 3, 0.0]  # commensurate with the supercell: no interpolation
        found = phonons.band_structure([[0, 0, 0], point]) * units._e / units._hplanck * 1e-12
        assert np.abs(found[0]).max() < 0.02

        cell = phonopy.structure.atoms.PhonopyAtoms(["Cu"], cell=atoms.cell, positions=atoms.positions)
        theirs = phonopy.Phonopy(cell, np.diag([3, 3, 3]))
        theirs.generate_displacements(distance=0.01)
        forces = []
        for s in theirs.supercells_with_displacements:
            displaced = Atoms(s.symbols, s.positions, cell=s.cell, pbc=True)
            displaced.calc = calculator
            forces.append(displaced.get_forces())
        theirs.forces = forces
        theirs.produce_force_constants()
        theirs.run_qpoints([point])
        np.testing.assert_allclose(theirs.get_qpoints_dict()["frequencies"][0], found[1], atol=0.02)

    def test_trajectories_keep_the_results(self, single, tmp_path):
        atoms = alloy()
        atoms.calc = MDOps(single)
        forces = atoms.get_forces()
        for name in ("a.traj", "a.xyz"):
            write(tmp_path / name, atoms)
            np.testing.assert_allclose(read(tmp_path / name).get_forces(), forces, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("relax", "\nconverged"),
        ("phonons", "highest"),
        ("socket_client", "eV in"),
        ("md", "0.20 ps"),
        ("batch_md", " 200 steps"),
        ("thermal_conductivity 1", "integral up to 0.05 ps"),
    ],
)
def test_examples(name, says, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name, *arguments = name.split()
    monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert says in capsys.readouterr().out
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60
