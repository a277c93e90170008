"""Every frame comes once in an epoch, and a step's frames follow from its number alone."""

import numpy as np
import pytest
from small_systems import alloy, write_system

from mdops.data.labels import labels_of
from mdops.data.sampler import Sampler, batch_sizes
from mdops.data.spins import with_spins
from mdops.errors import ConfigError
from mdops.models.contract import ENERGY
from mdops.models.spin import Spin
from mdops.train import load_dataset


@pytest.fixture
def data(tmp_path):
    write_system(tmp_path / "a", alloy(5, repeat=(1, 1, 1)))
    write_system(tmp_path / "b", alloy(2))
    return load_dataset(tmp_path, ["Cu", "Al"])  # 5 frames of 4 atoms, 2 of 8


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        (3, [3, 3]),
        ([1, 2], [1, 2]),
        ("auto", [8, 4]),
        ("auto:9", [3, 2]),
        ("max:9", [2, 1]),
        ("mixed:4", [4, 4]),
    ],
)
def test_batch_sizes(data, rule, sizes):
    assert batch_sizes(data, rule) == sizes


@pytest.mark.parametrize("rule", ["auto:16", "max:16"])
def test_virtual_atoms_of_spins_do_not_make_batches_smaller(tmp_path, rule):
    """DeePMD-kit's sizes of batches are by real atoms."""
    write_system(tmp_path / "a", alloy(5, repeat=(1, 1, 1)))
    np.save(tmp_path / "a" / "set.000" / "spin.npy", np.ones((5, 12)))
    data = load_dataset(tmp_path / "a", ["Cu", "Al"], known=labels_of((ENERGY,), True))
    paired = with_spins(data, Spin((True, False), (0.3, 0.0)))
    assert paired.sizes().tolist() == [8] * 5
    assert batch_sizes(paired, rule) == batch_sizes(data, rule) == [4]


def test_an_epoch_has_every_frame_once(data):
    sampler = Sampler(data, 2, seed=1)
    assert sampler.batches == 4
    for epoch in range(3):
        frames = [sampler(4 * epoch + k) for k in range(4)]
        assert sorted(np.concatenate(frames)) == list(range(7))
        assert all(len(set(data.system[f])) == 1 and len(f) <= 2 for f in frames)
    mixed = Sampler(data, "mixed:7", seed=1)
    assert mixed.batches == 1 and sorted(mixed(0)) == list(range(7))


def test_an_epoch_draws_every_system_as_often_as_it_has_batches(data):
    """DeePMD-kit's number of steps for numb_epoch 1."""
    sizes = [int((data.system == k).sum()) for k in range(2)]
    assert Sampler(data, 1, seed=1).epoch == sum(sizes)
    for odds in ([1.0, 0.0], [0.25, 0.75], [3.0, 1.0]):
        wanted = max(n * sum(odds) / share for n, share in zip(sizes, odds, strict=True) if share)
        assert Sampler(data, 1, seed=1, odds=odds).epoch == np.ceil(wanted)


def test_steps_need_no_history(data):
    one, two = Sampler(data, 2, seed=1), Sampler(data, 2, seed=1)
    frames = [one(step).tolist() for step in range(12)]
    assert two(9).tolist() == frames[9] and two(2).tolist() == frames[2]
    assert [Sampler(data, 2, seed=2)(step).tolist() for step in range(12)] != frames


def test_odds_of_systems(data):
    sampler = Sampler(data, 2, seed=1, odds=[0.0, 1.0])
    assert all((data.system[sampler(step)] == 1).all() for step in range(8))


@pytest.mark.parametrize(
    "rule", ["auto:x", "some", "auto:0", "max:0", "mixed:0", "mixed", "auto:", [1], 0, [2, 0]]
)
def test_wrong_rules_are_refused(data, rule):
    with pytest.raises(ConfigError, match="batch_size"):
        Sampler(data, rule, seed=0)


@pytest.mark.parametrize(
    ("rule", "odds"), [(1, [1.0]), (1, [0.0, 0.0]), (1, [2.0, -1.0]), ("mixed:2", [1.0, 1.0])]
)
def test_wrong_odds_are_refused(data, rule, odds):
    with pytest.raises(ConfigError, match="sys_probs"):
        Sampler(data, rule, seed=0, odds=odds)
