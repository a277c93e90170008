"""What a System knows beforehand of its atoms' types, and forgets when these change."""

import dataclasses

import pytest
import torch

from mdops.system import System

TYPES = [1, 0, -1, 1]


@pytest.fixture
def system():
    n = len(TYPES)
    made = System(
        torch.rand(n, 3, dtype=torch.float64),
        torch.tensor(TYPES, dtype=torch.int32),
        torch.eye(3, dtype=torch.float64)[None],
        torch.ones(1, 3, dtype=torch.bool),
        torch.zeros(n, dtype=torch.int32),
    )
    made.find_atoms_by_type(2)
    return made


def places(system):
    return [index.tolist() for index in system.atoms_of_types(2)]


def test_kinds_that_are_known_are_not_looked_for_again(system):
    known = system.known_atoms_by_type()
    assert places(system) == [[1], [0, 3]]
    assert known is not None and system.known_atoms_by_type() is known
    system.positions = system.positions + 1
    system.positions.mul_(2)
    assert system.known_atoms_by_type() is known


def set_anew(system):
    system.types = torch.zeros_like(system.types)
    return system


def change_in_place(system):
    system.types.zero_()
    return system


def replace(system):
    return dataclasses.replace(system, types=torch.zeros_like(system.types))


@pytest.mark.parametrize("change", [set_anew, change_in_place, replace])
def test_kinds_are_forgotten_with_the_types(system, change):
    changed = change(system)
    assert changed.known_atoms_by_type() is None
    assert places(changed) == [[0, 1, 2, 3], []]


def test_types_of_inference_mode_are_known_as_a_tensor(system):
    with torch.inference_mode():
        system.types = system.types.clone()
        assert system.known_atoms_by_type() is None
        system.find_atoms_by_type(2)
        assert system.known_atoms_by_type() is not None
        system.types = system.types + 0
        assert system.known_atoms_by_type() is None
