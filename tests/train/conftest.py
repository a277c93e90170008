"""Small systems of training data."""

import pytest
from small_systems import EMT, alloy, write_system

from mdops.train import PairLists, load_dataset


@pytest.fixture
def structures():
    return alloy(4)


@pytest.fixture
def system(tmp_path, structures):
    return write_system(tmp_path / "system", structures, sets=2)


@pytest.fixture(scope="module")
def data():
    """EMT; a module may have its own."""
    return load_dataset(EMT, ["Cu", "Al"])


@pytest.fixture(scope="module")
def lists(data):
    """With the cutoff of `small_config`."""
    return PairLists(data, 4.0)
