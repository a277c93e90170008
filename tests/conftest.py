"""One thread for the tests: their systems are tiny, and threads that share a busy machine wait for each other.

What is promised of several threads sets their number itself.
"""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
