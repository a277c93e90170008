"""New models have DeePMD-kit's distributions of weights, and random numbers of their own in each net and layer."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from mdops.models.registry import find
from mdops.train.config.read import parse_config

SEEDS = 40
NEURON = {"neuron": [6, 12, 24], "resnet_dt": True, "sel": [10, 20]}
DESCRIPTORS = [
    {"type": "se_e2_a", "axis_neuron": 4, "type_one_side": False},
    {"type": "se_e2_r"},
    {"type": "se_e3"},
]


def weights(descriptor, seed):
    model = {
        "type_map": ["O", "H"],
        "descriptor": NEURON | descriptor,
        "fitting_net": {"neuron": [30, 30], "resnet_dt": True},
    }
    training = {"training_data": {"systems": "x"}, "numb_steps": 1}
    options = parse_config({"model": model, "training": training}).model
    made = find("model", options.KIND).random(options, seed, torch.float64)
    return {name: p.detach().numpy() for name, p in made.named_parameters()}


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda d: d["type"])
def test_distributions_and_independence(descriptor):
    drawn = [weights(descriptor, seed) for seed in range(SEEDS)]
    again = weights(descriptor, 0)
    assert all(np.array_equal(drawn[0][name], value) for name, value in again.items())
    standard = {}
    for name in drawn[0]:
        values = np.stack([w[name] for w in drawn])
        if name.endswith("weight"):
            values = values * np.sqrt(sum(values.shape[1:]))
        elif name.endswith("timestep"):
            values = (values - 0.1) / 0.001
        standard[name] = values.reshape(SEEDS, -1)
    for ending in ("weight", "bias", "timestep"):
        pooled = np.concatenate([v.ravel() for name, v in standard.items() if name.endswith(ending)])
        assert len(pooled) > 500 and kstest(pooled, "norm").pvalue > 1e-3, ending
    # Numbers at the same place of two tensors, over all seeds; and of one tensor for successive seeds.
    pairs = itertools.chain(
        itertools.combinations(standard.values(), 2), ((v[1:], v[:-1]) for v in standard.values())
    )
    for a, b in pairs:
        n = min(a.shape[1], b.shape[1])
        products = (a[:, :n] * b[:, :n]).ravel()
        assert abs(products.mean()) < 5 / np.sqrt(len(products))
