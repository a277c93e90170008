"""Descriptors side by side, each with its own cutoff and places."""

import dataclasses

import pytest
import torch
from kind_cases import (
    DescriptorTests,
    alloy,
    cases,
    check_dynamics,
    check_statistics,
    load_case,
    new_potential,
    refuses,
    training_input,
)

from mdops import Potential
from mdops.errors import ConfigError, InputError
from mdops.models import Features, Neighborhood, NeighborSpec, model_of_tree, register, registry
from mdops.models.se_e2_r import SeE2R, SeE2ROptions
from mdops.system import from_atoms

CASES = cases("hybrid")
A = {"type": "se_e2_a", "rcut": 3.5, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 2, "seed": 1}
R = {
    "type": "se_e2_r",
    "sel": [80, 60],
    "rcut": 5.0,
    "rcut_smth": 2.6,
    "neuron": [4],
    "exclude_types": [[0, 1]],
}
T = {"type": "se_e3", "sel": [40, 30], "rcut": 4.0, "rcut_smth": 2.6, "neuron": [3], "env_protection": 0.05}
INPUT = {"type": "hybrid", "list": [A, R, T]}
TRAINED = {"type": "hybrid", "list": [A, T]}


class TestHybrid(DescriptorTests):
    CASES = CASES
    DIFFERENTIATED = ("hybrid_r_t",)
    INPUT = TRAINED

    def check_trained(self, potential):
        assert potential.sel[1] == [40, 30] and potential.cutoff == 4.0
        assert potential.kind == "a standard model of se_e2_a, se_e3"

    def test_ase_and_engine(self):
        # Energies of se_e2_r jump where neighbours of excluded pairs cross the cutoff (models.md).
        check_dynamics(new_potential({"type": "hybrid", "list": [A, {**R, "exclude_types": []}, T]}))


def test_each_part_has_the_statistics_of_its_own_cutoff():
    check_statistics(INPUT, None, "se_e2_r", "se_e3")


def test_features_are_those_of_the_parts_alone():
    """Where no pair is excluded and no place is short, a part does not notice the others."""
    potential = new_potential({"type": "hybrid", "list": [A, {**R, "exclude_types": []}, T]})
    hybrid = potential.model.descriptor
    system = from_atoms([alloy()], potential.type_map)
    near = Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, torch.float64)
    found = hybrid(near)
    alone = [part(near.within(part.cutoff)).values for part in hybrid.parts]
    torch.testing.assert_close(found.values, torch.cat(alone, 1), rtol=1e-12, atol=1e-14)
    assert found.axes.shape == (32, 3, 8)
    assert hybrid.width == 16 + 4 + 3 == found.values.shape[1]


MESSAGES = {
    "dpa2": {
        "repinit": {"nsel": 80, "rcut": 4.4, "neuron": [4], "axis_neuron": 2, "tebd_dim": 4},
        "repformer": {"nsel": 40, "rcut": 3.5, "rcut_smth": 2.5, "g1_dim": 6, "g2_dim": 4, "nlayers": 2},
    },
    "dpa3": {
        "repflow": {
            "n_dim": 6,
            "e_dim": 5,
            "a_dim": 4,
            "nlayers": 2,
            "e_rcut": 4.4,
            "e_rcut_smth": 3.0,
            "e_sel": 60,
            "a_rcut": 3.0,
            "a_rcut_smth": 2.5,
            "a_sel": 30,
        }
    },
}


@pytest.mark.parametrize("attention", [0, 1])
@pytest.mark.parametrize("kind", MESSAGES)
def test_parts_that_pass_messages_beside_splines(kind, attention):
    """The fast ways of the other part leave them as they are."""
    dpa1 = {"type": "dpa1", "sel": 80, "rcut": 5.0, "neuron": [4, 8], "axis_neuron": 3, "attn": 4}
    parts = [{**dpa1, "attn_layer": attention}, {"type": kind, **MESSAGES[kind]}]
    potential = new_potential({"type": "hybrid", "list": parts})
    assert potential.reach > 1
    wanted = potential.compute(alloy())
    potential.use_spline()
    assert potential.explain().startswith(("fused parts", "fused sums")) and kind in potential.explain()
    for name, value in potential.compute(alloy()).items():
        torch.testing.assert_close(torch.tensor(value), torch.tensor(wanted[name]), rtol=1e-7, atol=1e-9)


KINKS = {**A, "activation_function": "relu", "rcut": 4.2}
LAYER = {
    "type": "dpa1", "sel": 80, "rcut": 5.0, "neuron": [4, 8], "axis_neuron": 3, "attn": 4, "attn_layer": 1,
}  # fmt: skip


@pytest.mark.parametrize("parts", [[A, KINKS, T], [A, KINKS, LAYER], [KINKS, LAYER]])
def test_a_part_without_splines_leaves_those_of_others(parts):
    """Nets with kinks have no splines: they run themselves, and the other parts as ever."""
    potential = new_potential({"type": "hybrid", "list": parts})
    wanted = potential.compute(alloy(), atom_virial=True)
    with pytest.warns(UserWarning, match="kinks: they are evaluated exactly"):
        potential.use_spline()
    assert [grid is not None for grid in potential.grids] == ([True, False] if A in parts else [])
    way = potential.explain()
    assert way.startswith("fused parts" if A in parts else "fused sums") and "se_e2_a" in way, way
    assert potential.explain("differentiate").startswith("splines" if A in parts else "autograd")
    system = from_atoms([alloy()], potential.type_map)
    differentiated = potential(*(getattr(system, n) for n in ("positions", "types", "cell")), forces=True)
    for name, value in potential.compute(alloy(), atom_virial=True).items():
        torch.testing.assert_close(torch.tensor(value), torch.tensor(wanted[name]), rtol=1e-7, atol=1e-8)
    for name in ("forces", "virial"):
        found = differentiated[name].detach().reshape(wanted[name].shape)
        torch.testing.assert_close(found, torch.tensor(wanted[name]), rtol=1e-7, atol=1e-8)


def test_parts_with_one_net_may_be_trained_or_not():
    potential = new_potential({"type": "hybrid", "list": [{**A, "trainable": False}, R]})
    a, r = potential.model.descriptors
    assert not any(p.requires_grad for p in a.parameters())
    assert all(p.requires_grad for p in r.parameters())


def test_seeds():
    """Two parts alike have weights of their own, and those that a part's own seed gives."""
    part = {key: value for key, value in A.items() if key != "seed"}
    one, two, own = new_potential({"type": "hybrid", "list": [part, part, A]}).model.descriptors
    weights = [d.net(0, 0).layers[0].weight for d in (one, two, own)]
    assert not torch.equal(weights[0], weights[1])
    (alone,) = new_potential(A).model.descriptors
    assert torch.equal(weights[2], alone.net(0, 0).layers[0].weight)


def test_too_many_neighbours_of_one_part_are_told():
    potential = new_potential({"type": "hybrid", "list": [{**A, "sel": [2, 2]}, R]})
    strict = Potential(potential.model)
    with pytest.raises(InputError, match=r"neighbours of type Cu.*sel is 2"):
        strict.compute(alloy())


def test_share_takes_the_nearest_of_each_type():
    """Of four neighbours, all of a list, a part with fewer places takes the nearest of each type."""
    potential = load_case("hybrid_a_r")
    system = from_atoms([alloy()], potential.type_map)
    near = Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, torch.float64)
    near = dataclasses.replace(near, truncates=True)
    shared = near.restrict_to_part(NeighborSpec(2.0, (3, 1)), mixed=False)
    assert shared.cutoff == near.cutoff and shared.count(shared.neighbor_types).tolist() == [[3, 1]] * 32
    for t, places in enumerate((3, 1)):
        distances = near.squared.masked_fill(near.neighbor_types != t, torch.inf).sort(1).values[:, :places]
        mine = shared.squared.masked_fill(shared.neighbor_types != t, torch.inf).sort(1).values[:, :places]
        assert torch.equal(distances, mine)
    together = near.restrict_to_part(NeighborSpec(2.0, (4,), True), mixed=True)
    assert together.count(together.neighbor_types).sum(1).tolist() == [4] * 32


def test_share_keeps_what_is_within_the_parts_cutoff_unless_it_truncates():
    potential = load_case("hybrid_a_r")
    system = from_atoms([alloy()], potential.type_map)
    near = Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, torch.float64)
    shared = near.restrict_to_part(NeighborSpec(3.5, (1, 1)), mixed=False)
    within = near.within(3.5)
    assert torch.equal(shared.count(shared.neighbor_types), within.count(within.neighbor_types).clamp(min=1))


def test_a_distance_that_is_nan_is_among_the_nearest():
    potential = load_case("hybrid_few_places")
    system = from_atoms([alloy()], potential.type_map)
    near = Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, torch.float64)
    near.displacements[3, 2] = torch.nan
    near = dataclasses.replace(near, truncates=True)
    few = NeighborSpec(2.0, (2, 2))
    for kept in (near.select(few.sel, mixed=False), near.restrict_to_part(few, mixed=False)):
        assert torch.isnan(kept.displacements).any(-1).any(-1).nonzero()[:, 0].tolist() == [3]


def test_what_is_refused():
    refuses("hybrid", lambda d: d.update(list=[]), "without parts")
    refuses("hybrid", lambda d: d["list"][0].update(type="dpa9"), "dpa9")
    with pytest.raises(ConfigError, match=r"model\.descriptor\.list\[1\]\.type: is 'hybrid'"):
        training_input({"type": "hybrid", "list": [A, INPUT]}, 1)
    with pytest.raises(ConfigError, match=r"model\.descriptor\.list\[1\]\.rcut_smth"):
        training_input({"type": "hybrid", "list": [A, {**R, "rcut_smth": 9.0}]}, 1)
    with pytest.raises(ConfigError, match=r"model\.descriptor\.list"):
        training_input({"type": "hybrid", "list": []}, 1)


def test_summary():
    summary = load_case("hybrid").model.summary()
    assert summary["part 1, descriptor"] == "se_e2_a" and summary["part 2, sel"] == "O 40, H 60"


def test_a_part_may_be_of_mixed_types():
    """One fitting net serves all types then, and the list has places for all types together."""
    tebd = {"type": "se_e3_tebd", "rcut": 3.5, "rcut_smth": 1.0, "neuron": [3], "sel": 20}
    potential = new_potential({"type": "hybrid", "list": [R, tebd]})
    descriptor = potential.model.descriptor
    assert potential.model.fitting.shared and descriptor.mixed_types
    assert descriptor.neighbors == (NeighborSpec(5.0, (140,), True),)
    assert potential.sel == [[80, 60], [20]]


def test_a_kind_that_was_registered_is_a_part():
    """Any descriptor may be one, once it is registered, and runs and is written with the rest."""

    @register
    class Twice(SeE2R):
        """se_e2_r, times two."""

        @dataclasses.dataclass(kw_only=True)
        class Options(SeE2ROptions):
            KIND = "twice_r"
            NAMES = ("twice_r",)

        def forward(self, near):
            return Features(2 * super().forward(near).values)

    try:
        one = {**R, "seed": 4}
        potential = new_potential({"type": "hybrid", "list": [one, {**one, "type": "twice_r"}]})
        potential = Potential(model_of_tree(potential.model.to_tree()))
        system = from_atoms([alloy()], potential.type_map)
        near = Neighborhood.of(system, potential.neighbor_list(system), potential.cutoff, torch.float64)
        values = potential.model.descriptor(near).values
        torch.testing.assert_close(values[:, 4:], 2 * values[:, :4])
    finally:
        registry._KINDS["descriptor"].pop("twice_r")
