"""Bad input: an error of the right type that says what is wrong and where."""

import copy

import numpy as np
import pytest
import torch
from ase import Atoms
from reference_cases import DATA, build, model_path, references

from mdops import load
from mdops.errors import InputError, LibraryError, ModelFileError, UnsupportedModelError
from mdops.evaluators.one_op import Fused
from mdops.io import read_model
from mdops.system import from_tensors


@pytest.fixture(scope="module", params=[False, True], ids=["exact", "spline"])
def potential(request):
    return load(model_path("base"), dtype="float64", spline=request.param)


def pair(distance=2.0):
    return Atoms("CuAl", positions=[[0, 0, 0], [distance, 0, 0]])


X = torch.zeros(2, 3, dtype=torch.float64)
X[1, 0] = 2.0
TYPES = torch.tensor([0, 1])
CELL = torch.eye(3, dtype=torch.float64) * 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[:, :2], TYPES), r"`positions` has shape \(2, 2\), expected \(any, 3\)"),
        ((X.long(), TYPES), "`positions` has dtype torch.int64"),
        ((X.numpy(), TYPES), "`positions` is a ndarray"),
        ((X, TYPES[:1]), r"`types` has shape \(1,\), expected \(2\)"),
        ((X, TYPES.double()), "`types` has dtype torch.float64, expected an integer dtype"),
        ((X, torch.tensor([0, 2])), "atom 1: `types` is 2, expected -1 .. 1"),
        ((X, torch.tensor([-2, 0])), "atom 0: `types` is -2"),
        ((X, TYPES, CELL[:2]), "`cell` has shape"),
        ((X, TYPES, CELL.int()), "`cell` has dtype torch.int32"),
        ((X, TYPES, CELL * float("nan")), "`cell` is not finite"),
        ((X, TYPES, CELL, torch.tensor([1, 1, 1])), "`pbc` has dtype torch.int64, expected torch.bool"),
        ((X, TYPES, CELL, torch.tensor([True, True])), "`pbc` has shape"),
        ((X, TYPES, CELL[None], None, torch.tensor([0, 1])), "atom 1: `batch` is 1, expected 0 .. 0"),
        ((X, TYPES, CELL[None], None, torch.tensor([0])), "`batch` has shape"),
        ((X / 0, TYPES), "atom 0 has position .*not finite"),
        ((X * 0, TYPES), "atoms 0 and 1 are at the same place"),
        ((X, TYPES, CELL * 0, torch.ones(3, dtype=torch.bool)), "cell"),
    ],
)
def test_tensors(potential, arguments, message):
    with pytest.raises(InputError, match=message):
        potential(*arguments)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_positions_that_are_not_finite(potential, value):
    atoms = pair()
    atoms.positions[1, 2] = value
    with pytest.raises(InputError, match="atom 1 has position"):
        potential.compute(atoms)


def test_an_unknown_element(potential):
    with pytest.raises(InputError, match="does not know Ar, Xe; its elements are Cu, Al"):
        potential.compute(Atoms("CuXeAr", positions=np.eye(3)))


@pytest.mark.parametrize("apart", [0.0, 1e-9])
def test_coincident_atoms(potential, apart):
    with pytest.raises(InputError, match="atoms 0 and 1 are at the same place"):
        potential.compute(pair(apart))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_atom_that_is_an_image_of_another(dtype):
    """Positions that are rounded are not quite a cell apart."""
    atoms = Atoms("Cu2", [[0.1, 0.2, 0.3], [0.1, 0.2 + 10.1, 0.3]], cell=[7.3, 10.1, 9], pbc=True)
    assert atoms.positions[1, 1] - 10.1 != atoms.positions[0, 1]
    for spline in (True, False):
        potential = load(model_path("base"), dtype=dtype, spline=spline)
        with pytest.raises(InputError, match="atoms 0 and 1 are at the same place"):
            potential.compute(atoms)


def test_a_singular_periodic_cell(potential):
    atoms = pair()
    atoms.cell, atoms.pbc = [[1, 0, 0], [2, 0, 0], [0, 0, 5]], True
    with pytest.raises(InputError, match="cell"):
        potential.compute(atoms)


def test_no_systems(potential):
    with pytest.raises(InputError, match="no systems"):
        potential.compute([])


@pytest.mark.parametrize("what", [np.zeros((2, 3)), [pair(), None], "water.xyz"])
def test_what_is_not_atoms(potential, what):
    with pytest.raises(InputError, match=r"expected ase\.Atoms"):
        potential.compute(what)


def test_a_short_neighbour_list(potential):
    from mdops.ops import neighbor_list

    short = neighbor_list(X, None, None, TYPES.int(), 2.5, ntypes=2)
    with pytest.raises(InputError, match=r"has the cutoff 2.5 A, but the model needs 3.8 A"):
        potential(X, TYPES, neighbors=short)


@pytest.mark.parametrize("spline", [False, True])
def test_too_many_neighbours(spline):
    potential = load(model_path("overflow"), spline=spline)
    (reference,) = references(DATA / "overflow")
    with pytest.raises(
        InputError, match=r"atom \d+ has \d+ neighbours of type Cu .* sel is 9 .*truncate.*extend"
    ):
        potential.evaluate(reference.system)


@pytest.mark.parametrize(
    ("case", "fparam", "aparam", "message"),
    [
        ("fparam", None, None, "needs fparam, 2 a row, and none was given"),
        ("fparam", [[1, 2], [3]], None, r"fparam is \[\[1, 2\], \[3\]\], expected numbers"),
        ("aparam", None, [[1, 2], [3]], r"aparam is \[\[1, 2\], \[3\]\], expected numbers"),
        ("aparam", None, "hot", "aparam is 'hot', expected numbers"),
        ("fparam", [1.0], None, r"fparam has shape \(1,\), expected \(1, 2\)"),
        ("aparam", None, None, "needs aparam, 1 a row"),
        ("aparam", None, np.zeros((3, 1)), r"aparam has shape \(3, 1\), expected \(2, 1\)"),
    ],
)
def test_parameters_that_do_not_fit(case, fparam, aparam, message):
    with pytest.raises(InputError, match=message):
        load(model_path(case), spline=False).compute(pair(), fparam, aparam)


@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("name", ["fparam", "aparam"])
def test_parameters_that_the_model_does_not_take_are_refused(name, spline):
    potential, parameters = (
        load(model_path("base"), spline=spline),
        {name: torch.ones(1, dtype=torch.float64)},
    )
    assert isinstance(potential.evaluator(), Fused) == spline
    message = f"{name} is given, but the model takes none"
    with pytest.raises(InputError, match=message):
        potential(X, TYPES, **parameters)
    with pytest.raises(InputError, match=message):
        potential.evaluate(from_tensors(X, TYPES, None, None, None, 2), **parameters)
    with pytest.raises(InputError, match=message):
        potential.compute(pair(), **{name: [1.0]})
    other = {"fparam": "aparam", "aparam": "fparam"}[name]
    taken = load(model_path(other), spline=spline)
    with pytest.raises(InputError, match=message):
        taken.compute(pair(), **{name: [1.0], other: np.ones(taken.parameter_sizes[other])})


def test_default_fparam_is_used_when_none_is_given():
    potential = load(model_path("default_fparam"), dtype="float64", spline=False)
    parameters = potential.compute([pair(), pair(2.5)], fparam=[[0.4, -0.9], [0.4, -0.9]])
    one_for_all = potential.compute([pair(), pair(2.5)], fparam=[0.4, -0.9])
    default = potential.compute([pair(), pair(2.5)])
    assert (parameters["energy"] == default["energy"]).all()
    assert (parameters["energy"] == one_for_all["energy"]).all()


def test_default_fparam_without_parameters_is_not_read():
    """DeePMD-kit writes and evaluates such files."""
    tree = read_model(model_path("base")).model
    expected = build(tree).compute(pair())["energy"]
    tree["fitting"]["default_fparam"] = [0.4, -0.9]
    assert build(tree).compute(pair())["energy"] == expected


def test_close_pairs_warn_in_spline_mode():
    with pytest.warns(UserWarning, match=r"atoms have a neighbour nearer than 1.5 A"):
        load(model_path("base"), r_min=1.5).compute(pair(1.2))


def test_nets_with_kinks_are_evaluated_exactly():
    with pytest.warns(UserWarning, match="kinks"):
        potential = load(model_path("activation_relu"))
    assert potential.grid is None


@pytest.mark.parametrize(
    "options",
    [{"dtype": torch.float16}, {"dtype": "double"}, {"overflow": "ignore"}]
    + [{"r_min": value} for value in (0.0, 1e-9, np.inf, np.nan)],
)
def test_load_checks_its_arguments(options):
    with pytest.raises(InputError, match=next(iter(options))):
        load(model_path("base"), **options)


def test_what_has_no_numbers_is_refused(potential):
    for dtype in (torch.float16, torch.bfloat16):
        with pytest.raises(InputError, match=f"the model is in {dtype}"):
            copy.deepcopy(potential).to(dtype).compute(pair())
    with pytest.raises(InputError, match="on the device meta"):
        copy.deepcopy(potential).to("meta").compute(pair())
    with pytest.raises(InputError, match="on the device meta"):
        potential(X.to("meta"), TYPES.to("meta"))


def test_differentiable_forces_in_inference_mode(potential):
    wanted = potential(X, TYPES, forces=True)["forces"]
    with torch.inference_mode():
        assert (potential(X.clone(), TYPES, forces=True)["forces"] == wanted).all()


def test_a_missing_file():
    with pytest.raises(ModelFileError, match="no such file"):
        load("nowhere.dp")


def changed(case="base", **changes):
    tree = read_model(model_path(case)).model
    for place, value in changes.items():
        *path, last = place.split("__")
        node = tree
        for key in path:
            node = node[key]
        node[last] = value
    return tree


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"descriptor__type": "se_a_ebd"}, "descriptor se_a_ebd is not supported; supported are .*se_e2_a"),
        ({"fitting__type": "dpa5_ener"}, "fitting dpa5_ener"),
        ({"descriptor__type": "se_a_tpe"}, r"supported are .*\(se_a_tpe is of DeePMD-kit's TensorFlow code"),
        (
            {"type": "spin"},
            r"a spin model is not supported; supported are standard.*\(spin has magnetic moments",
        ),
        ({"descriptor__spin": {}}, "spin"),
        ({"descriptor__env_mat": {"use_exp_switch": True}}, "use_exp_switch"),
        ({"fitting__nets__networks": [None, None]}, "without the nets of some types"),
        ({"descriptor__activation_function": "tanh"}, None),
    ],
)
def test_unsupported_models_are_refused_by_name(changes, message):
    if message is None:
        build(changed(**changes))
        return
    with pytest.raises(UnsupportedModelError, match=message) as report:
        build(changed(**changes))
    assert "Train a model of a supported kind on the same data (`mdops train`), or" in str(report.value)


@pytest.mark.parametrize(
    ("name", "slot", "column"), [("davg", 3, 0), ("davg", 0, 2), ("dstd", 5, 0), ("dstd", 0, 3)]
)
def test_statistics_that_differ_between_slots_are_refused(name, slot, column):
    tree = changed()
    tree["descriptor"]["@variables"][name][1, slot, column] += 0.01
    with pytest.raises(UnsupportedModelError, match="davg or dstd"):
        build(tree)


@pytest.mark.parametrize("device", ["meta", "nowhere", "cuda:x", 3.5])
def test_a_device_without_ops_is_refused(device):
    with pytest.raises(InputError, match="device is"):
        load(model_path("base"), device=device)


@pytest.mark.parametrize("device", ["cuda:99", torch.device("cuda", 99)])
def test_a_gpu_that_is_not_there_is_refused(device):
    with pytest.raises(LibraryError, match="device is cuda:99, but "):
        load(model_path("base"), device=device)
