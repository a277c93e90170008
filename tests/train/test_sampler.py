"""Every frame comes once in an epoch, and a step's frames follow from its number alone."""

import numpy as np
import pytest
from small_systems import alloy, write_system

from mdops.data.labels import labels_of
from mdops.data.sampler import Sampler, batch_sizes, blocks_of, most_atoms, system_odds
from mdops.data.spins import with_spins
from mdops.errors import ConfigError, DataError, InputError
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
        ("max:5", [1, 1]),
        ("filter:9", [2, 1]),
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


def test_largest_is_that_of_the_batches_that_are_drawn(data):
    """5 frames in batches of up to 4 are 3 and 2 in an epoch, and with odds of the systems 4."""
    for odds, largest in ((None, 3), ([1.0, 1.0], 4), ([0.0, 1.0], 2)):
        sampler = Sampler(data, 4, seed=1, odds=odds)
        assert sampler.largest == largest == max(len(sampler(step)) for step in range(30))


@pytest.mark.parametrize(
    "rule",
    [
        *("auto:x", "some", "auto:0", "max:0", "mixed:0", "mixed", "auto:", [1], 0, [2, 0]),
        *("filter", "filter:", "filter:0", "filter:-3", "filter:2.5", "mix", "mix:0"),
    ],
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


SYSTEMS = [(7, 4), (3, 8), (5, 12), (4, 2), (9, 6)]  # frames and atoms
# The sizes of batches, the probabilities of systems and the steps of an epoch from tests/data/make_sampling.py.
DEEPMD = [
    (1, "prob_sys_size", [1] * 5, [1 / 4, 3 / 28, 5 / 28, 1 / 7, 9 / 28], 28),
    (2, "prob_sys_size;0:2:0.3;2:5:0.7", [2] * 5, [0.2, 0.1, 0.21, 0.14, 0.35], 20),
    (
        *("auto:16", "prob_sys_size;0:2:3;2:5:1", [4, 2, 2, 8, 3]),
        *([0.375, 0.375, 0.107142857142857, 0.035714285714286, 0.107142857142857], 28),
    ),
    (
        *(2, "prob_sys_size;0:3:0.5;1:5:0.5", [2] * 5),
        *(
            [0.307692307692308, 0.115384615384615, 0.173076923076923, 0.115384615384615, 0.288461538461538],
            18,
        ),
    ),
    (2, "prob_sys_size;0:1:0.25;3:4:0.75", [2] * 5, [0.25, 0.0, 0.0, 0.75, 0.0], 16),
    (
        *(2, "prob_sys_size;-2:5:0.5;0:-2:0.5", [2] * 5),
        *(
            [0.222222222222222, 0.111111111111111, 0.166666666666667, 0.142857142857143, 0.357142857142857],
            18,
        ),
    ),
    (
        *(2, "prob_sys_size;0:2:0.5;2:99:0.5", [2] * 5),
        *([0.333333333333333, 0.166666666666667, 0.15, 0.1, 0.25], 20),
    ),
    (2, "prob_sys_size;0:2:0.5;7:9:0.5", [2] * 5, [0.666666666666667, 0.333333333333333, 0.0, 0.0, 0.0], 6),
    (
        *("max:9", "prob_sys_size;0:2:0;2:5:1", [2, 1, 1, 4, 1]),
        *([0.0, 0.0, 0.333333333333333, 0.066666666666667, 0.6], 15),
    ),
    (
        *("filter:8", "prob_sys_size", [2, 1, 4, 1]),
        *([0.235294117647059, 0.176470588235294, 0.058823529411765, 0.529411764705882], 17),
    ),
    (
        *("filter:8", "prob_sys_size;0:2:0.5;2:4:0.5", [2, 1, 4, 1]),
        *([0.285714285714286, 0.214285714285714, 0.05, 0.45], 20),
    ),
    ("filter:4", "prob_uniform", [1, 2], [0.5, 0.5], 14),
]


def write_sizes(folder):
    """SYSTEMS as folders of DeePMD-kit."""
    for k, (frames, atoms) in enumerate(SYSTEMS):
        path = folder / str(k)
        (path / "set.000").mkdir(parents=True)
        (path / "type.raw").write_text("0\n" * atoms)
        (path / "type_map.raw").write_text("Cu\n")
        np.save(path / "set.000" / "coord.npy", np.random.default_rng(k).uniform(0, 9, (frames, 3 * atoms)))
        np.save(path / "set.000" / "box.npy", np.tile(9 * np.eye(3).ravel(), (frames, 1)))
        np.save(path / "set.000" / "energy.npy", np.zeros(frames))
    return folder


@pytest.mark.parametrize(("rule", "style", "sizes", "shares", "epoch"), DEEPMD)
@pytest.mark.filterwarnings("ignore:auto_prob", "ignore:.*frames are left out")
def test_probabilities_and_epochs_are_those_of_deepmd_kit(tmp_path, rule, style, sizes, shares, epoch):
    data = load_dataset(write_sizes(tmp_path), ["Cu"], most_atoms=most_atoms(rule))
    odds = system_odds(data, rule, style)
    sampler = Sampler(data, rule, seed=3, odds=odds)
    assert batch_sizes(data, rule) == sizes and sampler.epoch == epoch
    steps = 200 * sampler.batches
    drawn = np.zeros(len(sizes))
    for step in range(steps):
        (system,) = set(data.system[sampler(step)])
        drawn[system] += 1
    if odds is None:
        np.testing.assert_allclose(drawn / steps, shares, rtol=0, atol=1e-14)
    else:
        np.testing.assert_allclose(np.array(odds) / sum(odds), shares, rtol=0, atol=1e-14)
        np.testing.assert_allclose(drawn / steps, shares, rtol=0, atol=0.03)
        assert not drawn[np.array(shares) == 0].any()


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (
            "prob_sys_size;0:3:0.5;1:5:0.5",
            "2 of 5 systems are in several blocks, of which the last one counts",
        ),
        ("prob_sys_size;0:1:0.5;3:4:0.5", "3 of 5 systems are in no block and not drawn; the first is .*1$"),
        (
            "prob_sys_size;0:5:0.5;7:9:0.5",
            "7:9:0.5 has no effect: it has no batches, and there are 5 systems",
        ),
    ],
)
def test_odd_blocks_give_a_warning(tmp_path, style, message):
    data = load_dataset(write_sizes(tmp_path), ["Cu"])
    with pytest.warns(UserWarning, match=message) as caught:
        system_odds(data, 1, style)
    assert len(caught) == 1


@pytest.mark.parametrize("style", ["prob_sys_size;7:9:1", "prob_sys_size;0:5:0;7:9:1", "prob_sys_size;3:2:1"])
@pytest.mark.filterwarnings("ignore:auto_prob")
def test_blocks_without_batches_are_refused(tmp_path, style):
    data = load_dataset(write_sizes(tmp_path), ["Cu"])
    with pytest.raises(ConfigError, match="no block with a weight has batches of the 5 systems"):
        system_odds(data, 1, style)


@pytest.mark.parametrize(
    ("style", "message"),
    [
        *((style, "expected .prob_sys_size., .prob_uniform. or") for style in (
            "prob_size", "", "prob_uniform;0:1:1", "blocks;0:1:1", "prob_sys_size;", "prob_sys_size;0:1",
            "prob_sys_size;0:1:1;", "prob_sys_size;0:1:0.5:2", "prob_sys_size;0.5:1:1", "prob_sys_size;:1:1",
            "prob_sys_size;0:1:half",
        )),
        *((f"prob_sys_size;{blocks}", "expected weights of 0 or more, one of them above 0") for blocks in (
            "0:1:-1", "0:1:0", "0:1:nan", "0:1:inf", "0:1:2;1:2:-1",
        )),
    ],
)  # fmt: skip
def test_wrong_blocks_are_refused(style, message):
    with pytest.raises(ConfigError, match=f"^auto_prob: is .*, {message}"):
        blocks_of(style)


def test_large_systems_are_left_out_with_their_names(tmp_path):
    folder = write_sizes(tmp_path)
    with pytest.warns(UserWarning, match=r"17 of 28 frames .* more than 5 atoms: .*1, .*2, .*4$"):
        data = load_dataset(folder, ["Cu"], most_atoms=5)
    assert [name[-1] for name in data.systems] == ["0", "3"] and len(data) == 11
    assert len(load_dataset(folder, ["Cu"], most_atoms=12)) == 28
    with pytest.raises(DataError, match="no frame is left: all 28 have more than 1 atoms"):
        load_dataset(folder, ["Cu"], most_atoms=1)
    with pytest.raises(InputError, match=r"most_atoms is 2\.5, expected a whole number"):
        load_dataset(folder, ["Cu"], most_atoms=2.5)
