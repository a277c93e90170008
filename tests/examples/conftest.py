"""The examples are scripts: their modules are found beside them."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def examples(monkeypatch):
    """The folder, which is on the path of imports too."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return EXAMPLES
