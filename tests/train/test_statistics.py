"""Statistics equal DeePMD-kit's: those of the models it trained, from the data it trained them on."""

from pathlib import Path

import numpy as np
import pytest
from small_systems import SHARED, alloy, write_system

from mdops.data.statistics import (
    neighbor_statistics,
    neighborhoods,
    output_statistics,
    parameter_statistics,
    spread_frames,
)
from mdops.errors import ConfigError, DataError
from mdops.io import read_model
from mdops.models.se_e2_a import SeE2AOptions
from mdops.models.statistics import environment_statistics
from mdops.train import PairLists, load_dataset
from mdops.train.model.statistics import NeighborCounts

DATA = Path(__file__).parents[1] / "data"


def of_model(path):
    """mean, std, bias, deviation of the bias, and the smallest distance that a model file has."""
    file = read_model(path)
    descriptor, out = file.model["descriptor"]["@variables"], file.model["@variables"]
    mean, std = descriptor["davg"][:, 0, 0], descriptor["dstd"][:, 0, :2]
    return mean, std, out["out_bias"].ravel(), out["out_std"].ravel()[0], file.source["min_nbor_dist"]


def test_alloy_equals_deepmd_kit_on_the_frames_it_used():
    mean, std, bias, deviation, nearest = of_model(DATA / "formats" / "model.dp")
    data = load_dataset(DATA / "training" / "emt", ["Cu", "Al"])
    lists = PairLists(data, 5.0)
    found = environment_statistics(
        neighborhoods(data, lists, 5.0), ntypes=data.ntypes, sel=[80, 60], cutoff_smooth=0.5
    )
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.std, std, rtol=1e-12)
    energies = output_statistics(data)
    np.testing.assert_allclose(energies.bias, bias, rtol=1e-9)
    assert energies.std == pytest.approx(deviation, rel=1e-9)
    assert neighbor_statistics(data, lists).nearest == pytest.approx(nearest, rel=1e-12)


@pytest.mark.skipif(not (SHARED / "data" / "water").is_dir(), reason="the water data is not here")
def test_water_equals_deepmd_kit_within_the_choice_of_frames():
    """DeePMD-kit drew 20 frames of each system at random; the statistics are of 20 others."""
    mean, std, bias, _, nearest = of_model(SHARED / "reference" / "water_se_a" / "model.dp")
    data = load_dataset([SHARED / "data" / "water" / f"data_{k}" for k in range(3)], ["O", "H"])
    lists = PairLists(data, 6.0)
    frames = spread_frames(data, 20, [1, 1, 1])
    assert len(frames) == 60
    found = environment_statistics(
        neighborhoods(data, lists, 6.0, frames), ntypes=2, sel=[46, 92], cutoff_smooth=0.5
    )
    np.testing.assert_allclose(found.mean, mean, rtol=3e-4)
    np.testing.assert_allclose(found.std, std, rtol=1e-3)
    np.testing.assert_allclose(output_statistics(data, frames=frames).bias, bias, rtol=1e-5)
    neighbors = neighbor_statistics(data, lists)
    assert neighbors.nearest == pytest.approx(nearest, rel=1e-7)
    assert neighbors.most[0] <= 46 and neighbors.most[1] <= 92


def test_automatic_sel_rounds_up_to_fours():
    data = load_dataset(DATA / "training" / "emt", ["Cu", "Al"])
    found = neighbor_statistics(data, PairLists(data, 5.0))
    brute = np.zeros(2, dtype=int)
    for frame in range(len(data)):
        place, x = data.atoms(frame), data.positions[data.atoms(frame)]
        shifts = np.array(list(np.ndindex(5, 5, 5))) - 2
        images = x[None] + (shifts @ data.cell[frame])[:, None]
        near = np.linalg.norm(images[None] - x[:, None, None], axis=3)
        close = ((near < 5.0) & (near > 0)).sum(1)
        counts = [close[:, data.types[place] == t].sum(1).max() for t in range(2)]
        brute = np.maximum(brute, counts)
    assert found.most == brute.tolist()
    most = NeighborCounts(data, PairLists(data, 6.0)).most  # from longer lists
    for sel, ratio in (("auto:1", 1.0), ("auto", 1.1)):
        options = SeE2AOptions(rcut=5.0, sel=sel).resolve_sel(most, "model.descriptor")
        assert options.sel == [4 * -(-int(ratio * n) // 4) for n in found.most]
    assert found.together == most(5.0)[1] <= sum(found.most)
    with pytest.raises(ConfigError, match=r"sel: auto:0\.001 has no slot for a neighbour"):
        SeE2AOptions(rcut=5.0, sel="auto:0.001").resolve_sel(most, "model.descriptor")


def test_more_neighbours_than_sel_are_cut_to_the_nearest():
    data = load_dataset(DATA / "training" / "emt", ["Cu", "Al"])
    lists, near = PairLists(data, 5.0), PairLists(data, 3.3)
    most = neighbor_statistics(data, near).most
    cut = environment_statistics(
        neighborhoods(data, lists, 5.0), ntypes=data.ntypes, sel=[3, 2], cutoff_smooth=0.5
    )
    whole = environment_statistics(
        neighborhoods(data, lists, 5.0), ntypes=data.ntypes, sel=[80, 60], cutoff_smooth=0.5
    )
    assert max(most) > 3 and (cut.mean > 3 * whole.mean).all()


def test_excluded_pairs_and_absent_types():
    data = load_dataset(DATA / "training" / "emt", ["Cu", "Al", "Au"])
    lists = PairLists(data, 5.0)
    none = environment_statistics(
        neighborhoods(data, lists, 5.0),
        ntypes=3,
        sel=[80, 60, 1],
        cutoff_smooth=0.5,
        exclude_types=[[0, 0], [0, 1], [1, 1]],
    )
    assert (none.mean == 0).all() and (none.std[:2] == 0.01).all() and (none.std[2] == 0.1).all()
    assert output_statistics(data).bias[2] == 0


def test_bias_of_several_compositions_presets_and_atomic_energies(tmp_path):
    for k, repeat in enumerate([(1, 1, 1), (2, 1, 1), (3, 1, 1)]):
        structures = alloy(2, repeat=repeat)
        folder = write_system(tmp_path / f"{k}", structures)
        counts = [structures[0].get_chemical_symbols().count(s) for s in ("Cu", "Al")]
        np.save(folder / "set.000" / "energy.npy", np.full(2, counts @ np.array([-3.0, -5.0])))
    data = load_dataset(tmp_path, ["Cu", "Al"])
    np.testing.assert_allclose(output_statistics(data).bias, [-3, -5])
    np.testing.assert_allclose(output_statistics(data, preset=[None, -5.0]).bias, [-3, -5])
    np.testing.assert_allclose(output_statistics(data, preset=[-2.0, None]).bias[0], -2)
    assert output_statistics(data, exclude_types=[0]).bias[0] == 0
    np.save(tmp_path / "0" / "set.000" / "atom_ener.npy", np.tile([7.0, 1.0, 3.0, 7.0], (2, 1)))
    data = load_dataset(tmp_path, ["Cu", "Al"])
    np.testing.assert_allclose(output_statistics(data).bias, [2, 7])


def test_parameters_and_coincident_atoms(tmp_path):
    folder = write_system(tmp_path / "system", alloy(3))
    np.save(folder / "set.000" / "fparam.npy", [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    coord = np.load(folder / "set.000" / "coord.npy")
    coord[1, 3:6] = coord[1, :3]
    np.save(folder / "set.000" / "coord.npy", coord)
    data = load_dataset(folder, ["Cu", "Al"])
    average, inverse = parameter_statistics(data, "fparam")
    np.testing.assert_allclose(average, [2, 5])
    np.testing.assert_allclose(inverse, [1.5**0.5, 100])
    assert parameter_statistics(data, "aparam") is None
    with pytest.raises(DataError, match=r"set\.000, frame 1: two atoms are at the same place"):
        neighbor_statistics(data, PairLists(data, 4.0))
