"""One thread here: the nets are tiny, and threads that share a busy machine wait for each other."""

import pytest
import torch
from small_systems import alloy, write_system


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def structures():
    return alloy(4)


@pytest.fixture
def system(tmp_path, structures):
    return write_system(tmp_path / "system", structures, sets=2)
