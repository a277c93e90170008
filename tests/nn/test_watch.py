"""Answers are of the weights of now, whichever way these were changed."""

import copy
import pickle
import weakref

import pytest
import torch
from reference_cases import DATA, model_path, references

from mdops import load
from mdops.nn import watch
from mdops.nn.watch import NamedOfWeights, OfWeights, Watch
from mdops.tracing import exporting


def in_place(p):
    with torch.no_grad():
        p.mul_(1.01)


def through_data(p):
    p.data.mul_(1.01)


def new_data(p):
    p.data = p.detach() * 1.01


def energy(potential):
    (reference, *_) = references(DATA / "se_a_alloy")
    return potential.evaluate(reference.system)["energy"]


def fused_step(p):
    p.grad = torch.ones_like(p)
    torch.optim.Adam([p], lr=1e-2, fused=True).step()


CHANGES = [in_place, through_data, new_data, fused_step]


@pytest.fixture
def potential():
    return load(model_path("se_a_alloy"), dtype="float64")


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_seen(potential, change):
    """Each after an evaluation, and once more after another: an alias may be written to at any time."""
    weight = potential.model.fitting.net(0).layers[0].weight
    before = energy(potential)
    for _ in range(2):
        change(weight)
        after = energy(potential)
        fresh = energy(copy.deepcopy(potential))
        assert not torch.allclose(before, after, rtol=1e-9)
        torch.testing.assert_close(after, fresh, rtol=1e-12, atol=0)
        before = after


def test_an_alias_that_is_written_to_later_is_seen(potential):
    energy(potential)
    alias = potential.model.fitting.net(0).layers[1].weight.data
    before = energy(potential)
    alias.mul_(1.01)
    assert not torch.allclose(before, energy(potential), rtol=1e-9)


def test_replaced_parameters_and_modules_are_seen(potential):
    layer = potential.model.fitting.net(0).layers[0]
    before = energy(potential)
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 1.01)
    after = energy(potential)
    assert not torch.allclose(before, after, rtol=1e-9)
    through_data(layer.weight)
    again = energy(potential)
    assert not torch.allclose(after, again, rtol=1e-9)
    potential.model.fitting.nets[0] = copy.deepcopy(potential.model.fitting.nets[1])
    assert not torch.allclose(again, energy(potential), rtol=1e-9)


def test_versions_raised_by_hand_are_seen(potential):
    """As a training does after the replay of a captured step."""
    weights = list(potential.parameters())
    watch = Watch(potential)
    before = watch.state()
    assert watch.state() == before
    torch.autograd.graph.increment_version(weights)
    assert watch.state() != before


def test_copies_and_pickles_leave_the_weights_trusted(potential):
    before = energy(potential)
    kept = potential.evaluator()
    other = pickle.loads(pickle.dumps(potential))
    assert potential.evaluator() is kept
    torch.testing.assert_close(energy(other), before, rtol=0, atol=0)
    assert all(type(p) is torch.nn.Parameter for p in copy.deepcopy(potential).parameters())


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_made_of_weights_is_made_again_where_these_changed(change):
    module, kept = torch.nn.Linear(2, 3), OfWeights()

    def twice():
        return (2 * module.weight).detach()

    first, one_pass = kept(module, twice), torch.zeros(1)
    assert kept(module, twice) is first and kept(module, twice, of=one_pass) is first
    change(module.weight)
    for of in (None, torch.zeros(1)):
        assert torch.equal(kept(module, twice, of=of), 2 * module.weight)
    assert not torch.equal(kept(module, twice), first)
    assert copy.deepcopy(kept)._kept is None and pickle.loads(pickle.dumps(kept))._kept is None


@pytest.mark.parametrize("records", [True, False])
def test_what_a_graph_reads_stays_when_weights_change(monkeypatch, records):
    module, kept = torch.nn.Linear(2, 3), NamedOfWeights(most=2)

    def ask(name, recorded=False):
        monkeypatch.setattr(watch, "is_recorded", lambda at: recorded)
        return kept(module, name, lambda: module.weight.detach().clone(), module.weight)

    read = weakref.ref(ask("read"))
    with torch.no_grad():
        module.weight.add_(1)
    if records:
        assert ask("read", recorded=True) is read()
    assert torch.equal(ask("read"), module.weight)
    assert (read() is not None) == records


def test_what_is_made_while_operations_are_recorded_is_not_there_for_others(monkeypatch):
    module, kept = torch.nn.Linear(2, 3), NamedOfWeights()
    monkeypatch.setattr(watch, "is_recorded", lambda at: True)
    first, second = (kept(module, "name", module.weight.detach().clone, module.weight) for _ in range(2))
    assert first is not second


def test_an_export_keeps_what_its_first_step_makes():
    module, kept = torch.nn.Linear(2, 3), NamedOfWeights()
    with exporting():
        first, second = (kept(module, "name", module.weight.detach().clone, module.weight) for _ in range(2))
    assert first is second


def test_so_many_names_are_kept():
    module, kept = torch.nn.Linear(2, 3), NamedOfWeights(most=2)

    def ask(name):
        return kept(module, name, lambda: torch.zeros(1), module.weight)

    first, second = ask("first"), ask("second")
    assert ask("first") is first and ask("second") is second
    ask("third")
    assert ask("first") is not first
