"""The error that splines are chosen by is that of forces; smoothing bends nets less, and nothing else."""

from dataclasses import replace

import pytest
import torch
from reference_cases import model_path

from mdops import load
from mdops.evaluators.spline_sum import SplineSum
from mdops.models import Neighborhood
from mdops.models.moments import TypeChoice
from mdops.system import System
from mdops.tables.spline import (
    GLANCED_AT,
    GRADING,
    TOLERANCE,
    SplineGrid,
    bending_weights,
    choose_grid,
    coefficients,
    embed,
    spline_error,
)
from mdops.tables.spline_model import SplineModel

S_MAX = 2.0


def potential_of(case):
    return load(model_path(case), dtype="float64", spline=False)


def descriptor_of(case):
    return potential_of(case).model.descriptor


def lone_pairs(vectors, counts, types, cutoff):
    """Atoms with one neighbour each, at `vectors` (P, 1, 3)."""
    nothing = torch.zeros(0, dtype=torch.float64)
    system = System(nothing, types, nothing, nothing, torch.zeros_like(types))
    return Neighborhood(system, *[torch.zeros_like(counts[:, :1])] * 2, counts, vectors, cutoff)


def slopes(t, vectors):
    """(N,): the largest derivative of T by the one neighbour of each atom, over T's entries and directions."""
    found = torch.zeros(len(vectors), dtype=torch.float64)
    for entry in t.flatten(1).unbind(1):
        (slope,) = torch.autograd.grad(entry.sum(), vectors, retain_graph=True)
        found = torch.maximum(found, slope.abs().amax((1, 2)))
    return found


def worst_pair(potential, grid):
    """`spline_error` by its definition: from the derivatives of T of single pairs at many distances, by autograd."""
    descriptor, potential.grid = potential.model.descriptor, grid
    model = SplineSum(SplineModel(potential).sums[0])
    # From the cutoff inwards, and as dense in s as knots are: seven to an interval.
    s = grid.at(torch.linspace(0, grid.intervals, 7 * grid.intervals + 1, dtype=torch.float64))[1:]
    r = torch.linspace(descriptor.cutoff, 0.5, 20000, dtype=torch.float64)
    u = ((r - descriptor.cutoff_smooth) / (descriptor.cutoff - descriptor.cutoff_smooth)).clamp(0, 1)
    table = (u**3 * (-6 * u**2 + 15 * u - 10) + 1) / (r + descriptor.protection)
    r = r[torch.searchsorted(table, s).clamp(max=len(r) - 1)].unique().flip(0)
    errors, sizes = torch.zeros(len(r), dtype=torch.float64), torch.zeros(len(r), dtype=torch.float64)
    for centre in range(descriptor.ntypes):
        for neighbour in range(descriptor.ntypes):
            vectors = torch.zeros(len(r), 1, 3, dtype=torch.float64)
            vectors[:, 0, 0] = r
            vectors.requires_grad_()
            counts = torch.zeros(len(r), descriptor.ntypes, dtype=torch.int32)
            counts[:, neighbour] = 1
            types = torch.full((len(r),), centre, dtype=torch.int32)
            near = lone_pairs(vectors, counts, types, descriptor.cutoff)
            exact = descriptor.moments(near)
            sizes = torch.maximum(sizes, slopes(exact, vectors))
            with torch.no_grad():
                splines = coefficients(descriptor, grid)
            wrong = model.summed(splines, near) - exact
            errors = torch.maximum(errors, slopes(wrong, vectors))
    size = sizes.cummax(0).values.clamp(min=sizes[r >= 0.5 * descriptor.cutoff].max())
    return float((errors / size).max())


@pytest.mark.parametrize("case", ["base", "axis_all", "two_side", "embedding_resnet_dt"])
@pytest.mark.parametrize("intervals", [16, 48])
def test_the_error_is_that_of_the_forces_of_pairs(case, intervals):
    potential = potential_of(case)
    with torch.no_grad():
        bound = spline_error(potential.model.descriptor, SplineGrid(S_MAX, intervals, 0.5, 0.0))
    assert bound == pytest.approx(worst_pair(potential, SplineGrid(S_MAX, intervals, 0.5, 0.0)), rel=0.25)


def test_protected_distances_count_as_what_they_are():
    potential = potential_of("env_protection")
    descriptor = potential.model.descriptor
    with torch.no_grad():
        bound = spline_error(descriptor, SplineGrid(1 / (0.5 + descriptor.protection), 8, 0.5, 0.0))
    grid = SplineGrid(1 / (0.5 + descriptor.protection), 8, 0.5, 0.0)
    assert bound == pytest.approx(worst_pair(potential, grid), rel=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grids_keep_the_bound_with_no_more_knots_than_needed(dtype):
    descriptor = descriptor_of("base")
    grid = choose_grid(descriptor, 0.5, TOLERANCE[dtype])
    with torch.no_grad():
        fewer = spline_error(descriptor, replace(grid, intervals=int(0.7 * grid.intervals)))
    assert grid.error <= TOLERANCE[dtype] < fewer


def rough(steepness):
    """A descriptor whose nets bend within so much shorter distances than random ones, as long trainings leave them."""
    descriptor = descriptor_of("base")
    with torch.no_grad():
        for kind in range(descriptor.ntypes):
            descriptor.net(0, kind).layers[0].weight.mul_(steepness)
    return descriptor


def test_rough_nets_keep_the_bound_of_float64_with_more_knots(monkeypatch):
    descriptor = rough(10)
    grid = choose_grid(descriptor, 0.5, TOLERANCE[torch.float64])
    assert grid.intervals > 2048 and grid.error <= TOLERANCE[torch.float64]
    monkeypatch.setattr("mdops.tables.spline._LOOKED_AT", grid.intervals)
    with torch.no_grad():
        everywhere = spline_error(descriptor, grid)
    assert grid.error == pytest.approx(everywhere, rel=0.01) and everywhere <= TOLERANCE[torch.float64]


def test_the_bound_is_kept_by_types_that_the_search_passes_over():
    descriptor = descriptor_of("two_side")
    with torch.no_grad():
        descriptor.net(1, 1).layers[0].weight.mul_(5)
    kinds = TypeChoice.of([0, 1, 0], descriptor.mean.device)  # the search looks at the ends
    grid = choose_grid(descriptor, 0.5, TOLERANCE[torch.float64], types=kinds)
    smooth = choose_grid(
        descriptor, 0.5, TOLERANCE[torch.float64], types=TypeChoice.of([0], descriptor.mean.device)
    )
    with torch.no_grad():
        error = spline_error(descriptor, grid)
    assert smooth.intervals < grid.intervals
    assert error == pytest.approx(grid.error, rel=0.2) and error <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("place", [0.113, 0.3083, 0.9174])
def test_a_glance_finds_what_bends_within_a_thousandth(place):
    """As nets of long trainings do; few of thousands of intervals are looked at while knots are searched."""
    descriptor = descriptor_of("two_side")
    layer = descriptor.net(1, 1).layers[0]
    with torch.no_grad():
        layer.weight[0, 0] = 1e3 * descriptor.std[1, 0]
        layer.bias[0] = 1e3 * (descriptor.mean[1] - place)
        grid = SplineGrid(S_MAX, 1000, 0.5, 0.0)
        everywhere, glance = (spline_error(descriptor, grid, looks=looks) for looks in (None, GLANCED_AT))
    assert glance == pytest.approx(everywhere, rel=0.05)


@pytest.mark.parametrize("case", ["base", "two_side"])
def test_knots_are_chosen_by_few_values_of_the_nets(case, monkeypatch):
    """A value takes as long as a row of a step by the nets themselves."""
    descriptor, asked = descriptor_of(case), []
    functions = descriptor.functions
    monkeypatch.setattr(
        descriptor, "functions", lambda s, types: asked.append(len(s)) or functions(s, types), raising=False
    )
    grid = choose_grid(descriptor, 0.5, TOLERANCE[torch.float64])
    assert sum(asked) < 40 * grid.intervals


def test_float32_has_no_more_knots_than_rounding_allows():
    grid = choose_grid(rough(200), 0.5, TOLERANCE[torch.float32])
    assert grid.intervals == 4096 and grid.error > TOLERANCE[torch.float32]


@pytest.mark.parametrize("intervals", [100, 1500])
def test_errors_are_the_same_in_runs(intervals, monkeypatch):
    descriptor = rough(3)
    with torch.no_grad():
        together = spline_error(descriptor, SplineGrid(S_MAX, intervals, 0.5, 0.0))
        monkeypatch.setattr(
            "mdops.tables.spline._MOST_AT_ONCE", 7 * descriptor.channels * descriptor.ntypes**2
        )
        in_runs = spline_error(descriptor, SplineGrid(S_MAX, intervals, 0.5, 0.0))
    assert in_runs == pytest.approx(together, rel=1e-6)


def test_what_is_steep_close_to_the_cutoff_asks_for_fewer_knots():
    """There s rises as the third power of the distance to the cutoff: what is steep in s is not so in r."""
    errors = []
    for r in (0.7, 0.95):
        descriptor = descriptor_of("two_side")
        width = descriptor.cutoff - descriptor.cutoff_smooth
        u = max(r * descriptor.cutoff - descriptor.cutoff_smooth, 0.0) / width
        s = (u**3 * (-6 * u**2 + 15 * u - 10) + 1) / (r * descriptor.cutoff)
        layer = descriptor.net(0, 0).layers[0]
        with torch.no_grad():
            layer.weight[0, 0] = 5.0
            layer.bias[0] = -5.0 * (s - descriptor.mean[0]) / descriptor.std[0, 0]
            errors.append(spline_error(descriptor, SplineGrid(S_MAX, 200, 0.5, 0.0)))
    assert errors[1] < 0.3 * errors[0]


def steep_at_the_cutoff():
    """A potential one of whose nets bends within 1e-4 1/A of s = 0, and its descriptor."""
    potential = potential_of("two_side")
    descriptor = potential.model.descriptor
    layer = descriptor.net(0, 0).layers[0]
    with torch.no_grad():
        layer.weight[0, 0] = 1e4 * descriptor.std[0, 0]
        layer.bias[0] = 1e4 * descriptor.mean[0]
    return potential, descriptor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_knots_are_graded_where_uniform_ones_miss_the_bound(dtype):
    _, descriptor = steep_at_the_cutoff()
    grid = choose_grid(descriptor, 0.5, TOLERANCE[dtype])
    with torch.no_grad():
        uniform = spline_error(descriptor, replace(grid, grading=0.0))
    assert grid.grading == GRADING and grid.error <= TOLERANCE[dtype] < uniform


def test_the_error_of_graded_knots_is_that_of_the_forces_of_pairs():
    potential, descriptor = steep_at_the_cutoff()
    grid = SplineGrid(S_MAX, 64, 0.5, 0.0, GRADING)
    with torch.no_grad():
        bound = spline_error(descriptor, grid)
    assert bound == pytest.approx(worst_pair(potential, grid), rel=0.25)


@pytest.mark.parametrize("grading", [0.0, 1e-6, 0.05])
def test_places_are_where_knots_are(grading):
    grid = SplineGrid(S_MAX, 12, 0.5, 0.0, grading)
    x = torch.linspace(0, 12, 25, dtype=torch.float64)
    s = grid.at(x)
    assert s[0] == 0 and float(s[-1]) == pytest.approx(S_MAX)
    torch.testing.assert_close(grid.places(s), x)
    h = 1e-6
    torch.testing.assert_close(
        grid.steps(s), (grid.at(x + h) - grid.at(x - h)) / (2 * h), rtol=1e-6, atol=1e-9
    )


def bending(descriptor, step, table):
    return (bending_weights(descriptor, step) * torch.diff(table, n=2, dim=2).square()).sum()


@pytest.mark.parametrize("intervals", [96, 192])
@pytest.mark.parametrize("case", ["base", "two_side"])
def test_bending_is_the_integral_of_squared_curvature(case, intervals):
    descriptor, h = descriptor_of(case), 1e-4
    step = S_MAX / intervals
    with torch.no_grad():
        found = bending(descriptor, step, coefficients(descriptor, SplineGrid(S_MAX, intervals, 0.5, 0.0)))
        s = torch.linspace(h, S_MAX - h, 8001, dtype=torch.float64)
        width = descriptor.std[:, 0, None, None, None]
        curvature = (embed(descriptor, s + h) - 2 * embed(descriptor, s) + embed(descriptor, s - h)) / h**2
        integral = (curvature * width**2).square().mean(2) * S_MAX / width[:, :, 0]
    assert float(found) == pytest.approx(float(integral.mean()), rel=0.1)


def test_smoothing_adds_the_gradient_of_bending_and_leaves_values():
    descriptor = descriptor_of("two_side").requires_grad_()
    grid, weights = SplineGrid(S_MAX, 40, 0.5, 0.0), list(descriptor.parameters())
    table = coefficients(descriptor, grid)
    random = torch.randn(table.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = (table * random).sum() + 0.3 * bending(descriptor, S_MAX / 40, table)
    expected = torch.autograd.grad(loss, weights)
    smoothed = coefficients(descriptor, grid, smoothing=0.3)
    assert torch.equal(smoothed, table)
    for a, b in zip(torch.autograd.grad((smoothed * random).sum(), weights), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
