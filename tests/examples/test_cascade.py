"""examples/cascade.py, shortened: a fast atom meets others in the table, and the energy stays."""

import importlib
import warnings


def test_cascade(examples, tmp_path, capsys):
    example = importlib.import_module("cascade")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = example.cascade(example.trained(tmp_path, steps=30), steps=200)
    assert found["nearest"] < 1.8 < 2.0  # within the switch, where the table counts
    assert found["drift"] < 0.2 and found["vacancies"] >= 1
    assert "1 pairs of Cu" in capsys.readouterr().out
