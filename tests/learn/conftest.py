"""A loop that has ended."""

import pytest
from loop_cases import tiny, write_cells

from mdops.learn import learn


@pytest.fixture(scope="package")
def learned(tmp_path_factory):
    """The folder of a loop that ended, what it answered, and the folder of its input."""
    place = tmp_path_factory.mktemp("learn")
    write_cells(place)
    result = learn(tiny(place), place / "out")
    return place / "out", result, place
