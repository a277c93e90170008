"""The short ways to forces give the numbers and weight gradients of plain autograd."""

import numpy as np
import pytest
import torch
from small_systems import new_model, small_config

from mdops.errors import InputError
from mdops.evaluators import Autograd
from mdops.evaluators.from_moments import MomentTraining
from mdops.evaluators.one_op import FusedTraining
from mdops.evaluators.splines import Splines
from mdops.nn.net import NetCollection
from mdops.train import make_batch
from mdops.train.loop.prediction import predict
from mdops.train.loop.update import use_training_spline

R_MIN = 1.5


def model(data, lists, fitting=None, axis=3, **options):
    fitting = {"neuron": [12, 12, 24], **(fitting or {})}
    config = small_config(descriptor={"axis_neuron": axis}, fitting=fitting, model=options)
    potential = new_model(config, data, lists)
    use_training_spline(potential, R_MIN)
    return potential


def answers(kind, potential, batch, **options):
    """What an evaluator of that kind gives, with sums."""
    found, _ = kind(potential)(batch.system, batch.neighbors, batch.fparam, batch.aparam, **options)
    return potential.with_sums(found, batch.system)


def agree(potential, batch, kind, terms=("energy", "forces", "virial"), rtol=1e-9):
    short, long = answers(kind, potential, batch), answers(Splines, potential, batch, create_graph=True)
    for name, value in long.items():
        torch.testing.assert_close(short[name], value, rtol=0.01 * rtol, atol=0.01 * rtol)
    for a, b in zip(*(weight_gradients(potential, r, terms) for r in (short, long)), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=0.1 * rtol * float(b.abs().max()))


def weight_gradients(potential, result, terms):
    """Of a sum over the results in which every number has a weight of its own."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=torch.float64)
    for name in terms:
        value = result[name]
        total = total + (value * torch.randn(value.shape, generator=generator, dtype=value.dtype)).sum()
    return torch.autograd.grad(total, list(potential.parameters()), allow_unused=True, materialize_grads=True)


WAYS = pytest.mark.parametrize("way", [FusedTraining, MomentTraining])


@WAYS
@pytest.mark.parametrize(
    "terms", [["energy"], ["atom_energy"], ["forces"], ["virial"], ["energy", "forces", "virial"]]
)
@pytest.mark.parametrize("fitting", [{}, {"resnet_dt": False}])
def test_all_ways_agree(data, lists, way, fitting, terms):
    potential = model(data, lists, fitting)
    assert isinstance(potential.evaluator("train"), FusedTraining)
    agree(potential, make_batch(data, lists, np.array([0, 5, 7])), way, terms)


@pytest.mark.parametrize("axis, fitting", [(1, [5]), (3, [7, 14, 14]), (8, [12, 12])])
def test_the_op_takes_nets_of_any_shape(data, lists, axis, fitting):
    potential = model(data, lists, {"neuron": fitting}, axis=axis)
    agree(potential, make_batch(data, lists, np.array([2, 3])), FusedTraining)


@pytest.mark.parametrize("options", [{"pair_exclude_types": [[0, 1]]}, {"atom_exclude_types": [1]}])
def test_the_op_leaves_out_types(data, lists, options):
    potential = model(data, lists, **options)
    assert isinstance(potential.evaluator("train"), FusedTraining)
    potential.use_spline(R_MIN, 1e-10)  # the long way has the nets themselves where neighbours are absent,
    potential.smoothing = 0.0  # and does not bend the nets of the pairs left out
    agree(potential, make_batch(data, lists, np.array([0, 5])), FusedTraining, rtol=1e-7)


def test_one_fitting_net_for_all_types(data, lists):
    potential = model(data, lists)
    fitting = potential.model.fitting
    fitting.nets = NetCollection([fitting.nets[0]], 0, 2, "fitting_network")
    agree(potential, make_batch(data, lists, np.array([4])), FusedTraining)


def test_a_frame_without_atoms_of_one_type(data, lists):
    potential = model(data, lists)
    batch = make_batch(data, lists, np.array([0]))
    batch.system.types.clamp_(max=0)
    batch.neighbors.counts[:, 0] += batch.neighbors.counts[:, 1]
    batch.neighbors.counts[:, 1] = 0
    potential.overflow = "extend"
    agree(potential, batch, FusedTraining)


@WAYS
def test_all_ways_agree_with_frame_parameters(data, lists, way):
    potential = model(data, lists)
    extended = potential.model.fitting
    extended.fparam.average = torch.zeros(2, dtype=torch.float64)
    extended.fparam.inverse_deviation = torch.ones(2, dtype=torch.float64)
    for net in extended.nets:
        first = net.layers[0]
        more = 0.1 * torch.ones(2, first.outputs, dtype=torch.float64)
        first.weight = torch.nn.Parameter(torch.cat([first.weight.detach(), more]))
    batch = make_batch(data, lists, np.array([1, 6]))
    batch.fparam = torch.tensor([[0.3, -0.2], [1.0, 0.5]], dtype=torch.float64)
    agree(potential, batch, way)


def test_the_number_of_threads_does_not_matter(data, lists):
    potential = model(data, lists)
    batch, threads, found = make_batch(data, lists, np.arange(6)), torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            result = predict(potential, batch)
            found.append([*result.values(), *weight_gradients(potential, result, list(result))])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11 * float(a.detach().abs().max()))


def test_other_models_take_the_long_way(data, lists):
    potential = model(data, lists, {"activation_function": "gelu"})
    assert isinstance(potential.evaluator("train"), Autograd)
    predict(potential, make_batch(data, lists, np.array([0])))["forces"].sum().backward()


@WAYS
def test_short_ways_refuse_and_warn_as_the_long_one(data, lists, way):
    potential = model(data, lists)
    batch = make_batch(data, lists, np.array([0]))
    use_training_spline(potential, 5.0)
    with pytest.warns(UserWarning, match=r"nearer than 4.5 A.* Training data with such pairs"):
        answers(way, potential, batch)
    batch.system.positions[batch.neighbors.neighbors[0, 0].long()] = batch.system.positions[0]
    batch.neighbors.images[:] = 0
    with pytest.raises(InputError, match="are at the same place"):
        answers(way, potential, batch)
