"""DeePMD-kit's classes for models of any output, and its calculator's name, against DeePMD-kit's own answers."""

import copy
import json
import pickle
from pathlib import Path

import ase
import numpy as np
import pytest
import torch
from ase.calculators.calculator import PropertyNotImplementedError

import mdops
import mdops.deepmd as deepmd
from mdops.deepmd import DP, DeepDOS, DeepEval, DeepGlobalPolar, DeepPolar, DeepPot, DeepProperty
from mdops.errors import InputError, UnsupportedModelError

DATA = Path(__file__).parents[1] / "data"
POTENTIAL = DATA / "formats" / "model.ckpt.pt"
CASES = ("dipole", "dipole_dpa3", "polar", "polar_matrix", "dos", "property", "property_sum", "population")


@pytest.fixture(scope="module")
def reference():
    with np.load(DATA / "deep_eval.npz") as file:
        return dict(file)


def below(reference, place):
    return {
        key.removeprefix(f"{place}/"): value
        for key, value in reference.items()
        if key.startswith(f"{place}/")
    }


def model_of(case):
    path = POTENTIAL if case == "potential" else DATA / "outputs" / f"{case}.pt"
    return DeepEval(path, spline=False, head=None, nlist_backend="auto", neighbor_list=None, no_jit=True)


def frames_of(case):
    with np.load(DATA / "outputs" / f"{case}.npz") as file:
        own = {key: file[key] for key in file if not key.startswith("answer_")}
    return own, {key: own[key] for key in ("fparam", "aparam") if key in own}


def close(found, expected, what=""):
    assert found.shape == expected.shape and found.dtype == np.float64, what
    np.testing.assert_allclose(found, expected, atol=1e-10 * np.abs(expected).max(), err_msg=what)


@pytest.mark.parametrize("case", [*CASES, "potential"])
def test_a_model_tells_what_deepmd_kits_does(reference, case):
    model = model_of(case)
    expected = json.loads(str(reference[f"{case}/facts"]))
    assert expected.pop("class") == type(model).__name__ == model.model_type.__name__
    for name, value in expected.items():
        found = getattr(model, name)
        assert (found() if callable(found) else found) == value, name
    assert model.get_model_def_script()["type_map"] == model.get_type_map()


@pytest.mark.parametrize("way", ["frames", "cluster", "mixed"])
@pytest.mark.parametrize("case", CASES)
def test_answers_are_deepmd_kits(reference, case, way):
    model, (own, extra) = model_of(case), frames_of(case)
    (f, n, _), cells = own["positions"].shape, own["cell"]
    mixed = np.stack([own["types"], np.roll(own["types"], 1)])
    mixed[-1, -1] = -1
    given, options = {
        "frames": ((own["positions"].reshape(f, -1), cells.reshape(f, 9), own["types"]), {}),
        "cluster": ((own["positions"], None, own["types"]), {}),
        "mixed": ((own["positions"], cells, mixed), {"mixed_type": True}),
    }[way]
    found = {
        "plain": model.eval(*given, False, **extra, **options),
        "atomic": model.eval(*given, True, **extra, **options),
    }
    expected = below(reference, f"{case}/{way}")
    if case == "dipole":
        full = found["full"] = model.eval_full(*given, atomic=True, **extra, **options)
        for a, b in zip(full, model.eval_full(*given, **extra, **options), strict=False):
            np.testing.assert_array_equal(a, b)
        for k in (1, 4):
            # DeePMD-kit has the numbers in the order (F, n, W, ...), but the shape (F, W, n, ...) that it documents.
            expected[f"full/{k}"] = expected[f"full/{k}"].reshape(f, n, 3, -1).swapaxes(1, 2)
    if way == "frames":
        for name in ("descriptor", "fitting_last_layer"):
            found[name] = getattr(model, f"eval_{name}")(*given, **extra)
    arrays = {
        f"{name}/{k}": array
        for name, values in found.items()
        for k, array in enumerate(values if isinstance(values, tuple) else (values,))
    }
    assert arrays.keys() == {key for key in expected if case == "dipole" or not key.startswith("full")}
    for name, array in arrays.items():
        close(array, expected[name], f"{case} {way} {name}")


@pytest.mark.parametrize("case", CASES)
def test_embeddings_of_types_are_deepmd_kits(reference, case):
    model, expected = model_of(case), reference.get(f"{case}/typeebd")
    if expected is not None:
        close(model.eval_typeebd(), expected)
        return
    with pytest.raises(UnsupportedModelError, match="has no embedding of types"):
        model.eval_typeebd()


@pytest.mark.parametrize(
    "case", ["reference/fparam_aparam", "reference_kinds/dpa4_base", "reference_kinds/dpa4_heads"]
)
def test_inputs_of_last_layers_of_energies_are_deepmd_kits(reference, case):
    model = DeepPot(DATA / case / "model.dp", spline=False, auto_batch_size=8)
    with np.load(DATA / case / "systems.npz") as file:
        own = below(dict(file), next(iter(file)).split("/")[0])
    extra = {key: own[key] for key in ("fparam", "aparam") if key in own}
    found = model.eval_fitting_last_layer(own["positions"], own["cell"], own["types"], **extra)
    close(found, reference[f"{case}/fitting_last_layer"])
    half = model.eval_fitting_last_layer(own["positions"], own["cell"], own["types"], **extra, dtype="fp32")
    assert half.dtype == np.float32


def test_models_without_a_net_have_no_last_layer():
    model = DeepPot(DATA / "reference_kinds" / "linear_nets_sum" / "model.dp")
    with pytest.raises(UnsupportedModelError, match="has no fitting net of its own"):
        model.eval_fitting_last_layer(np.arange(6.0), None, [0, 1])


def test_forces_are_minus_the_derivatives_of_each_component():
    model, (own, _) = model_of("dipole"), frames_of("dipole")
    x, cell, step = own["positions"][0], own["cell"][:1], 1e-5
    force = model.eval_full(x, cell, own["types"])[1]
    for atom, axis in ((0, 1), (4, 2)):
        moved = np.stack([x, x])
        moved[:, atom, axis] += step, -step
        ends = model.eval(moved, np.concatenate([cell, cell]), own["types"], atomic=False)
        np.testing.assert_allclose(force[0, :, atom, axis], -(ends[0] - ends[1]) / (2 * step), atol=1e-6)


@pytest.mark.parametrize("batch", [True, False, 7, np.int64(7)])
def test_batches_change_nothing(batch):
    own, extra = frames_of("dos")
    given = own["positions"], own["cell"], own["types"], True
    found = DeepDOS(DATA / "outputs/dos.pt", spline=False, auto_batch_size=batch).eval(*given, **extra)
    for a, b in zip(found, model_of("dos").eval(*given, **extra), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_no_frames_have_no_answers():
    found = model_of("property").eval(np.zeros((0, 2, 3)), None, [0, 1], atomic=True)
    assert [a.shape for a in found] == [(0, 2), (0, 2, 2)]
    assert model_of("dipole").eval_full(np.zeros((0, 2, 3)), None, [0, 1])[1].shape == (0, 3, 2, 3)


def test_global_polarizabilities_are_those_of_systems():
    own, extra = frames_of("polar")
    given, path = (own["positions"], own["cell"], own["types"]), DATA / "outputs/polar.pt"
    found = DeepGlobalPolar(path).eval(*given, **extra)
    np.testing.assert_array_equal(found, DeepPolar(path).eval(*given, atomic=False, **extra))
    assert found.shape == (2, 9)
    assert DeepGlobalPolar(path).eval(*given, True, *extra.values()).shape == (2, 7, 9)


@pytest.mark.parametrize("name", ["DeepDipole", "DeepPolar", "DeepGlobalPolar", "DeepDOS", "DeepProperty"])
def test_a_class_refuses_models_of_others(name):
    with pytest.raises(UnsupportedModelError, match=f"{name} is not for models of energy: use DeepPot"):
        getattr(deepmd, name)(POTENTIAL)
    with pytest.raises(UnsupportedModelError, match="DeepPopulation, or DeepEval"):
        getattr(deepmd, name)(DATA / "outputs" / "population.pt")


def test_other_arguments_that_do_not_fit_are_named():
    own, extra = frames_of("polar")
    model = model_of("polar")
    with pytest.raises(UnsupportedModelError, match="eval_full gives derivatives"):
        model.eval_full(own["positions"], own["cell"], own["types"], **extra)
    with pytest.raises(InputError, match="needs fparam"):
        model.eval(own["positions"], own["cell"], own["types"])
    with pytest.raises(InputError, match="aparam is given, but the model takes none"):
        model.eval(own["positions"], own["cell"], own["types"], aparam=[1.0], **extra)
    with pytest.raises(InputError, match="dtype is 'half'"):
        model.eval_fitting_last_layer(own["positions"], own["cell"], own["types"], **extra, dtype="half")
    with pytest.raises(InputError, match="auto_batch_size is 0"):
        DeepEval(POTENTIAL, auto_batch_size=0)


@pytest.mark.parametrize("last", [2, -2, 2**32, -(2**32), 1e12, np.inf, np.uint64(2**63)])
def test_types_that_the_model_lacks_are_refused(last):
    """Those that an int32 cannot hold, too: 2^32 would become type 0."""
    with pytest.raises(InputError, match=r"atom_types\[1\] is .*, expected -1 .. 1"):
        model_of("potential").eval(np.arange(6.0), None, np.array([0, last]))
    with pytest.raises(InputError, match=r"atom_types\[1, 0\] is"):
        types = np.array([[0, 0], [last, 0]])
        model_of("property").eval(np.arange(12.0), None, types, mixed_type=True)


def test_arguments_of_other_kinds_are_refused():
    model = model_of("potential")
    x = np.arange(6.0)
    with pytest.raises(InputError, match="atom_types has rows of several lengths"):
        model.eval(x, None, [[0, 1], [1]])
    with pytest.raises(InputError, match="coords has something that is not a number: Can't call numpy"):
        model.eval(torch.tensor(x, requires_grad=True), None, [0, 1])
    with pytest.raises(InputError, match="mixed_type is 'no', expected True or False"):
        model.eval(x, None, [0, 1], mixed_type="no")
    # As if `atomic` had been forgotten before fparam.
    for case in ("potential", "polar", "dos"):
        with pytest.raises(InputError, match=r"atomic is \[0.5\], expected True or False"):
            model_of(case).eval(x, None, [0, 1], [0.5])
    with pytest.raises(InputError, match="atomic is 1, expected True or False"):
        model_of("dipole").eval_full(x, None, [0, 1], 1)


def test_no_numbers_are_no_parameters():
    model, x = model_of("potential"), np.arange(12.0)
    given = {"fparam": np.zeros((2, model.get_dim_fparam())), "aparam": np.zeros((2, 2, 0))}
    for found, expected in zip(
        model.eval(x, None, [0, 1], **given), model.eval(x, None, [0, 1]), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_models_are_shared_copied_and_pickled():
    assert deepmd.DeepPotential is DeepEval
    potential = mdops.load(DATA / "outputs" / "property.pt", dtype="float64")
    model = DeepEval(potential)
    assert isinstance(model, DeepProperty) and model.potential is potential
    own, _ = frames_of("property")
    given = own["positions"], own["cell"], own["types"]
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again) is DeepProperty
        np.testing.assert_array_equal(again.eval(*given)[0], model.eval(*given)[0])


def test_definitions_and_elements_are_found_without_the_files():
    potential = mdops.load(DATA / "outputs" / "property_sum.pt")
    potential.source = {}
    model = DeepEval(potential)
    assert model.get_model_def_script()["fitting_net"]["property_name"] == "volume"
    potential.model.out_bias[1] = 0.0
    assert model.get_observed_types() == {"type_num": 1, "observed_type": ["O"]}
    potential.source = {"model_def_script": {"info": {"observed_type": ["H"]}}}
    assert model.get_observed_types() == {"type_num": 1, "observed_type": ["H"]}


def slab(reference, **options):
    own = below(reference, "calculator")
    atoms = ase.Atoms(own["numbers"], own["positions"], cell=own["cell"], pbc=own["pbc"])
    atoms.calc = DP(POTENTIAL, type_dict={"Cu": 0, "Al": 1, "Mg": 1}, spline=False, **options)
    return atoms, own


def test_the_calculators_results_are_deepmd_kits(reference):
    atoms, own = slab(reference)
    for name in ("energy", "forces", "stress", "virial"):
        found = np.asarray(atoms.calc.get_property(name, atoms))
        close(found, own[name].reshape(found.shape), name)
    assert list(atoms.pbc) == [True, True, False]
    calls = atoms.calc._calculations
    atoms.get_potential_energy()
    assert atoms.calc._calculations == calls  # the same atoms
    atoms.pbc = False
    alone = DeepPot(POTENTIAL, spline=False).eval(atoms.positions, None, [0, 1, 1, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(atoms.get_potential_energy(), alone[0][0, 0], rtol=1e-12)
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()


def test_the_calculator_takes_deepmd_kits_arguments(reference):
    calc = DP(str(POTENTIAL), "label", None, None, None, "native")
    assert calc.name == "DP" and calc.label == "label" and calc.type_dict == {"Cu": 0, "Al": 1}
    assert isinstance(calc.dp, DeepPot) and calc.dp.potential is calc.models[0]
    with pytest.raises(InputError, match="does not know Mg; its elements are Cu, Al"):
        atoms, _ = slab(reference)
        atoms.calc = calc
        atoms.get_potential_energy()
    with pytest.raises(InputError, match=r"type_dict is \['Cu'\], expected the type of each element"):
        DP(POTENTIAL, type_dict=["Cu"])
    for kind in (2, -1, "Cu", 0.5, np.array([0, 1])):
        with pytest.raises(InputError, match=r"type_dict\['Cu'\] is .*expected 0 .. 1"):
            DP(POTENTIAL, type_dict={"Cu": kind})
    with pytest.raises(InputError, match="type_dict has 29, expected the symbols of elements"):
        DP(POTENTIAL, type_dict={29: 0, 13: 1})
    with pytest.raises(UnsupportedModelError, match="needs energies"):
        DP(DATA / "outputs" / "dipole.pt")


def test_the_calculator_takes_parameters_from_info():
    case = DATA / "reference" / "fparam_aparam"
    with np.load(case / "systems.npz") as file:
        own = below(dict(file), next(iter(file)).split("/")[0])
    model = DeepPot(case / "model.dp")
    symbols = np.array(model.get_type_map())[own["types"]]
    atoms = ase.Atoms(symbols, own["positions"][0], cell=own["cell"][0], pbc=True)
    atoms.calc = DP(case / "model.dp")
    atoms.info |= {"fparam": own["fparam"][0], "aparam": own["aparam"][0].ravel()}
    assert atoms.get_potential_energy() == pytest.approx(own["energy"].ravel()[0], rel=1e-9)
    atoms.info["aparam"] = own["aparam"][0][:3]
    with pytest.raises(InputError, match=r"aparam has the shape \(3, 2\)"):
        atoms.get_potential_energy()
