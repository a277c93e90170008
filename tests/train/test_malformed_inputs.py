"""Any value at any key of an input is taken or refused with a typed error."""

import copy
import math
import re

import pytest

from mdops.errors import MDOpsError
from mdops.train.config.read import keys, parse_config

INPUT = {
    "model": {"type_map": ["O", "H"]},
    "training": {"training_data": {"systems": "data"}, "numb_steps": 10},
}
VALUES = [None, True, -1, 10**30, math.nan, "", [None], [[0, 5]], {"type": 3}]
PLACES = {"model": (), "descriptor": ("model",), "fitting_net": ("model",), "loss": ()}


def with_value(path, value):
    """INPUT with a value at a path as `keys` names it, in a section of that kind."""
    tree = copy.deepcopy(INPUT)
    section, kind, rest = re.fullmatch(r"(\w+)(?:\[(\w+)\])?\.(.+)", path).groups()
    node = tree
    for name in (*PLACES.get(section, ()), section):
        node = node.setdefault(name, {})
    if kind:
        node.setdefault("type", kind)
    *between, last = rest.split(".")
    for name in between:
        node = node.setdefault(name, {})
    node[last] = value
    return tree


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", sorted({entry.path for entry in keys()}))
def test_it_is_taken_or_refused(path):
    for value in VALUES:
        try:
            parse_config(with_value(path, value))
        except MDOpsError as error:
            assert str(error), value
