"""What tests of kinds share lies beside the tests of nets and of trainings."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("nn", "train", "io")]


def pytest_generate_tests(metafunc):
    """Each `case` of the tests that kinds share (`kind_cases.DescriptorTests`, `blend_cases.BlendTests`)."""
    if "case" in metafunc.fixturenames and hasattr(metafunc.cls, "cases_of"):
        metafunc.parametrize("case", metafunc.cls.cases_of(metafunc.function.__name__))
