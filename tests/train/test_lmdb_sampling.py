"""Which frames of LMDB datasets make batches: blocks of `auto_prob`, and batches of similar sizes ("mix:n")."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from test_lmdb import encoded, lmdb, msgpack
from test_sampler import write_sizes

from mdops.data.dataset import load_dataset
from mdops.data.lmdb_file import systems_of_lmdb
from mdops.data.sampler import Sampler, most_atoms
from mdops.errors import ConfigError, DataError
from mdops.train.loop.factories import make_sampler

FRAMES = [
    (0, 4, 7),
    (1, 8, 3),
    (1, 4, 2),
    (2, 12, 5),
    (3, 2, 4),
    (4, 6, 9),
]  # system, atoms, number of frames
# fmt: off
# The batches of an epoch, and the frames in it by their system and size, from tests/data/make_lmdb_sampling.py.
DEEPMD = [
    (2, "prob_sys_size", 17, {(0, 4): 7, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 4, (4, 6): 9}),
    (2, "prob_uniform", 17, {(0, 4): 7, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 4, (4, 6): 9}),
    (
        2,
        "prob_sys_size;0:2:0.3;2:5:0.7",
        21,
        {(0, 4): 7, (1, 4): 2, (1, 8): 3, (2, 12): 8, (3, 2): 6, (4, 6): 14},
    ),
    (
        "auto:16",
        "prob_sys_size;0:2:3;2:5:1",
        25,
        {(0, 4): 32, (1, 4): 9, (1, 8): 13, (2, 12): 5, (3, 2): 4, (4, 6): 9},
    ),
    (
        3,
        "prob_sys_size;0:3:0.5;1:5:0.5",
        15,
        {(0, 4): 19, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 4, (4, 6): 9},
    ),
    (
        2,
        "prob_sys_size;0:1:0.25;3:4:0.75",
        26,
        {(0, 4): 7, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 21, (4, 6): 9},
    ),
    (
        "max:9",
        "prob_sys_size;0:2:0;2:5:1",
        23,
        {(0, 4): 7, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 4, (4, 6): 9},
    ),
    (
        "filter:8",
        "prob_sys_size;0:2:0.5;2:3:0.2;3:5:0.3",
        24,
        {(0, 4): 13, (1, 4): 4, (1, 8): 5, (3, 2): 4, (4, 6): 9},
    ),
    ("mix:20", "prob_sys_size", 13, {(0, 4): 7, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 4, (4, 6): 9}),
    ("mix:5", "prob_sys_size", 28, {(0, 4): 7, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 4, (4, 6): 9}),
    (
        "mix:24",
        "prob_sys_size;0:1:0.5;1:5:0.5",
        11,
        {(0, 4): 23, (1, 4): 2, (1, 8): 3, (2, 12): 5, (3, 2): 4, (4, 6): 9},
    ),
]
# fmt: on


def write(path, **head):
    frames = [(system, atoms) for system, atoms, number in FRAMES for _ in range(number)]
    of_frames = {"frame_system_ids": [system for system, _ in frames]}
    known = {"nframes": len(frames), "frame_idx_fmt": "012d", "type_map": ["Cu"], **of_frames, **head}
    random = np.random.default_rng(0)
    with lmdb.open(str(path), map_size=1 << 24) as file, file.begin(write=True) as transaction:
        for k, (_, atoms) in enumerate(frames):
            arrays = {"atype": np.zeros(atoms, np.int64), "coord": random.uniform(0, 9, (atoms, 3))}
            arrays |= {"box": 9 * np.eye(3), "energy": np.zeros(1)}
            record = {name: encoded(values, values.dtype.str) for name, values in arrays.items()}
            transaction.put(f"{k:012d}".encode(), msgpack.packb(record))
        transaction.put(b"__metadata__", msgpack.packb(known))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write(tmp_path_factory.mktemp("sampling") / "data.lmdb")


def sampler_of(place, rule, style, seed=3):
    data = load_dataset(place, ["Cu"], most_atoms=most_atoms(rule))
    section = SimpleNamespace(sys_probs=None, batch_size=rule, auto_prob=style)
    return data, make_sampler(section, data, seed)


@pytest.mark.parametrize(("rule", "style", "batches", "wanted"), DEEPMD)
@pytest.mark.filterwarnings("ignore:auto_prob", "ignore:.*frames are left out")
def test_an_epoch_has_the_frames_of_deepmd_kit(place, rule, style, batches, wanted):
    data, sampler = sampler_of(place, rule, style)
    ids = systems_of_lmdb(place)
    number = np.arange(len(data)) - np.array([first for _, first in data.sources])[data.source]
    assert sampler.batches == sampler.epoch == batches
    for epoch in range(3):
        plan = [sampler(step) for step in range(epoch * batches, (epoch + 1) * batches)]
        assert max(map(len, plan)) <= sampler.largest
        times = np.bincount(np.concatenate(plan), minlength=len(data))
        found = Counter()
        for frame, count in enumerate(times):
            found[int(ids[number[frame]]), int(data.sizes()[frame])] += int(count)
        # Systems of one block that have frames of one size share the copies of these at random.
        for of in (lambda key: key[1], lambda key: key[0] if key[0] > 1 else 0):
            sums = [Counter(), Counter()]
            for counts, total in zip((found, wanted), sums, strict=True):
                for key, count in counts.items():
                    total[of(key)] += count
            assert sums[0] == sums[1]
        for kind in found:
            own = times[(ids[number] == kind[0]) & (data.sizes() == kind[1])]
            assert own.max() - own.min() <= 1 and own.min() >= 1


@pytest.mark.parametrize("most", [5, 24, 40])
def test_batches_of_similar_sizes_keep_their_room(place, most):
    data, sampler = sampler_of(place, f"mix:{most}", "prob_sys_size")
    plan = [sampler(step) for step in range(sampler.batches)]
    sizes = [data.sizes()[frames] for frames in plan]
    assert all(len(own) == 1 or len(own) * own.max() <= most for own in sizes)
    assert sorted(np.concatenate(plan)) == list(range(len(data)))
    assert any(len(set(own)) > 1 for own in sizes) == (most > 5)
    other = [sampler(step) for step in range(sampler.batches, 2 * sampler.batches)]
    assert [list(own) for own in plan] != [list(own) for own in other]
    again = sampler_of(place, f"mix:{most}", "prob_sys_size")[1]
    assert all(np.array_equal(again(step), frames) for step, frames in enumerate(plan))


def test_batches_of_similar_sizes_of_folders(tmp_path):
    data = load_dataset(write_sizes(tmp_path), ["Cu"])
    sampler = Sampler(data, "mix:24", seed=0)
    plan = [sampler(step) for step in range(sampler.batches)]
    assert all(len(frames) * data.sizes()[frames].max() <= 24 for frames in plan)
    assert sorted(np.concatenate(plan)) == list(range(len(data)))
    with pytest.raises(ConfigError, match=r'sys_probs .*: batches of the size "mix:n" are of any systems'):
        Sampler(data, "mix:24", seed=0, odds=[1.0] * 5)


def test_epochs_have_as_many_batches_if_copies_of_several_sizes_need_more_or_fewer(place):
    _, sampler = sampler_of(place, "mix:13", "prob_sys_size;0:1:0.1;1:5:0.9")
    needed = {len(sampler._drawn(np.random.default_rng(k))) for k in range(40)}
    assert len(needed) > 1
    assert {len(sampler._make(np.random.default_rng(k))) for k in range(40)} == {sampler.batches}


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (
            "prob_sys_size;0:3:0.5;1:5:0.5",
            "2 of 5 systems are in several blocks, of which the last one counts",
        ),
        ("prob_sys_size;0:5:0.5;7:9:0.5", "7:9:0.5 has no effect: it has no frames, and there are 5 systems"),
    ],
)
def test_odd_blocks_give_a_warning(place, style, message):
    with pytest.warns(UserWarning, match=message) as caught:
        sampler_of(place, 1, style)
    assert len(caught) == 1


def test_blocks_that_make_no_sense_are_refused_or_warned_of(place, tmp_path):
    empty = "no block with a weight has frames of the 5 systems"
    with pytest.warns(UserWarning, match="7:9:1 has no effect"), pytest.raises(ConfigError, match=empty):
        sampler_of(place, 1, "prob_sys_size;0:5:0;7:9:1")
    write(tmp_path / "a.lmdb", frame_system_ids=None)
    style = "prob_sys_size;0:1:1"
    with pytest.warns(UserWarning, match=r"no effect: .*a\.lmdb has no frame_system_ids"):
        _, sampler = sampler_of(tmp_path / "a.lmdb", 1, style)
    assert sampler.batches == 30
    write(tmp_path / "b.lmdb", frame_system_ids=[0, 1])
    with pytest.raises(DataError, match=r"b\.lmdb: frame_system_ids are not numbers of systems"):
        sampler_of(tmp_path / "b.lmdb", 1, style)
    write_sizes(tmp_path / "folders")
    data = load_dataset([place, tmp_path / "folders"], ["Cu"])
    section = SimpleNamespace(sys_probs=None, batch_size=1, auto_prob=style)
    with pytest.raises(ConfigError, match="blocks are of folders of systems or of one LMDB dataset"):
        make_sampler(section, data, 0)
