"""A new model is DeePMD-kit's to read; a step in spline space is the exact step, and learns."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_systems import EMT, new_model, small_config

import mdops
from mdops.errors import ConfigError, DataError
from mdops.io import read_model
from mdops.ops import NeighborList, displacements
from mdops.tables.spline import bending_weights
from mdops.tables.spline_model import SplineModel
from mdops.train import PairLists, make_batch
from mdops.train.config.sections import LearningRateConfig
from mdops.train.loop.factories import make_loss, make_optimizer, make_sampler, require_labels
from mdops.train.loop.schedule import LearningRate
from mdops.train.loop.update import keep_spline, predict, train_step, use_training_spline
from mdops.train.loss.energy import EnergyLoss, EnergyLossOptions
from mdops.train.loss.weights import Prefactor
from mdops.train.model.random import random_potential

ALL = EnergyLoss({n: Prefactor(1.0, 1.0) for n in ("energy", "forces", "virial")})


def config(**descriptor):
    return small_config(descriptor={"sel": "auto", **descriptor}, training={"smoothing": 0.0})


def model(data, lists, dtype=torch.float64, seed=3, **descriptor):
    return new_model(config(**descriptor), data, lists, seed=seed, dtype=dtype)


def gradients(potential, batch):
    potential.zero_grad()
    loss = ALL(predict(potential, batch), batch)
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in potential.parameters()]


@pytest.mark.parametrize(
    "options", [{}, {"type_one_side": True, "resnet_dt": True}, {"exclude_types": [[0, 1]]}]
)
def test_spline_space_gives_the_loss_and_gradients_of_exact_nets(data, lists, options):
    potential = model(data, lists, **options)
    batch = make_batch(data, lists, [0, 5])
    exact_loss, exact = gradients(potential, batch)
    use_training_spline(potential, 2.0)
    spline_loss, spline = gradients(potential, batch)
    torch.testing.assert_close(spline_loss, exact_loss, rtol=1e-7, atol=0)
    size = torch.stack([g.norm() for g in exact]).norm()
    for a, b in zip(exact, spline, strict=True):
        assert float((a - b).norm()) <= 1e-5 * float(a.norm()) + 1e-9 * float(size)


def test_batches_without_energies_have_gradients_of_all_weights(data, lists):
    """Of 0 for the last bias: Adam goes on with the mean of its gradients, as in DeePMD-kit."""
    potential, batch = model(data, lists), make_batch(data, lists, [0, 5])
    labels = {name: values for name, values in batch.labels.items() if name != "energy"}
    _, found = gradients(potential, replace(batch, labels=labels))
    moved = [bool(gradient.any()) for gradient in found]
    assert 0 < moved.count(False) < len(moved)


def test_weight_gradient_is_the_slope_of_the_loss(data, lists):
    potential = model(data, lists)
    use_training_spline(potential, 2.0)
    batch = make_batch(data, lists, [1])
    _, found = gradients(potential, batch)
    weight, grad = next(iter(potential.model.descriptor.embeddings[0].parameters())), found[0]
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight += sign * 1e-5
        values.append(ALL(predict(potential, batch), batch))
        with torch.no_grad():
            weight -= sign * 1e-5
    torch.testing.assert_close((values[0] - values[1]) / 2e-5, grad.sum(), rtol=1e-5, atol=1e-8)


def test_steps_reduce_the_loss_and_splines_stay_the_nets(data, lists):
    potential = model(data, lists, torch.float32)
    use_training_spline(potential, 2.0)
    c = config()
    loss, optimizer = make_loss(c), make_optimizer(c, potential.parameters())
    batch, losses = make_batch(data, lists, [0, 7, 9]), []
    for _ in range(60):
        value, result = train_step(potential, loss, optimizer, batch, rate=5e-3, fraction=1.0, max_norm=1e3)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0] and not result["forces"].requires_grad
    keep_spline(potential)
    exact = copy.deepcopy(potential)
    exact.grid = None
    a, b = (predict(m, batch, create_graph=False)["forces"] for m in (potential, exact))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"exclude_types": [[0, 1]]}], ids=["short way", "long way"])
def test_smoothing_keeps_nets_smooth_and_the_loss_a_loss_of_labels(data, lists, options):
    batch, bends, values = make_batch(data, lists, [0, 7, 9]), [], []
    for smoothing in (0.0, 100.0):
        potential = model(data, lists, torch.float64, **options)
        potential.smoothing = smoothing
        use_training_spline(potential, 2.0)
        c = config()
        loss, optimizer = make_loss(c), make_optimizer(c, potential.parameters())
        for _ in range(30):
            value, _ = train_step(potential, loss, optimizer, batch, rate=5e-3, fraction=1.0)
            values.append(float(value))
        table = SplineModel(potential).sums[0].table().detach()
        step = potential.grid.s_max / potential.grid.intervals
        bends.append((bending_weights(potential.model.descriptor, step) * table.diff(n=2, dim=2) ** 2).sum())
    assert values[0] == values[30]
    assert float(bends[1]) < 0.7 * float(bends[0])


def test_knots_are_renewed_when_the_weights_need_it(data, lists):
    potential = model(data, lists)
    assert not keep_spline(potential)
    use_training_spline(potential, 2.0)
    before = potential.grid
    assert not keep_spline(potential)
    with torch.no_grad():
        potential.model.descriptor.embeddings[0].layers[0].weight.mul_(2)
    assert keep_spline(potential) and potential.grid.intervals > before.intervals
    assert potential.grid.r_min == before.r_min == pytest.approx(1.8)


def compare_form(tree, other, place):
    """Two trees have the same keys at every level, and leaves of the same kind."""
    if isinstance(other, dict):
        assert isinstance(tree, dict) and tree.keys() == other.keys(), place
        for key, value in other.items():
            if key != "trainable":  # one for all layers, or one for each
                compare_form(tree[key], value, f"{place}.{key}")
    elif isinstance(other, list) and other and isinstance(other[0], dict):
        assert isinstance(tree, list), place
        for k, value in enumerate(tree):
            compare_form(value, other[min(k, len(other) - 1)], f"{place}[{k}]")
    elif isinstance(other, np.ndarray):
        assert tree is None or (tree.dtype, tree.ndim) == (other.dtype, other.ndim), place
    elif other == []:
        assert tree in (None, []), place  # nothing is given
    elif other is not None:
        assert isinstance(tree, type(other)), place


def test_new_model_is_saved_and_read_as_deepmd_kits_tree(data, lists, tmp_path):
    potential = model(data, lists, resnet_dt=True)
    potential.save(tmp_path / "model.safetensors")
    tree = read_model(tmp_path / "model.safetensors").model
    trained = read_model(EMT.parents[1] / "formats" / "model.dp").model
    compare_form(tree, trained, "model")
    nets = [net["layers"] for net in tree["descriptor"]["embeddings"]["networks"]]
    for layers, net in zip(nets, potential.model.descriptor.embeddings, strict=True):
        for layer, module in zip(layers, net.layers, strict=True):
            assert np.array_equal(layer["@variables"]["w"], module.weight.detach())
    loaded = mdops.load(tmp_path / "model.safetensors", dtype=torch.float64, spline=False)
    batch = make_batch(data, lists, [3])
    a, b = (predict(m, batch, create_graph=False) for m in (potential, loaded))
    torch.testing.assert_close(a["forces"], b["forces"])


def test_random_weights_have_deepmd_kits_spread_and_follow_the_seed(data, lists):
    one = model(data, lists, neuron=[40, 80], axis_neuron=8)
    again = model(data, lists, neuron=[40, 80], axis_neuron=8)
    other = model(data, lists, seed=4, neuron=[40, 80], axis_neuron=8)
    weight = one.model.descriptor.embeddings[0].layers[1].weight
    assert float(weight.detach().std()) == pytest.approx(120**-0.5, rel=0.05)
    assert float(one.model.fitting.nets[0].layers[1].timestep.detach().mean()) == pytest.approx(0.1, abs=2e-3)
    assert one.model.fitting.nets[0].layers[0].timestep is None
    assert torch.equal(weight, again.model.descriptor.embeddings[0].layers[1].weight)
    assert not torch.equal(weight, other.model.descriptor.embeddings[0].layers[1].weight)
    assert not torch.equal(weight, one.model.descriptor.embeddings[1].layers[1].weight)


def test_too_small_sel_is_told_and_cuts_neighbours(data, lists):
    with pytest.warns(UserWarning, match="the farthest will be dropped"):
        potential = model(data, lists, sel=[3, 3])
    assert potential.overflow == "truncate"
    batch = make_batch(data, lists, [0])
    cut = replace(batch, neighbors=nearest_of_each_type(batch, 3))
    assert int(batch.neighbors.counts.max()) > 3 == int(cut.neighbors.counts.max())
    whole, expected = (predict(potential, b, create_graph=False) for b in (batch, cut))
    for name in ("energy", "forces", "virial"):
        torch.testing.assert_close(whole[name], expected[name])


def nearest_of_each_type(batch, most):
    """The batch's list as DeePMD-kit cuts it: of the nearest of all types the nearest of each, so many a type."""
    system, near = batch.system, batch.neighbors
    lists = (near.neighbors, near.images)
    d = displacements(system.positions, system.cell, system.batch, *lists, torch.float64).norm(dim=-1)
    ntypes, counts = near.counts.shape[1], torch.zeros_like(near.counts)
    rows = [torch.full((len(d), ntypes * most), fill, dtype=torch.int32) for fill in (-1, 0)]
    for i in range(len(d)):
        found = int(near.counts[i].sum())
        nearest = d[i, :found].argsort()[: ntypes * most]
        kinds = system.types[near.neighbors[i, nearest].long()]
        places = [nearest[kinds == kind][:most] for kind in range(ntypes)]
        counts[i] = torch.tensor([len(part) for part in places])
        for row, values in zip(rows, lists, strict=True):
            row[i, : int(counts[i].sum())] = values[i, torch.cat(places)]
    return NeighborList(*rows, counts, near.cutoff)


def test_untrained_parts_and_parameters_that_do_not_fit(data, lists):
    c = config(trainable=False)
    potential = random_potential(c, data, lists)
    assert not any(p.requires_grad for p in potential.model.descriptor.parameters())
    assert len(make_optimizer(c, potential.parameters()).param_groups[0]["params"]) == len(
        list(potential.model.fitting.parameters())
    )
    extra = {"labels": {**data.labels, "fparam": np.zeros((len(data), 2))}}
    extra["present"] = {**data.present, "fparam": np.ones(len(data), dtype=bool)}
    c.model.fitting_net.numb_fparam = 3
    with pytest.raises(ConfigError, match=r"numb_fparam: is 3, and the data has 2"):
        random_potential(c, replace(data, **extra), lists)


def test_parts_of_a_configuration(data):
    c = config()
    c.learning_rate = LearningRateConfig(stop_lr_ratio=0.01, warmup_ratio=0.1)
    rate = LearningRate(c.learning_rate, 100)
    assert (rate.stop, rate.warmup, rate(0), rate(10)) == (1e-5, 10, 0, 1e-3)
    c.optimizer.type = "AdamW"
    group = make_optimizer(c, [torch.nn.Parameter(torch.zeros(1))]).param_groups[0]
    assert group["weight_decay"] == 0 and group["betas"] == (0.9, 0.99)
    c.training.training_data.auto_prob = "prob_uniform"
    assert len(make_sampler(c.training.training_data, data, seed=1)(0)) == 2
    assert make_loss(c).terms == ["energy", "forces", "virial"]
    forces = replace(data, labels={"forces": data.labels["forces"]})
    assert make_loss(c, forces).terms == ["forces"]  # what is there
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_labels(make_loss(c, data), data)
    c.loss = EnergyLossOptions()  # DeePMD-kit's defaults
    with pytest.warns(
        UserWarning, match="20 frames with virial, which the training does not use: loss.start_pref_v"
    ):
        require_labels(make_loss(c, data), data)
    with pytest.raises(DataError, match="the loss is of atom_energy"):
        require_labels(EnergyLoss({"atom_energy": Prefactor(1.0, 1.0)}), data)
    more = "20 frames with forces, 20 frames with virial, which the training does not use"
    text = "the loss is of atom_energy, too, and no frame has that label"
    with pytest.warns(UserWarning, match=text), pytest.warns(UserWarning, match=more):
        require_labels(EnergyLoss({"energy": Prefactor(1.0, 1.0), "atom_energy": Prefactor(1.0, 1.0)}), data)
    text = "the loss is not of virial: its prefactors are 0.5 and 0,"
    with pytest.warns(UserWarning, match=text), pytest.warns(UserWarning, match=more):
        require_labels(EnergyLoss({"energy": Prefactor(1.0, 1.0), "virial": Prefactor(0.5, 0.0)}), data)


def test_parameters_that_the_data_lacks_are_refused_before_the_training(data, lists):
    c = config()
    c.model.fitting_net.numb_fparam = 2
    with pytest.raises(DataError, match=r"emt: has no fparam, and model\.fitting_net\.numb_fparam is 2"):
        random_potential(c, data, lists)
    c.model.fitting_net.default_fparam = [0.0, 1.0]
    random_potential(c, data, lists)
    unwanted = {"labels": {**data.labels, "aparam": np.zeros((data.offsets[-1], 1))}}
    unwanted["present"] = {**data.present, "aparam": np.ones(len(data), dtype=bool)}
    with pytest.warns(
        UserWarning, match="the data has aparam, which model.fitting_net.numb_aparam = 0 leaves out"
    ):
        random_potential(c, replace(data, **unwanted), lists)


def test_a_model_that_sees_no_neighbours_is_refused(data):
    with pytest.raises(
        DataError, match=r"no atom has a neighbour within the model's cutoff \(rcut\) = 1 A: are positions"
    ):
        random_potential(config(rcut=1.0, rcut_smth=0.5), data, PairLists(data, 1.0))
    with pytest.raises(ConfigError, match=r"model\.descriptor\.sel: \[0, 0\] has no slot for a neighbour"):
        random_potential(config(sel=[0, 0]), data, PairLists(data, 4.0))
