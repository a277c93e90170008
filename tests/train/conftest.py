"""Small systems of training data."""

import pytest
from small_systems import alloy, write_system


@pytest.fixture
def structures():
    return alloy(4)


@pytest.fixture
def system(tmp_path, structures):
    return write_system(tmp_path / "system", structures, sets=2)
