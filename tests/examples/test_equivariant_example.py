"""examples/equivariant.py: its energies have the symmetries of physics, and its layers are their formulas.

That it trains, saves, loads and simulates is tested in test_message_passing.py."""

import importlib
import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

from mdops.errors import InputError, ModelFileError
from mdops.models import DescriptorFitting
from mdops.nn.equivariant import by_order, frame_quaternions, wigner_rows
from mdops.ops import NeighborGraph, displacements, fade_curve, neighbor_graph
from mdops.potential import Potential
from mdops.train import parse_config

TYPES = ["Cu", "Al"]


@pytest.fixture(scope="module")
def example(examples):
    return importlib.import_module("equivariant")


@pytest.fixture(scope="module", params=[1, 2, 4])
def potential(request, example):
    """With random weights, up to that degree."""
    return new(example, lmax=request.param)


def new(example, **options):
    section = example.training_input(1)
    section["model"]["descriptor"] |= {"channels": 4, **options}
    return Potential(DescriptorFitting.random(parse_config(section).model, 1, torch.float64))


def crystal(seed=3):
    """A rattled Cu-Al cell of no symmetry, shorter than two cutoffs."""
    atoms = bulk("Cu", cubic=True) * (2, 1, 1)
    atoms.symbols[:3] = "Al"
    atoms.rattle(0.2, seed=seed)
    return atoms


@pytest.mark.parametrize("improper", [False, True])
def test_energies_do_not_change_if_all_is_rotated_or_mirrored(potential, improper):
    atoms, moved = crystal(), crystal()
    matrix, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))
    matrix *= np.sign(np.linalg.det(matrix)) * (-1 if improper else 1)
    moved.set_cell(atoms.cell.array @ matrix.T, scale_atoms=True)
    one, other = potential.compute(atoms), potential.compute(moved)
    np.testing.assert_allclose(other["energy"], one["energy"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(other["forces"], one["forces"] @ matrix.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(other["virial"][0], matrix @ one["virial"][0] @ matrix.T, rtol=0, atol=1e-10)
    assert np.abs(one["forces"]).max() > 1e-3


def test_energies_do_not_depend_on_the_numbers_of_atoms(potential):
    atoms, order = crystal(), np.random.default_rng(1).permutation(8)
    one, other = potential.compute(atoms), potential.compute(atoms[order])
    np.testing.assert_allclose(other["energy"], one["energy"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(other["forces"], one["forces"][order], rtol=0, atol=1e-10)


def test_it_tells_structures_of_the_same_distances_apart(potential):
    """A straight and a bent chain, which have the same distances of neighbours: directions matter."""
    straight = Atoms("Cu3", [[0, 0, 0], [0, 0, 2.5], [0, 0, 5.0]])
    bent = Atoms("Cu3", [[0, 0, 0], [0, 0, 2.5], [0, 2.5 * math.sin(0.5), 2.5 + 2.5 * math.cos(0.5)]])
    one, other = potential.compute(straight), potential.compute(bent)
    assert abs(one["energy"][0] - other["energy"][0]) > 1e-8
    # Along the axes edges have no free direction left, and the forces on the chain lie along it.
    assert np.abs(one["forces"][:, :2]).max() < 1e-12


def test_atoms_alone_and_none(potential):
    assert not potential.compute(Atoms("Cu", [[0, 0, 0]]))["forces"].any()
    far = potential.compute(Atoms("CuAl", [[0, 0, 0], [0, 0, 9.0]]))
    assert not far["forces"].any() and np.isfinite(far["energy"]).all()


def test_atoms_at_the_same_place_are_refused(potential):
    with pytest.raises(InputError, match="atoms"):
        potential.compute(Atoms("Cu2", [[0, 0, 0], [0, 0, 0]]))


def test_a_layer_is_its_formula_in_plain_pytorch(example):
    """All coefficients in all frames, by products of arrays of edges."""
    options = example.EquivariantOptions(channels=3, lmax=2)
    layer = example.Equivariant.random(options, TYPES, [2], torch.float64).layers[0]
    random = torch.Generator().manual_seed(1)
    positions = 4 * torch.rand(6, 3, dtype=torch.float64, generator=random)
    x = torch.randn(6, 27, dtype=torch.float64, generator=random)
    types = torch.zeros(6, dtype=torch.int32)
    graph: NeighborGraph = neighbor_graph(positions, None, None, types, options.rcut)
    pairs, nothing = graph.pairs, torch.zeros(1, 3, 3, dtype=torch.float64)
    vectors = graph.vectors(displacements(positions, nothing, types, pairs.neighbors, pairs.images))
    r = vectors.norm(dim=1, keepdim=True)
    order = by_order(2, 1)
    turn = wigner_rows(frame_quaternions(vectors), 2, order)
    radial = example.bessel(r, options.rcut, options.radial)
    n = torch.arange(1, 9, dtype=torch.float64)
    wanted = 0.5**0.5 * (n * math.pi * r / 4).sin() / r * fade_curve(r, 4.0, 5)
    torch.testing.assert_close(radial, wanted)
    found, _ = layer(x, None, example.Edges(graph, types, turn, radial))

    nodes = x.view(6, 9, 1, 3)
    hidden = torch.nn.functional.silu(radial @ layer.hidden.weight) @ layer.radial.weight
    place = {**{(ell, 0): ell for ell in range(3)}, **{(ell, 1): 2 + ell for ell in (1, 2)}}
    numbers = hidden.view(-1, 5, 3)[:, [place[ell, abs(m)] for ell, m in order]]
    rows = torch.einsum("erd,edc->erc", turn, layer.norm(nodes)[graph.j.long()].squeeze(2)) * numbers
    messages = torch.einsum("erd,erc->edc", turn, layer.mix(rows[:, :, None]).squeeze(2))
    sums = torch.zeros(6, 9, 3, dtype=torch.float64).index_add(0, graph.i.long(), messages)[:, :, None] / 4
    wanted = nodes + layer.keep(sums) + layer.out(layer.product(layer.pair(sums)))
    torch.testing.assert_close(found, wanted.flatten(1), rtol=1e-12, atol=1e-12)

    def of_all(x, turn, radial):
        return layer(x, None, example.Edges(graph, types, turn, radial))[0]

    given = [value.detach().requires_grad_() for value in (x, turn, radial)]
    assert torch.autograd.gradgradcheck(of_all, given, fast_mode=True, atol=1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    again, _ = compiled(x, None, example.Edges(graph, types, turn, radial))
    torch.testing.assert_close(again, found, rtol=1e-13, atol=1e-13)


def test_files_without_a_weight_are_refused(example):
    tree = new(example).model.descriptor.to_tree()
    del tree["@variables"]["layers.1.mix.weight_m0"]
    with pytest.raises(ModelFileError, match=r"equivariant lacks 'layers\.1\.mix\.weight_m0'"):
        example.Equivariant.from_tree(tree, TYPES, torch.float64)


def test_random_weights_follow_from_the_seed(example):
    options = example.EquivariantOptions()
    one, same, other = (
        example.Equivariant.random(options, TYPES, seed, torch.float64).state_dict()
        for seed in ([1, 0], [1, 0], [2, 0])
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["types.weight"], other["types.weight"])
