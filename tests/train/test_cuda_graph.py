"""Batches put together on a device are those of the host; steps in CUDA graphs are the steps of `train_step`."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import torch
from small_systems import EMT, alloy, small_config, write_system

from mdops import zbl
from mdops.data.device_frames import DeviceFrames, alike
from mdops.tables.spline import collocation_on
from mdops.train import load_dataset, make_batch
from mdops.train.config.read import parse_config
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.cuda_graph import largest_groups, step_graphs
from mdops.train.loop.factories import make_loss, make_optimizer, restore_optimizer
from mdops.train.loop.schedule import WeightAverage
from mdops.train.loop.update import train_step, use_training_spline
from mdops.train.loss.base import label_counts
from mdops.train.model.random import random_potential

CONFIG = small_config(loss={"start_pref_v": 0.1, "limit_pref_v": 0.1}, training={"smoothing": 0.1})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two kinds of frames: 20 of 32 atoms, and 5 of 8."""
    small = write_system(tmp_path_factory.mktemp("data") / "small", alloy(5))
    return load_dataset([EMT, small], ["Cu", "Al"])


def flat(batch):
    """All tensors of a batch, by name."""
    parts = {**vars(batch.system), **batch.neighbors._asdict(), **batch.labels, "sizes": batch.sizes}
    parts |= {f"has {name}": value for name, value in batch.present.items()}
    parts |= {f"kind {k}": value for k, value in enumerate(batch.system.known_atoms_by_type())}
    return {name: value for name, value in parts.items() if isinstance(value, torch.Tensor)}


def test_batches_on_a_device_are_those_of_the_host(data, lists):
    seen = 0
    for frames in alike(data):
        group = DeviceFrames(data, lists, frames, torch.device("cpu"))
        chosen = frames[[-1, 0, -1]]
        places = group.places(chosen)
        assert places is not None
        found, expected = flat(group.batch(places)), flat(make_batch(data, lists, chosen))
        width = expected["neighbors"].shape[1]
        assert bool((found["neighbors"][:, width:] == -1).all())
        for name in ("neighbors", "images"):
            found[name] = found[name][:, :width]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
        most = max(int(lists.gather([frame]).counts.sum()) for frame in frames)
        assert group.batch(places).neighbors.max_pairs == len(chosen) * most
        seen += len(frames)
    assert seen == len(data)


def test_frames_of_another_kind_have_no_place(data, lists):
    groups = list(alike(data))
    assert len(groups) > 1
    group = DeviceFrames(data, lists, groups[0], torch.device("cpu"))
    assert group.places(groups[1][:1]) is None
    assert group.places(np.array([groups[0][0], groups[1][0]])) is None


def test_frames_of_any_order_of_types_have_few_graphs(data):
    """Each capture takes memory and some ten steps' time."""
    types, many = data.types[data.atoms(0)], 600
    random = np.random.default_rng(0)
    shuffled = [types] * 3 + [random.permutation(types) for _ in range(many)]
    frames = dataclasses.replace(
        data,
        types=np.concatenate(shuffled),
        offsets=np.arange(len(shuffled) + 1) * len(types),
        present={name: np.ones(len(shuffled), bool) for name in data.present},
    )
    groups = largest_groups(frames)
    assert len(groups) <= 256 and groups[0].tolist() == [0, 1, 2]
    assert len(largest_groups(data)) == 2


def test_there_are_no_graphs_without_a_gpu(data, lists):
    potential = random_potential(CONFIG, data, lists)
    use_training_spline(potential, 2.0)
    optimizer = make_optimizer(CONFIG, potential.parameters())
    assert (
        step_graphs(
            potential,
            make_loss(CONFIG),
            optimizer,
            data,
            lists,
            average=None,
            max_norm=None,
            reduce_gradients=None,
        )
        is None
    )


def test_an_optimizer_is_restored_with_what_belongs_to_its_device(data, lists):
    potential = random_potential(CONFIG, data, lists)
    optimizer = make_optimizer(CONFIG, potential.parameters())
    for p in potential.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    state = optimizer.state_dict()
    state["param_groups"][0] |= {"lr": torch.tensor(0.5), "capturable": True}
    again = make_optimizer(CONFIG, potential.parameters())
    restore_optimizer(again, state)
    group = again.param_groups[0]
    assert group["lr"] == CONFIG.learning_rate.start_lr and not group["capturable"]
    first = next(iter(again.state.values()))
    assert float(first["step"]) == 1 and float(first["exp_avg"].max()) > 0


ATTENTION = {
    "type": "dpa1", "sel": 60, "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 3, "tebd_dim": 4,
    "attn": 6, "attn_layer": 2, "smooth_type_embedding": True,
}  # fmt: skip

RADIAL = {"type": "se_e2_r", "sel": [60, 60], "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8]}
ANGULAR = {**RADIAL, "type": "se_e2_a", "axis_neuron": 3}
ANGLES = {**RADIAL, "type": "se_e3"}
SHARED = {k: v for k, v in ATTENTION.items() if k != "smooth_type_embedding"} | {"attn_layer": 0}
KINDS = {
    "se_e2_a": None,
    "dpa1": ATTENTION,
    "se_e2_r": RADIAL,
    "se_e3": ANGLES,
    "hybrid": {"type": "hybrid", "list": [ANGULAR, RADIAL]},
    "hybrid_angles": {"type": "hybrid", "list": [RADIAL, ANGLES]},
    "hybrid_mixed": {"type": "hybrid", "list": [SHARED, {**SHARED, "type": "se_atten_v2"}]},
}


@pytest.mark.gpu
@pytest.mark.parametrize("descriptor", KINDS.values(), ids=KINDS)
def test_steps_in_graphs_are_the_steps_of_the_host(data, lists, descriptor):
    """With gradients that are cut, smoothed nets, averages, rates that change, two kinds of batch in turn, and
    what the graphs read gone from caches."""
    config = CONFIG
    if descriptor is not None:
        config = small_config(
            loss={"start_pref_v": 0.1, "limit_pref_v": 0.1},
            training={},
            descriptor={**dict.fromkeys(("rcut", "rcut_smth", "neuron", "axis_neuron")), **descriptor},
        )
    _check_steps(config, data, lists)


@pytest.mark.gpu
def test_steps_with_coefficients_and_relative_forces(data, lists):
    """Also with weights of forces that are implied."""
    own = dataclasses.replace(data, labels=dict(data.labels), present=dict(data.present))
    own.labels["atom_ener_coeff"] = np.random.default_rng(0).uniform(-1, 2, len(data.types))
    own.present["atom_ener_coeff"] = np.ones(len(data), dtype=bool)
    keys = {"start_pref_pf": 1.0, "limit_pref_pf": 1.0, "use_default_pf": True, "relative_f": 0.3}
    config = small_config(loss={**keys, "enable_atom_ener_coeff": True})
    assert "atom_pref" in make_loss(config, own).terms
    _check_steps(config, own, lists)


@pytest.mark.gpu
def test_steps_of_adapters(data, lists):
    descriptor = {"rcut": 3.5, "channels": 4, "n_radial": 4, "lmax": 1, "n_blocks": 1, "mixing_layers": 2}
    config = small_config(
        descriptor={**dict.fromkeys(("rcut_smth", "neuron", "axis_neuron")), **descriptor},
        model={"type": "dpa4", "lora": {"rank": 2, "alpha": 3.0}},
    )
    _check_steps(config, data, lists)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*not zero at the cutoff")
@pytest.mark.parametrize("name", ["linear_ener", "zbl"])
def test_steps_of_blends_with_attention(data, lists, name, tmp_path):
    config = _blend_with_attention(name, tmp_path)
    _check_steps(config, data, lists)


@pytest.mark.filterwarnings("ignore:.*not zero at the cutoff")
@pytest.mark.parametrize("name", ["linear_ener", "zbl"])
def test_blends_with_attention_are_captured_where_their_parts_are(data, lists, name, tmp_path):
    potential = random_potential(_blend_with_attention(name, tmp_path), data, lists)
    assert potential.model.captures
    part = potential.model.models[0]
    with mock.patch.object(type(part), "captures", False):
        assert not potential.model.captures


def _blend_with_attention(name, folder):
    part = {"descriptor": ATTENTION, "fitting_net": {"neuron": [12, 12]}}
    model = {"type": name, "weights": [0.5, 2.0], "models": [part, {**part, "descriptor": SHARED}]}
    if name == "zbl":
        table = folder / "zbl.txt"
        zbl.write_table(table, ["Cu", "Al"], zbl.table(["Cu", "Al"]))
        # Some atoms of the data are between both distances.
        model = {**part, "use_srtab": str(table), "sw_rmin": 2.0, "sw_rmax": 2.9}
    data = {"systems": str(EMT), "batch_size": 2}
    sections = {
        "model": {"type_map": ["Cu", "Al"], **model},
        "training": {"training_data": data, "numb_steps": 10},
    }
    return parse_config(sections | {"loss": {"start_pref_v": 0.1, "limit_pref_v": 0.1}})


def _check_steps(config, data, lists):
    groups = list(alike(data))[:2]
    loss, weights = make_loss(config), []
    for device in ("cpu", "cuda"):
        potential = random_potential(config, data, lists, dtype=torch.float64)
        use_training_spline(potential, 2.0)
        potential.to(device)
        lora, trained, adapters = getattr(config.model, "lora", None), potential.parameters(), None
        if lora is not None:
            adapters = Adapters(potential.model.adapt(), lora, 0)
            trained = adapters.trained_of(trained)
        trained = list(trained)
        optimizer, average = make_optimizer(config, trained), WeightAverage(trained, 0.9)
        graphs = step_graphs(
            potential,
            loss,
            optimizer,
            data,
            lists,
            average=average,
            max_norm=1.0,
            reduce_gradients=None,
            adapters=adapters,
        )
        assert (graphs is not None) == (device == "cuda")
        for step in range(12):
            if step == 6 and device == "cuda":  # as the knots of eight other models would
                collocation_on.cache_clear()
                torch.cuda.empty_cache()
            frames = groups[step % 2][[step % 3, 0]]
            batch = make_batch(data, lists, frames)
            rate = 1e-3 / (1 + step)
            if graphs is None:
                options = {"rate": rate, "fraction": 1 / (1 + step), "max_norm": 1.0, "adapters": adapters}
                value, _ = train_step(potential, loss, optimizer, batch, **options)
                average.update()
            else:
                value, result, _ = graphs(frames, label_counts(batch), rate, 1 / (1 + step))
                assert result["forces"].shape == batch.labels["forces"].shape
        weights.append(
            [float(value), *(t.detach().cpu() for t in [*potential.parameters(), *average.values])]
        )
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
