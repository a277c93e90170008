"""DPA-3, against DeePMD-kit and in use."""

from types import SimpleNamespace

import kind_cases as kinds
import numpy as np
import pytest
import torch

import mdops
from mdops.errors import ConfigError, InputError, ModelFileError
from mdops.io.upgrade import upgrade
from mdops.models import GraphDescriptor, dpa3, repflow
from mdops.models.graph import run_counted
from mdops.models.repflow import RepflowLayer
from mdops.system import from_atoms
from mdops.train import PairLists, load_dataset
from mdops.train.model.random import random_potential

REPFLOW = {
    "n_dim": 8,
    "e_dim": 6,
    "a_dim": 4,
    "nlayers": 2,
    "axis_neuron": 2,
    "smooth_edge_update": True,
    "e_rcut": 4.0,
    "e_rcut_smth": 3.0,
    "e_sel": "auto",
    "a_rcut": 3.0,
    "a_rcut_smth": 2.5,
    "a_sel": "auto:2",
}
INPUT = {"type": "dpa3", "repflow": REPFLOW, "seed": 1}


def with_repflow(**options):
    return {**INPUT, "repflow": {**REPFLOW, **options}}


class TestDPA3(kinds.DescriptorTests):
    CASES = kinds.cases("dpa3")
    DIFFERENTIATED = ("dpa3_base", "dpa3_sequential")
    INPUT = INPUT
    STEPS = 40
    TRAINED = "dpa3", 2, (24,), (24,)


@pytest.mark.parametrize("case", ["dpa3_small", "dpa3_dynamic", "dpa3_plain"])
def test_larger_models_of_deepmd_kit(case):
    kinds.check_larger(case)


def test_statistics_are_learned_where_the_deviation_is_not_fixed():
    (fixed,) = kinds.new_potential(with_repflow(fix_stat_std=0.4)).model.descriptors
    assert (fixed.std == 0.4).all() and (fixed.mean == 0).all()
    (learned,) = kinds.new_potential(with_repflow(fix_stat_std=0.0, e_sel=40)).model.descriptors
    options = {"rcut": 4.0, "rcut_smth": 3.0, "sel": 40, "type": "se_e3_tebd", "neuron": [2], "tebd_dim": 2}
    (wanted,) = kinds.new_potential(options).model.descriptors
    assert torch.equal(learned.std, wanted.std) and (learned.mean == 0).all()


@pytest.mark.parametrize("case", ["dpa3_base", "dpa2_base"])
def test_layers_that_run_again_give_the_same(case, monkeypatch):
    """Where what they keep would fill the memory, as the first layer tells; it runs once more for that."""
    potential, atoms = kinds.load_case(case), kinds.alloy()
    descriptor = potential.model.descriptor
    wanted, runs = potential.compute(atoms), []
    for layer in descriptor.layers:
        layer.register_forward_pre_hook(lambda *_: runs.append(1))
    monkeypatch.setattr("mdops.models.graph.MANY_ATOMS", 1)
    monkeypatch.setattr(type(descriptor), "goes_in_runs", False)
    potential.compute(atoms)
    assert len(runs) == len(descriptor.layers)
    monkeypatch.setattr("mdops.models.graph.memory", lambda: 10_000)
    runs.clear()
    found = potential.compute(atoms)
    assert len(runs) == 2 * len(descriptor.layers) + 1
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_what_a_layer_keeps_is_counted():
    """Inputs that two operations keep count once, weights and what no gradient needs not at all."""
    layer, x = torch.nn.Linear(8, 8, bias=False), torch.ones(5, 8, requires_grad=True)
    kept, _ = run_counted(layer, x)
    assert kept == x.nbytes

    def exponential(given):
        return given.exp().square() + 1

    assert run_counted(exponential, x)[0] == x.nbytes  # the result of exp, twice


@pytest.mark.parametrize("case", ["dpa3_base", "dpa3_sequential", "dpa3_no_angles", "dpa3_virtual"])
def test_atoms_in_runs_have_the_same_answers(case, monkeypatch):
    """As where all would fill the memory."""
    potential, atoms = kinds.load_case(case), kinds.alloy()
    wanted, rows = potential.compute(atoms), []
    for layer in potential.model.descriptor.layers:
        layer.register_forward_pre_hook(lambda _, given: rows.append(len(given[-1])))
    monkeypatch.setattr(GraphDescriptor, "_fills_memory", lambda *_: True)
    monkeypatch.setattr(GraphDescriptor, "_atoms_at_once", lambda *_: 5)
    found = potential.compute(atoms)
    layers = len(potential.model.descriptor.layers)
    assert max(rows) == 5 and sum(rows) == 2 * layers * len(atoms)
    # PyTorch's products of other numbers of rows round otherwise on some processors.
    np.testing.assert_allclose(found["atom_energy"], wanted["atom_energy"], rtol=1e-14)
    for name in ("forces", "virial"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, atol=1e-13)


def test_fitting_nets_without_hidden_layers_are_read_again(tmp_path):
    config = kinds.training_input(with_repflow(), 1, neuron=[], activation_function="gelu_tf")
    data = load_dataset(kinds.EMT, ["Cu", "Al"])
    lists = PairLists(data, config.model.cutoff)
    potential = random_potential(config, data, lists, seed=3, dtype=torch.float64)
    potential.save(tmp_path / "model.dp")
    again, atoms = mdops.load(tmp_path / "model.dp", dtype="float64"), kinds.alloy()
    np.testing.assert_array_equal(again.compute(atoms)["forces"], potential.compute(atoms)["forces"])


def test_runs_are_chosen_by_the_memory_that_there_is(monkeypatch):
    descriptor, nodes = kinds.load_case("dpa3_base").model.descriptor, torch.zeros(100, 4)
    local = torch.zeros(250, 4), torch.zeros(250, 4)  # 8,000 bytes
    for angles, vector in (
        (local[1], None),
        (torch.zeros(250, 1), torch.zeros(1, 4)),
    ):  # the latter: their cosines
        assert descriptor.bytes_of((local[0], angles), SimpleNamespace(angle_vector=vector)) == 8000
    wide = SimpleNamespace(angle_vector=torch.zeros(1, 8))  # with zeros behind them
    assert descriptor.bytes_of((local[0], torch.zeros(250, 1)), wide) == 12_000
    layers = len(descriptor.layers)
    for memory, forgets in ((32_000 * layers, False), (32_000 * layers - 1, True)):
        monkeypatch.setattr("mdops.models.graph.memory", lambda given=memory: given)
        assert descriptor._fills_memory(16_000, nodes.device) == forgets
        assert descriptor._atoms_at_once(8000, nodes) == int(100 * memory / 16 / 64_000)
    monkeypatch.setattr("mdops.models.graph.memory", lambda: 1000)
    assert descriptor._atoms_at_once(8000, nodes) == 1


def test_the_last_layer_makes_edges_and_angles_for_axes_alone():
    potential = kinds.new_potential(INPUT)
    (descriptor,) = potential.model.descriptors
    assert [layer.is_last for layer in descriptor.layers] == [False, True]
    assert [layer.makes_angles for layer in descriptor.layers] == [False, False]
    system = from_atoms([kinds.alloy()], potential.type_map)
    near = potential.evaluator().neighborhood(system, potential.neighbor_list(system))
    near = near.select(descriptor.spec.sel, mixed=True)
    alone = descriptor(near)
    descriptor.layers[-1].is_last, descriptor._makes_axes = False, True
    for layer in descriptor.layers:
        layer.makes_angles = True
    both = descriptor(near)
    torch.testing.assert_close(alone.values, both.values, rtol=1e-12, atol=1e-13)
    assert alone.axes is None
    assert both.axes.shape == (len(alone.values), 3, REPFLOW["e_dim"])


def test_options_of_a_new_model(tmp_path):
    """What is made of an input has its options, and is the same once it was saved."""
    for options in (
        {"a_compress_rate": 1, "a_compress_e_rate": 2, "n_multi_edge_message": 2, "skip_stat": True},
        {"update_style": "res_avg", "edge_use_dist": True, "use_env_envelope": True, "update_angle": False},
        {"sequential_update": True, "use_dynamic_sel": True, "update_residual_init": "norm", "nlayers": 0},
    ):
        section = with_repflow(**options)
        potential = kinds.new_potential({**section, "concat_output_tebd": True, "exclude_types": [[0, 1]]})
        potential.save(tmp_path / "model.dp")
        again = mdops.load(tmp_path / "model.dp", dtype="float64")
        assert again.model.descriptor.options.repflow == potential.model.descriptor.options.repflow
        found, wanted = again.compute(kinds.alloy()), potential.compute(kinds.alloy())
        np.testing.assert_array_equal(found["forces"], wanted["forces"])
    assert (
        kinds.new_potential(with_repflow(skip_stat=True, fix_stat_std=0.7)).model.descriptor.std == 0.3
    ).all()


def test_a_model_of_fewer_types_has_the_same_answers():
    kinds.check_fewer_types("dpa3_sequential")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"a_rcut": 5.0}, r"repflow\.a_rcut: is 5\.0, expected e_rcut, 4, or less"),
        ({"a_rcut_smth": 3.0}, r"repflow\.a_rcut_smth: is 3\.0, expected less than a_rcut"),
        ({"e_sel": 10, "a_sel": 11}, r"repflow\.a_sel: is 11, expected e_sel, 10, or less"),
        ({"e_sel": "many"}, r"repflow\.e_sel: is 'many', expected numbers"),
        ({"axis_neuron": 7}, r"repflow\.axis_neuron: is 7, expected n_dim and e_dim, 6, or less"),
        ({"a_compress_rate": 3}, r"repflow\.a_compress_rate: is 3, expected a divisor of half of a_dim"),
        ({"use_dynamic_sel": True, "smooth_edge_update": False}, r"repflow\.use_dynamic_sel"),
        ({"sequential_update": True, "update_style": "res_avg"}, r"repflow\.sequential_update"),
        ({"update_style": "res"}, r"repflow\.update_style: is 'res', expected 'res_residual' or"),
        ({"ndim": 4}, r"repflow\.ndim"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ConfigError, match=message):
        kinds.training_input(with_repflow(**options), 1)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("repflow_args", "nlayers"), 3, "the number of layers"),
        (("repflow_args", "a_sel"), 31, "a_sel"),
        (("repflow_args", "update_style"), "res_avg", "update_style"),
        (("repflow_variable", "repflow_layers", 1, "e_dim"), 5, "e_dim"),
        (("repflow_variable", "repflow_layers", 0, "node_sym_linear", "resnet"), None, "resnet"),
        (("repflow_variable", "repflow_layers", 0, "node_edge_linear"), None, "node_edge_linear"),
        (("repflow_variable", "repflow_layers", 0, "angle_self_linear"), None, "angle_self_linear"),
        (("repflow_variable", "repflow_layers", 0, "@variables", "e_residual"), [np.zeros(6)], "e_residual"),
        (("repflow_variable", "repflow_layers", 0, "@variables", "a_residual"), [np.full(4, np.nan)], "NaN"),
        (("repflow_variable", "edge_embd", "@variables", "w"), np.zeros((1, 5)), "edge_embd"),
        (("repflow_variable", "@variables", "dstd"), np.ones((2, 29, 4)), "dstd"),
        (("type_embedding", "neuron"), [4], "type_embedding"),
        (("add_chg_spin_ebd",), True, "chg_embedding"),
        (("default_chg_spin",), [1.0], "default_chg_spin"),
    ],
)
def test_files_whose_parts_do_not_fit(place, value, message):
    with pytest.raises(ModelFileError, match=message):
        upgrade(kinds.with_value("dpa3_base", ("descriptor", *place), value))


def test_too_few_places_are_named_with_their_cutoff():
    potential = kinds.new_potential(with_repflow(e_sel=60, a_sel=3))
    kinds.check_few_places(potential, 3)


def of_widths(e_dim=64, a_dim=32, activation="silu", **options):
    sizes = {"n_dim": 32, "e_dim": e_dim, "a_dim": a_dim, "update_residual": 0.5, **options}
    return kinds.new_potential({**with_repflow(**sizes), "activation_function": activation})


def test_products_have_another_accuracy_where_messages_have_kernels(monkeypatch):
    monkeypatch.setattr(mdops.Potential, "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(InputError, match="does not cover this model"):
        of_widths().float().use_matmul("tf32")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for taken in (
        of_widths(),
        of_widths(a_dim=4),
        of_widths(e_dim=16),
        of_widths(e_dim=6, a_dim=4),
        of_widths(activation="silut:3"),
    ):
        taken.float().use_matmul("tf32")
        assert taken.matmul == "tf32"
    for other, name, says in (
        (of_widths(n_dim=24, update_angle=False).float(), "tf32", "does not cover this model"),
        (of_widths(activation="tanh").float(), "tf32", "does not cover this model"),
        (of_widths(), "tf32", "computes in float64"),
        (of_widths().float(), "bf16", "a GPU has no such products"),
    ):
        with pytest.raises(InputError, match=says):
            other.use_matmul(name)


@pytest.mark.parametrize(
    "options",
    [
        {"nlayers": 3},
        {"update_style": "res_avg", "a_compress_rate": 1, "a_compress_e_rate": 2, "edge_init_use_dist": True},
        {"update_style": "res_incr", "a_compress_rate": 1, "a_compress_use_split": True, "nlayers": 3},
        {"update_angle": False},
        {"smooth_edge_update": False},
        {"nlayers": 1},
    ],
)
@pytest.mark.parametrize("activation", ["silu", "tanh"])
def test_written_out_derivatives_are_those_of_autograd(options, activation, monkeypatch):
    """In simulations, which need no second derivatives; also of an atom alone, which has no edges."""
    given = with_repflow(**{"update_residual": 0.5, **options})
    potential = kinds.new_potential({**given, "activation_function": activation})
    lonely = kinds.alloy()[:1]
    lonely.pbc = False
    boxes, taken = (kinds.alloy(), lonely), []
    found = [potential.compute(atoms) for atoms in boxes]
    monkeypatch.setattr(RepflowLayer, "goes_once", property(lambda layer: taken.append(layer)))
    for one, atoms in zip(found, boxes, strict=True):
        wanted = potential.compute(atoms)
        for name in ("energy", "forces", "virial"):
            np.testing.assert_allclose(one[name], wanted[name], rtol=1e-11, atol=1e-12)
    assert len(taken) == len(boxes) * len(potential.model.descriptors[0].layers)


def test_layers_without_written_out_derivatives_go_by_autograd(monkeypatch):
    potential = kinds.new_potential(with_repflow(n_multi_edge_message=2))
    monkeypatch.setattr(repflow, "layer_once", lambda *_: pytest.fail("it has no such layers"))
    assert np.abs(potential.compute(kinds.alloy())["forces"]).max() > 0


def test_written_out_derivatives_are_of_the_weights_as_they_are():
    potential = kinds.new_potential(with_repflow(update_residual=0.5))
    layer, before = potential.model.descriptors[0].layers[0], potential.compute(kinds.alloy())["forces"]
    with torch.no_grad():
        layer.products["angle_self_linear"].weight.mul_(3.0)
        layer.products["edge_angle_linear2"].weight.mul_(3.0)
    after = potential.compute(kinds.alloy())["forces"]
    assert np.abs(after - before).max() > 1e-9
    again = mdops.Potential(potential.model)
    np.testing.assert_array_equal(again.compute(kinds.alloy())["forces"], after)


def test_trainings_have_second_derivatives_after_a_simulation():
    kinds.check_second_derivatives(kinds.new_potential(with_repflow(update_residual=0.5)))


@pytest.mark.parametrize(
    "options",
    [
        {"nlayers": 3, "a_compress_rate": 1, "a_compress_use_split": True, "a_compress_e_rate": 2},
        {"a_compress_rate": 1, "update_style": "res_avg"},
        {"a_compress_rate": 0, "n_multi_edge_message": 2},
        {"sequential_update": True},
        {"update_angle": False},
        {"smooth_edge_update": False},
    ],
)
def test_zeros_behind_the_numbers_of_edges_and_angles_change_nothing(options, monkeypatch):
    """As simulations on a GPU have them for widths that its kernels do not take."""
    potential = kinds.new_potential(with_repflow(**{"update_residual": 0.5, **options}))
    expected, own, widths = potential.compute(kinds.alloy()), dpa3.DPA3.graph, []

    def wide(self, near):
        options = self.options.repflow.wide((5, 8))
        widths.append((options.e_dim, options.a_dim))
        return own(self, near)._replace(wide=options)

    monkeypatch.setattr(dpa3.DPA3, "graph", wide)
    found = potential.compute(kinds.alloy())
    assert widths == [(8, 5)]
    for name in ("energy", "forces", "virial"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        for weight in potential.model.descriptors[0].layers[0].products["edge_self_linear"].parameters():
            weight.mul_(3.0)
    assert np.abs(potential.compute(kinds.alloy())["forces"] - found["forces"]).max() > 1e-9


def test_angles_that_would_read_more_numbers_than_there_are_stay_as_they_are():
    options = repflow.RepflowOptions.from_tree(
        {**REPFLOW, "e_sel": 9, "a_sel": 9, "a_compress_rate": 1, "a_compress_use_split": True}
    )
    assert options.wide((64,)) is options
    assert (options.wide((6,)).e_dim, options.wide((6,)).a_dim) == (6, 6)


@pytest.mark.gpu
def test_one_product_in_the_place_of_three():
    kinds.check_one_product(of_widths())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{"update_angle": False}, {"smooth_edge_update": False}, {}, {"e_dim": 48, "a_dim": 24}]
)
def test_messages_of_edges_have_their_frames(options, monkeypatch):
    """In simulations on a GPU messages, sums of frames and what angles read of edges go by one op, and the first angles
    are their cosines."""
    sizes = {"n_dim": 32, "e_dim": 64, "a_dim": 32, "nlayers": 3, **options}
    potential = (
        kinds.new_potential({**with_repflow(**sizes), "activation_function": "silu"}).float().to("cuda")
    )
    box, calls = kinds.alloy(), []
    for op in ("framed_message", "outer_message"):
        own = getattr(repflow, op)
        monkeypatch.setattr(repflow, op, lambda *args, op=op, own=own: calls.append(op) or own(*args))
    found = potential.compute(box)
    assert ("outer_message" in calls) == options.get("update_angle", True) and "framed_message" in calls
    monkeypatch.setattr(dpa3, "has_tensor_cores", lambda *args: False)
    calls.clear()
    want = potential.compute(box)
    assert not calls
    for name in ("energy", "forces", "virial"):
        most = max(1.0, float(np.abs(want[name]).max()))
        assert np.abs(found[name] - want[name]).max() < 2e-5 * most, name
