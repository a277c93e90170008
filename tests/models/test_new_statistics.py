"""Answers are of the statistics of now (davg, dstd, the types' energies), whatever the evaluators have seen before."""

import dataclasses

import pytest
import torch
from kind_cases import KINDS
from reference_cases import references, relative_error

import mdops

CASES = [
    "dpa1_attn0_strip",
    "dpa1_attn2",
    "hybrid_mixed_few_places",
    "hybrid_r_t",
    "linear_net_types",
    "se_e2_r_pairs",
    "zbl_alpha",
]
TOLERANCE = 1e-6  # of the splines: knots for the loading's own would take the test's time


def load(case):
    return mdops.load(KINDS / case / "model.dp", dtype="float64", overflow="truncate", spline=False)


def with_other_statistics(state):
    """Means where there were none, smaller deviations, and other energies of the types."""
    random, found = torch.Generator().manual_seed(1), {}
    for name, value in state.items():
        drawn = torch.rand(value.shape, generator=random, dtype=torch.float64)
        own = name.rpartition(".")[2]
        if own == "mean":
            value = value + (0.05 + 0.1 * drawn).to(value)
        elif own == "std":
            value = value * (0.5 + 0.3 * drawn).to(value)
        elif own == "out_bias":
            value = value + drawn.to(value)
        found[name] = value.clone()
    return found


def answers(potential, one):
    """By `forward`, `predict` and `evaluate`."""
    s, more = one.system, {"fparam": one.fparam, "aparam": one.aparam}
    near = potential.neighbor_list(s)
    differentiable = potential(
        s.positions, s.types, s.cell, s.pbc, s.batch, neighbors=near, forces=True, **more
    )
    found = {"forward": differentiable, "predict": potential.predict(s, near, **more)}
    return found | {"evaluate": potential.evaluate(s, near, **more)}


def load_state(potential, state):
    potential.load_state_dict(state)


def assign_state(potential, state):
    potential.load_state_dict(state, assign=True)


def of_one_type(system):
    """All atoms of type 1: models of mixed types make their tables for it alone."""
    return dataclasses.replace(system, types=torch.full_like(system.types, 1))


@pytest.mark.filterwarnings("ignore:.*nearer than")
@pytest.mark.parametrize(
    ("case", "change"), [*((case, load_state) for case in CASES), (CASES[0], assign_state)]
)
def test_a_state_with_other_statistics_is_what_answers(case, change):
    """The nets themselves are the judge."""
    one = references(KINDS / case)[0]
    potential, exact = load(case), load(case)
    potential.use_spline(tolerance=TOLERANCE)
    asked = [one, dataclasses.replace(one, system=of_one_type(one.system))]
    before = [answers(potential, each)["evaluate"]["atom_energy"] for each in asked]
    state = with_other_statistics(potential.state_dict())
    change(potential, state)
    exact.load_state_dict(state)
    for old, each in zip(before, asked, strict=True):
        wanted = exact.evaluate(each.system, None, each.fparam, each.aparam)
        assert relative_error(old, wanted["atom_energy"]) > 1e-3  # which there is to see
        for way, found in answers(potential, each).items():
            for name in ("energy", "atom_energy", "forces", "virial"):
                error = relative_error(found[name].detach(), wanted[name])
                assert error < TOLERANCE, f"{way}: {name} is off by {error:.1e}"


@pytest.mark.parametrize("case", ["se_e2_r_pairs", "se_e3_base", "dpa1_attn2"])
def test_knots_that_do_not_suit_a_loaded_state_are_chosen_anew(case):
    """Smaller deviations make the functions that splines stand for steeper, and angles larger."""
    potential = load(case)
    potential.use_spline(tolerance=1e-4)
    before = potential.knots
    state = {k: v / 4 if k.endswith("descriptor.std") else v for k, v in potential.state_dict().items()}
    potential.load_state_dict(potential.state_dict())
    assert potential.knots == before
    potential.load_state_dict(state)
    assert potential.knots != before and potential.spline_error() < 1e-4
