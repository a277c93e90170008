"""HybridMuon and AdaMuon, against DeePMD-kit's own steps."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mdops.models.contract import decayed_of, tables_of
from mdops.train.config.sections import OptimizerConfig
from mdops.train.loop import muon
from mdops.train.loop.factories import make_optimizer, restore_optimizer
from mdops.train.loop.muon import AdaMuon, HybridMuon, _orthogonal

stacked = muon._stacked

with np.load(Path(__file__).parents[1] / "data" / "muon.npz") as file:
    ARRAYS = {name: file[name] for name in file.files}
OPTIONS = json.loads(str(ARRAYS.pop("options")))
WEIGHTS = [name.split("/")[1] for name in ARRAYS if name.startswith("default/") and name.endswith("/end")]
# What PyTorch compiles, as DeePMD-kit lets it for matrices that are not square, rounds less often to 16 bits, and GPUs'
# products sum in another order. AdaMuon divides by the size of each number, so that small ones are rounded as much.
EXACT, ROUNDED, DIVIDED = 1e-5, 1e-2, 5e-2


KINDS = {"HybridMuon": "default", "AdaMuon": "ada"}  # and a set of each


class Section:
    """What `make_optimizer` reads of an input, with the options of a set."""

    def __init__(self, name="default"):
        kind = "AdaMuon" if name.startswith("ada") else "HybridMuon"
        self.optimizer = OptimizerConfig(type=kind, **OPTIONS["sets"][name])
        self.learning_rate = type("Rate", (), {"start_lr": OPTIONS["rate"]})


def weights_of(name, device):
    return {
        key: torch.nn.Parameter(torch.tensor(ARRAYS[f"{name}/{key}/start"], device=device)) for key in WEIGHTS
    }


def take(optimizer, weights, name, steps):
    for step in steps:
        for key, p in weights.items():
            p.grad = torch.from_numpy(ARRAYS[f"{name}/{key}/gradients"][step]).to(p)
        optimizer.step()


@pytest.mark.parametrize("name", OPTIONS["sets"])
def test_steps_are_deepmd_kits(name, device):
    weights = weights_of(name, device)
    optimizer = make_optimizer(Section(name), weights.values(), [weights["table"]])
    take(optimizer, weights, name, range(5))
    ways = {id(p): group["way"] for group in optimizer.param_groups for p in group["params"]}
    for key, p in weights.items():
        start, end = ARRAYS[f"{name}/{key}/start"], ARRAYS[f"{name}/{key}/end"]
        ada = name.startswith("ada")
        by_gram = not ada and len(set(p.shape)) > 1 and OPTIONS["sets"][name].get("enable_gram", True)
        exact = ways[id(p)] != "muon" or (device == "cpu" and not by_gram)
        off = np.abs(p.detach().cpu().numpy() - end).max() / np.abs(end - start).max()
        assert off < (EXACT if exact else DIVIDED if ada else ROUNDED), (
            f"{key} ({ways[id(p)]}) is off by {off:.1e} of its change"
        )


@pytest.mark.parametrize("name", KINDS.values())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_restored_optimizer_goes_on_with_the_same_bits(name, dtype, device):
    """Also with a state that was read from a file, whose numbers are not on the GPU."""
    whole, parts = (
        {key: torch.nn.Parameter(p.detach().to(dtype)) for key, p in weights_of(name, device).items()}
        for _ in range(2)
    )
    take(make_optimizer(Section(name), whole.values(), [whole["table"]]), whole, name, range(5))
    first = make_optimizer(Section(name), parts.values(), [parts["table"]])
    take(first, parts, name, range(3))
    second = make_optimizer(Section(name), parts.values(), [parts["table"]])
    state = first.state_dict()
    of_file = {k: {name: value.cpu() for name, value in own.items()} for k, own in state["state"].items()}
    restore_optimizer(second, {**state, "state": of_file})
    take(second, parts, name, range(3, 5))
    assert all(torch.equal(whole[key], parts[key]) for key in WEIGHTS)


@pytest.mark.parametrize(("rows", "columns", "gram"), [(6, 6, False), (4, 9, True), (5, 8, False)])
def test_matrices_are_made_orthogonal(rows, columns, gram):
    x = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    found = _orthogonal(x, gram).float()
    assert found.shape == x.shape
    assert (found - u @ v).abs().max() < 0.1
    assert (torch.linalg.svdvals(found) - 1).abs().max() < 0.15


@pytest.mark.parametrize("name", OPTIONS["sets"])
def test_matrices_of_several_shapes_go_together_with_zeros_behind_them(name, monkeypatch):
    apart, together = weights_of(name, "cpu"), weights_of(name, "cpu")
    ends = []
    for weights, most in ((apart, 0), (together, 2**20)):
        with monkeypatch.context() as patch:
            patch.setattr(muon, "_stacked", lambda w, group, _, most=most: stacked(w, group, most))
            optimizer = make_optimizer(Section(name), weights.values(), [weights["table"]])
        take(optimizer, weights, name, range(5))
        (group,) = (one for one in optimizer.param_groups if one["way"] == "muon")
        ends.append(len(optimizer._stacks(group["params"], group)))
    assert ends[0] > ends[1] and ends[1] <= 2
    for key in WEIGHTS:
        moved = (apart[key].detach() - torch.from_numpy(ARRAYS[f"{name}/{key}/start"])).abs().max()
        assert (apart[key] - together[key]).abs().max() < ROUNDED * moved, key


def test_biases_decay_by_no_name():
    part = torch.nn.Module()
    for name in ("adamw_logit_w", "adamw_z_bias_raw", "adam_scale", "weight"):
        part.register_parameter(name, torch.nn.Parameter(torch.ones(2, 2)))
    assert [id(p) for p in decayed_of(part)] == [id(part.adamw_logit_w)]
    assert {id(p) for p in tables_of(part)} == {id(part.adamw_z_bias_raw), id(part.adam_scale)}


@pytest.mark.parametrize("kind", [HybridMuon, AdaMuon])
def test_weights_without_gradients_stay(kind):
    weights = weights_of("default", "cpu")
    optimizer = kind(weights.values(), 0.1)
    weights["wide"].grad = torch.ones_like(weights["wide"])
    optimizer.step()
    changed = {
        key for key, p in weights.items() if not np.array_equal(p.detach(), ARRAYS[f"default/{key}/start"])
    }
    assert changed == {"wide"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS.values())
def test_a_step_in_a_cuda_graph_is_that_without(name):
    eager, graphed = weights_of(name, "cuda"), weights_of(name, "cuda")
    take(make_optimizer(Section(name), eager.values(), [eager["table"]]), eager, name, [0, 1, 1])
    optimizer = make_optimizer(Section(name), graphed.values(), [graphed["table"]])
    take(optimizer, graphed, name, [0, 1])
    graph = torch.cuda.CUDAGraph()
    kept = {key: p.detach().clone() for key, p in graphed.items()}
    with torch.cuda.graph(graph):
        optimizer.step()
    assert all(torch.equal(kept[key], p) for key, p in graphed.items())  # a capture runs nothing
    graph.replay()
    assert all(torch.equal(eager[key], p) for key, p in graphed.items())


def test_a_state_in_float32_stays_so_beside_weights_in_float64():
    weights = [torch.nn.Parameter(torch.eye(3, dtype=torch.float64)) for _ in range(2)]
    optimizers = [HybridMuon([p], 1e-2) for p in weights]

    def step(k):
        weights[k].grad = torch.arange(9, dtype=torch.float64).view(3, 3)
        optimizers[k].step()

    step(0)
    with torch.no_grad():
        weights[1].copy_(weights[0])
    restore_optimizer(optimizers[1], copy.deepcopy(optimizers[0].state_dict()))
    step(0), step(1)
    assert torch.equal(weights[0], weights[1])
    dtypes = [
        {name: value.dtype for name, value in o.state[p].items()}
        for o, p in zip(optimizers, weights, strict=True)
    ]
    assert dtypes[0] == dtypes[1] and torch.float32 in dtypes[0].values()
