"""A model that most tests of the C core begin with."""

import pytest
from test_core import REFERENCE, systems, written


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return written(REFERENCE / "base", tmp_path_factory.mktemp("base") / "base.safetensors")


@pytest.fixture(scope="session")
def system():
    """A triclinic one of the base model."""
    return next(systems(REFERENCE / "base"))[0]
