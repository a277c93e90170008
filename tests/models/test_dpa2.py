"""DPA-2, against DeePMD-kit and in use."""

import copy
from dataclasses import replace

import kind_cases as kinds
import numpy as np
import pytest
import torch
from ase import Atoms
from reference_cases import references, relative_error

import mdops
from mdops.errors import ConfigError, ModelFileError
from mdops.evaluators import splines
from mdops.io.upgrade import upgrade
from mdops.models import dpa2
from mdops.models.length_basis import LengthBasis
from mdops.models.repformer import LayerForm
from mdops.train import PairLists, load_dataset, make_batch
from mdops.train.loop.update import keep_spline, predict, use_training_spline
from mdops.train.loss.energy import EnergyLoss
from mdops.train.loss.weights import Prefactor

REPINIT = {
    "rcut": 4.5,
    "rcut_smth": 1.0,
    "nsel": "auto:1.5",
    "neuron": [4, 8],
    "axis_neuron": 2,
    "tebd_dim": 4,
    "use_three_body": True,
    "three_body_sel": "auto:2",
    "three_body_rcut": 3.5,
    "three_body_rcut_smth": 2.5,
}
REPFORMER = {
    "rcut": 3.5,
    "rcut_smth": 2.5,
    "nsel": "auto:2",
    "nlayers": 2,
    "g1_dim": 8,
    "g2_dim": 6,
    "axis_neuron": 2,
    "attn1_hidden": 4,
    "attn1_nhead": 2,
    "attn2_hidden": 4,
    "attn2_nhead": 2,
}
INPUT = {"type": "dpa2", "repinit": REPINIT, "repformer": REPFORMER, "seed": 1}


def section(repinit=(), **repformer):
    return {**INPUT, "repinit": {**REPINIT, **dict(repinit)}, "repformer": {**REPFORMER, **repformer}}


class TestDPA2(kinds.DescriptorTests):
    CASES = kinds.cases("dpa2")
    DIFFERENTIATED = ("dpa2_base", "dpa2_rough", "dpa2_strip")
    INPUT = INPUT
    STEPS = 40
    TRAINED = "dpa2", 3, (64,), (32,), (32,)  # 4.5 A, and twice 3.5 A


# Attention that is as sharp as that of the second makes forces of float32 what they are: to round the pair vectors to
# float32, and compute the rest in float64, changes them by 2e-4.
@pytest.mark.parametrize(("case", "single"), [("dpa2_small", 3e-5), ("dpa2_attention", 1e-3)])
def test_larger_models_of_deepmd_kit(case, single):
    assert all(potential.explain().startswith("splines") for potential in kinds.check_larger(case, single))


@pytest.mark.parametrize("case", [*kinds.cases("dpa2"), "linear_messages", "zbl_dpa2"])
def test_sums_by_splines(case):
    """Splines for the nets of the sums, and of the sums over pairs, give the answers of the nets."""
    overflow = "truncate" if case.endswith("few_places") else "error"
    potential = mdops.load(kinds.KINDS / case / "model.dp", dtype="float64", overflow=overflow)
    single = mdops.load(kinds.KINDS / case / "model.dp", dtype="float32", overflow=overflow)
    explained = potential.explain()
    assert "splines" in explained
    assert ("se_e3_tebd: splines of the angle" in explained) == (None not in potential.angle_knots != ())
    rounded = case.endswith("float32")  # in which DeePMD-kit itself computed it
    for one in references(kinds.KINDS / case):
        found, rough = potential.evaluate(one.system), single.evaluate(one.system)
        for name in found.keys() & one.answers.keys():
            error = relative_error(found[name], one.answers[name])
            assert error < (3e-5 if rounded else 1e-7), f"{one.name}: {name} is off by {error:.1e}"
            assert relative_error(rough[name], one.answers[name]) < 5e-5


@pytest.mark.parametrize("spline", [False, True])
def test_a_steep_step_of_the_energy_has_its_forces(spline):
    """The vectors of random weights grow until f of their products turns from -1 to 1 within 1e-4 A."""
    cell = [[3.75, 0.375, 0], [0, 3.75, 0.1875], [0, 0, 3.75]]
    before = [
        [-0.2102724, -0.1891578, -0.1474481],
        [-0.2406129, 2.072977, 2.0995088],
        [1.9384831, 0.2250566, 1.9371524],
        [1.8878028, 2.1619163, 0.0305179],
    ]
    moved = 1e-7 * np.array([[-1049, -877, -644], [-736, 650, 359], [460, -119, 340], [204, 360, -288]])
    potential = kinds.load_case("dpa2_base")
    if spline:
        potential.use_spline()

    def at(part):
        return potential.compute(Atoms("AlCu3", before + part * moved, cell=cell, pbc=True))

    step = (at(1.0)["energy"] - at(0.0)["energy"]).item()
    places, weights = np.polynomial.legendre.leggauss(48)
    work = sum(
        w / 2 * (at((x + 1) / 2)["forces"] * moved).sum() for x, w in zip(places, weights, strict=True)
    )
    assert step > 5e-3
    assert step == pytest.approx(-work, rel=1e-6)


def test_splines_of_types_that_are_there():
    """Of a model of many types tables are made for those that come, and then for others."""
    potential = kinds.load_case("dpa2_plain")
    exact = [potential.compute(atoms)["forces"] for atoms in (one_type("Mg"), kinds.alloy())]
    potential.use_spline(types=[2])
    for atoms, wanted in zip((one_type("Mg"), kinds.alloy()), exact, strict=True):
        np.testing.assert_allclose(potential.compute(atoms)["forces"], wanted, atol=1e-8)


def one_type(element):
    atoms = kinds.alloy()
    atoms.symbols[:] = element
    return atoms


def test_gradients_of_weights_through_splines():
    potential = kinds.load_case("dpa2_strip")
    (one, *_) = references(kinds.KINDS / "dpa2_strip")
    s = one.system

    def gradients():
        energy = potential(s.positions, s.types, s.cell, s.pbc, s.batch)["energy"].sum()
        return torch.autograd.grad(
            energy, [*potential.model.descriptor.repinit.parameters()], materialize_grads=True
        )

    wanted = gradients()
    potential.use_spline()
    assert potential.explain("differentiate").startswith("splines")
    for found, exact in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-7)


def loss_and_gradients(potential):
    """Of two frames, with energies, forces and virials."""
    data = load_dataset(kinds.EMT, potential.type_map)
    batch = make_batch(data, PairLists(data, potential.cutoff), [0, 5])
    potential.zero_grad()
    loss = EnergyLoss({n: Prefactor(1.0, 1.0) for n in ("energy", "forces", "virial")})
    value = loss(predict(potential, batch), batch)
    value.backward()
    return value.detach(), [p.grad.clone() for p in potential.parameters()]


@pytest.mark.parametrize("repinit", [{}, {"tebd_input_mode": "strip"}, {"set_davg_zero": False}])
def test_trainings_take_splines_for_the_sums(repinit):
    """They have the loss and gradients of the nets, with finer knots than sums that no layers follow."""
    potential = kinds.new_potential(section(repinit))
    exact_loss, exact = loss_and_gradients(potential)
    use_training_spline(potential, 2.0)
    assert all(grid.error < 1e-7 for grid in potential.inner_grids) and potential.inner_grids
    loss, found = loss_and_gradients(potential)
    assert loss != exact_loss
    torch.testing.assert_close(loss, exact_loss, rtol=1e-7, atol=0)
    size = torch.stack([g.norm() for g in exact]).norm()
    for a, b in zip(exact, found, strict=True):
        assert float((a - b).norm()) <= 1e-5 * float(a.norm()) + 1e-9 * float(size)


def test_knots_of_the_sums_are_renewed_in_a_training():
    potential = kinds.new_potential(section({"use_three_body": False}))
    use_training_spline(potential, 2.0)
    (before,) = potential.inner_grids
    assert not keep_spline(potential)
    with torch.no_grad():
        potential.model.descriptor.repinit.embeddings.net().layers[0].weight.mul_(4)
    assert keep_spline(potential) and potential.inner_grids[0].intervals > before.intervals


def test_nets_of_the_sums_run_where_there_are_fewer_pairs_than_knots():
    potential = kinds.new_potential(section({"use_three_body": False}))
    exact, _ = loss_and_gradients(potential)
    use_training_spline(potential, 2.0)
    (grid,) = potential.inner_grids
    for intervals, goes_by_nets in ((8, False), (10**6, True)):
        potential.inner_grids = (replace(grid, intervals=intervals),)
        assert (loss_and_gradients(potential)[0] == exact) == goes_by_nets


def test_statistics_are_those_of_each_block():
    sums = {"set_davg_zero": False, "nsel": 90, "three_body_sel": 40}
    potential = kinds.new_potential(section(sums, nsel=50, set_davg_zero=False))
    descriptor = potential.model.descriptor
    blocks = {
        (4.5, 1.0, 90): descriptor.repinit,
        (3.5, 2.5, 40): descriptor.three_body,
        (3.5, 2.5, 50): descriptor,
    }
    for (rcut, smooth, places), block in blocks.items():
        options = {"rcut": rcut, "rcut_smth": smooth, "sel": places, "neuron": [2], "tebd_dim": 2}
        other = kinds.new_potential(
            {**options, "type": "se_e3_tebd", "set_davg_zero": False}
        ).model.descriptor
        for name in ("mean", "std"):
            torch.testing.assert_close(getattr(block, name), getattr(other, name), rtol=1e-12, atol=0)
        assert (block.mean > 0).all()


def test_options_of_a_new_model(tmp_path):
    """What is made of an input has its options, and is the same once it was saved."""
    for options in (
        section({"tebd_input_mode": "strip", "type_one_side": True, "resnet_dt": True}, direct_dist=True),
        section({"use_three_body": False}, update_style="res_residual", update_h2=True, attn2_has_gate=True),
        section(update_style="res_incr", update_residual_init="const", nlayers=0, g1_dim=20),
        {**section(ln_eps=1e-3, nlayers=1), "smooth": False, "add_tebd_to_repinit_out": True},
    ):
        potential = kinds.new_potential({**options, "concat_output_tebd": False, "exclude_types": [[0, 1]]})
        potential.save(tmp_path / "model.dp")
        again = mdops.load(tmp_path / "model.dp", dtype="float64", spline=False)
        for name in ("repinit", "repformer"):
            assert getattr(again.model.descriptor.options, name) == getattr(
                potential.model.descriptor.options, name
            )
        found, wanted = again.compute(kinds.alloy()), potential.compute(kinds.alloy())
        np.testing.assert_array_equal(found["forces"], wanted["forces"])


def test_norms_that_are_not_trained_stay():
    potential = kinds.new_potential(section(trainable_ln=False))
    potential.model.set_trained()
    assert [name for name, value in potential.named_parameters() if not value.requires_grad] == [
        "model.descriptor.layers.0.norm.0",
        "model.descriptor.layers.0.norm.1",
    ]


def test_atoms_without_messages_feel_one_cutoff():
    """Layers that look at no other nodes reach no further than the sums, and atoms have virials of their own."""
    names = ("update_g1_has_conv", "update_g1_has_drrd", "update_g1_has_attn", "update_g2_has_g1g1")
    potential = kinds.new_potential(section(**dict.fromkeys(names, False)))
    assert potential.reach == 1 and kinds.load_case("dpa2_plain").reach == 3
    found = potential.compute(kinds.alloy(), atom_virial=True)
    np.testing.assert_allclose(found["atom_virial"].sum(0), found["virial"][0], atol=1e-12)


def test_a_model_of_fewer_types_has_the_same_answers():
    kinds.check_fewer_types("dpa2_plain")


@pytest.mark.parametrize(
    ("repinit", "repformer", "message"),
    [
        ({"rcut_smth": 5.0}, {}, r"repinit\.rcut_smth: is 5\.0, expected less than rcut"),
        ({"three_body_rcut_smth": 4.0}, {}, r"repinit\.three_body_rcut_smth: is 4\.0"),
        ({"three_body_rcut": 5.0}, {}, r"repinit\.three_body_rcut: is 5\.0, expected rcut, 4\.5, or less"),
        ({"axis_neuron": 9}, {}, r"repinit\.axis_neuron: is more than the last of neuron"),
        ({"three_body_neuron": []}, {}, r"repinit\.three_body_neuron: is empty"),
        ({"nsel": "all"}, {}, r"repinit\.nsel: is 'all', expected numbers"),
        ({"nsel": 20}, {"nsel": 20}, r"repformer\.nsel: is 20, expected less than the 20 of repinit\.nsel"),
        ({"three_body_sel": 21}, {"nsel": 20, "rcut": 3.6}, r"repinit\.three_body_sel: is 21, expected less"),
        ({}, {"rcut": 4.5}, r"repformer\.rcut: is 4\.5, expected less than that of repinit, 4\.5"),
        ({}, {"rcut_smth": 3.5}, r"repformer\.rcut_smth: is 3\.5, expected less than rcut"),
        ({}, {"axis_neuron": 7}, r"repformer\.axis_neuron: is 7, expected 6 or less"),
        ({}, {"update_style": "res"}, r"repformer\.update_style: is 'res', expected 'res_residual' or"),
        (
            {},
            {"update_g1_has_grrg": False, "update_g1_has_drrd": False},
            r"repformer\.g1_out_mlp: is True, expected false where the product of all has no other input",
        ),
    ],
)
def test_options_that_do_not_go_together(repinit, repformer, message):
    with pytest.raises(ConfigError, match=message):
        kinds.training_input(section(repinit, **repformer), 1)


def test_automatic_places_of_molecules_are_more_for_the_longer_cutoff():
    options = kinds.training_input(
        section({"nsel": "auto", "use_three_body": False}, nsel="auto"), 1
    ).model.descriptor
    found = options.resolve_sel(lambda _: ([4, 4], 8), "descriptor")
    assert (found.repformer.nsel, found.repinit.nsel) == (8, 12)
    fixed = kinds.training_input(
        section({"nsel": 8, "use_three_body": False}, nsel="auto"), 1
    ).model.descriptor
    with pytest.raises(ConfigError, match=r"repformer\.nsel: is 8, expected less than the 8 of repinit"):
        fixed.resolve_sel(lambda _: ([4, 4], 8), "descriptor")


LAYER = ("repformers_variable", "repformer_layers", 0)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("repformer_args", "nlayers"), 4, "the number of layers"),
        (("repformer_args", "nsel"), 60, "nsel"),
        (("repformer_args", "update_style"), "res_avg", "update_style"),
        (("repinit_args", "tebd_input_mode"), "strip", "embeddings_strip"),
        (("repinit_args", "use_three_body"), False, "repinit_three_body_variable"),
        (("repinit_variable", "@variables", "dstd"), np.ones((2, 59, 4)), "dstd"),
        (("repformers_variable", "@variables", "dstd"), np.zeros((2, 24, 4)), "not positive"),
        (("repformers_variable", "g2_embd", "@variables", "w"), np.zeros((1, 4)), "g2_embd"),
        ((*LAYER, "g2_dim"), 4, "g2_dim"),
        ((*LAYER, "linear1", "resnet"), None, "resnet"),
        ((*LAYER, "linear2"), None, "linear2"),
        ((*LAYER, "loc_attn"), None, "loc_attn"),
        ((*LAYER, "loc_attn", "hidden_dim"), 5, "hidden_dim"),
        ((*LAYER, "attn2_lm"), None, "attn2_lm"),
        ((*LAYER, "attn2_lm", "@variables", "b"), np.zeros(4), "attn2_lm"),
        ((*LAYER, "attn2g_map", "mapqk", "@variables", "w"), np.zeros((5, 15)), "mapqk"),
        ((*LAYER, "@variables", "g2_residual"), [np.zeros(5)], "g2_residual"),
        (("g1_shape_tranform",), {"@class": "Identity", "@version": 1}, "g1_shape_tranform"),
        (("type_embedding", "neuron"), [8], "type_embedding"),
        (("add_tebd_to_repinit_out",), True, "tebd_transform"),
    ],
)
def test_files_whose_parts_do_not_fit(place, value, message):
    with pytest.raises(ModelFileError, match=message):
        upgrade(kinds.with_value("dpa2_base", ("descriptor", *place), value))


def test_too_few_places_are_named_with_their_cutoff():
    potential = kinds.new_potential(section({"nsel": 90, "three_body_sel": 3}, nsel=60))
    kinds.check_few_places(potential, 3.5)


@pytest.mark.parametrize(
    "options",
    [
        {"update_style": "res_residual", "attn2_has_gate": True},
        {"update_style": "res_avg", "g1_out_mlp": False, "activation_function": "silu"},
        {"update_style": "res_incr", "update_g2_has_attn": False, "update_g1_has_drrd": False},
        {"update_g1_has_conv": False, "update_g1_has_grrg": False},
        {"update_g1_has_conv": False, "update_g1_has_drrd": False},
        {"update_g1_has_attn": True},
        {"update_g1_has_attn": True, "update_style": "res_avg", "update_g2_has_g1g1": True},
        {"update_h2": True, "update_style": "res_incr"},
    ],
)
@pytest.mark.parametrize("smooth", [True, False])
def test_written_out_derivatives_are_those_of_autograd(options, smooth, monkeypatch):
    """In simulations, which need no second derivatives."""
    given = {"update_g1_has_attn": False, "update_g2_has_g1g1": False, "update_residual": 0.3, **options}
    potential = kinds.new_potential({**section(**given), "smooth": smooth})
    found, taken = potential.compute(kinds.alloy()), []
    monkeypatch.setattr(LayerForm, "goes_once", property(lambda form: taken.append(form)))
    wanted = potential.compute(kinds.alloy())
    assert len(taken) == REPFORMER["nlayers"]
    for name in ("energy", "forces", "virial"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-11, atol=1e-12)


def by_length(repinit=(), **options):
    """A model whose edges go by their lengths alone, and have numbers enough for a few functions to stand for them."""
    given = {
        "update_g1_has_attn": False,
        "update_g2_has_g1g1": False,
        "update_g2_has_attn": False,
        "g2_dim": 32,
        "nlayers": 3,
        "update_residual": 0.3,
    }
    return kinds.new_potential(section(repinit, **given | options))


@pytest.mark.parametrize(
    "options",
    [
        {"update_style": "res_residual"},
        {"update_style": "res_avg", "set_davg_zero": False, "activation_function": "silu"},
        {"update_style": "res_incr", "update_g1_has_drrd": False, "use_sqrt_nnei": False},
        {"update_g1_has_conv": False, "g1_out_mlp": False},
        {"update_g1_has_grrg": False},
        {"update_g1_has_attn": True},
    ],
)
def test_few_functions_stand_for_edges_that_go_by_their_length(options, monkeypatch):
    taken, functions = [], LengthBasis.functions
    monkeypatch.setattr(
        LengthBasis, "functions", lambda basis, x: taken.append(basis.table.shape[2]) or functions(basis, x)
    )

    def of(dtype, spline):
        potential = mdops.Potential(copy.deepcopy(own)).to(dtype)
        if spline:
            potential.use_spline()
        return potential.compute(kinds.alloy())

    own = by_length(**options).model
    found = {dtype: of(dtype, True) for dtype in (torch.float64, torch.float32)}
    assert len(taken) == 2
    assert taken[0] <= 24
    assert taken[1] == 16
    monkeypatch.setattr(splines, "length_basis", lambda *_: None)
    wanted, exact = of(torch.float64, True), of(torch.float64, False)
    assert len(taken) == 2
    for name in ("energy", "forces", "virial"):
        most = np.abs(exact[name]).max()
        np.testing.assert_allclose(found[torch.float64][name], wanted[name], rtol=0, atol=1e-10 * most)
        np.testing.assert_allclose(found[torch.float32][name], exact[name], rtol=0, atol=3e-5 * most)


def test_few_functions_are_those_of_the_weights_and_types_of_now():
    potential = by_length()
    potential.use_spline()
    before = [potential.compute(atoms)["forces"] for atoms in (one_type("Al"), kinds.alloy())]
    with torch.no_grad():
        potential.model.descriptors[0].layers[0].products["linear2"].weight.mul_(3.0)
    after = [potential.compute(atoms)["forces"] for atoms in (one_type("Al"), kinds.alloy())]
    exact = mdops.Potential(potential.model)
    for old, new, atoms in zip(before, after, (one_type("Al"), kinds.alloy()), strict=True):
        assert np.abs(new - old).max() > 1e-6
        np.testing.assert_allclose(new, exact.compute(atoms)["forces"], atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"update_g1_has_conv": False, "update_g1_has_drrd": False}])
def test_layers_together_are_those_one_after_the_other(options, monkeypatch):
    """Also of an atom alone, which has no edges."""
    potential = by_length(**options)
    potential.use_spline()
    lonely = kinds.alloy()[:1]
    lonely.pbc = False
    found = [potential.compute(atoms) for atoms in (kinds.alloy(), lonely)]
    monkeypatch.setattr(dpa2, "MANY_ATOMS", 0)
    for one, atoms in zip(found, (kinds.alloy(), lonely), strict=True):
        wanted = potential.compute(atoms)
        for name in ("energy", "forces", "virial"):
            np.testing.assert_allclose(one[name], wanted[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "options",
    [
        {"update_g2_has_attn": True},
        {"update_g2_has_g1g1": True},
        {"direct_dist": True},
        {"activation_function": "relu"},
        {"g2_dim": 6},
    ],
)
def test_where_no_few_functions_stand_for_edges(options, monkeypatch):
    potential = by_length(**options)
    monkeypatch.setattr(LengthBasis, "functions", lambda *_: pytest.fail("there are no such functions"))
    exact = potential.compute(kinds.alloy())["forces"]
    potential.use_spline()
    np.testing.assert_allclose(potential.compute(kinds.alloy())["forces"], exact, rtol=1e-6, atol=1e-8)


def test_written_out_derivatives_are_of_the_weights_as_they_are():
    given = {"update_g1_has_attn": False, "update_g2_has_g1g1": False, "update_residual": 0.3}
    potential = kinds.new_potential(section(**given))
    before = potential.compute(kinds.alloy())["forces"]
    with torch.no_grad():
        potential.model.descriptors[0].layers[0].products["linear2"].weight.mul_(3.0)
    after = potential.compute(kinds.alloy())["forces"]
    assert np.abs(after - before).max() > 1e-9
