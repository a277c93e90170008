"""From a reference calculator to a report: data, training, test, dynamics. `demo.py` and `molecule.py` use it."""
