"""Models that call the ops, in CUDA graphs: captured by hand, and by torch.compile's reduce-overhead mode."""

import pytest
import torch
from op_cases import captured

from mdops import ops
from mdops.ops import displacements, neighbor_matrix, pair_forces

pytestmark = pytest.mark.gpu

CUTOFF, SMOOTH, INTERVALS, CAPACITY, ATOMS, EDGE = 3.5, 1.0, 12, 64, 100, 9.0


class Model(torch.nn.Module):
    """Spline moments of two types, and a small net on them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        size = 2 * (INTERVALS + 5) * 4
        self.net = torch.nn.Sequential(
            torch.nn.Linear(size, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).cuda()
        self.cell = EDGE * torch.eye(3, dtype=torch.float64, device="cuda")[None]
        self.pbc = torch.ones(1, 3, dtype=torch.bool, device="cuda")
        self.batch = torch.zeros(ATOMS, dtype=torch.int32, device="cuda")
        self.types = (torch.arange(ATOMS, device="cuda") % 2).int()
        self.mean, self.std = torch.zeros(2, device="cuda"), torch.ones(2, 2, device="cuda")
        self.mask = torch.zeros(2, 2, dtype=torch.bool, device="cuda")
        self.sel = torch.full((2,), 30, dtype=torch.int32, device="cuda")

    def pairs(self, positions):
        """With a list that is made anew, in rows of fixed length."""
        neighbors, images, counts, needed = neighbor_matrix(
            positions.detach(), self.cell, self.pbc, self.batch, self.types, CUTOFF, 2, CAPACITY
        )
        d = displacements(positions, self.cell, self.batch, neighbors, images, torch.float32)
        return d, neighbors, counts, needed

    def energy(self, d, counts):
        moments = torch.ops.mdops.spline_moment(
            d, counts, self.types, self.mean, self.std, self.mask, self.mask, self.sel, self.sel[:0], CUTOFF, SMOOTH,
            0.0, 1.5, 0.0, INTERVALS, False, False,
        )[0]  # fmt: skip
        return self.net(moments.flatten(1)).double().sum()

    def forward(self, positions):
        d, _, counts, needed = self.pairs(positions)
        return self.energy(d, counts), needed

    def with_forces(self, positions):
        """Energy, forces, virial, and what the list needs."""
        d, neighbors, counts, needed = self.pairs(positions)
        d = d.detach().requires_grad_()
        energy = self.energy(d, counts)
        (gradient,) = torch.autograd.grad(energy, d)
        forces, virial, _ = pair_forces(gradient, d.detach(), self.batch, neighbors, 1)
        return energy.detach(), forces, virial, needed

    def loss(self, positions, target):
        """On energy and forces: its gradient to the weights goes through the second derivatives."""
        positions = positions.detach().requires_grad_()
        energy, _ = self(positions)
        (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
        return energy.square() / ATOMS**2 + (gradient + target).square().mean()


def places(seed):
    gen = torch.Generator().manual_seed(seed)
    return EDGE * torch.rand(ATOMS, 3, generator=gen, dtype=torch.float64).cuda()


def test_a_captured_step_follows_its_inputs():
    """Neighbours, energy, forces and virial of positions that change from replay to replay, to the last bit."""
    model, static = Model(), places(0)
    graph, results = captured(model.with_forces, static)
    lists = set()
    for seed in range(1, 6):
        static.copy_(places(seed))
        graph.replay()
        want = model.with_forces(places(seed))
        assert all(torch.equal(a, b) for a, b in zip(results, want, strict=True))
        assert 0 < int(results[3][0]) <= CAPACITY
        lists.add(float(results[0]))
    assert len(lists) == 5


def test_a_captured_training_step_is_the_eager_one():
    """Loss on forces, gradients and the optimiser's step in one graph, against the same without."""
    target = torch.zeros(ATOMS, 3, dtype=torch.float64, device="cuda")
    ends = []
    for graphed in (False, True):
        model, static = Model(), places(0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)

        def step(positions, model=model, optimizer=optimizer):
            optimizer.zero_grad(set_to_none=False)
            loss = model.loss(positions, target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        before = {name: value.clone() for name, value in model.state_dict().items()}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if graphed:
            graph, loss = captured(step, static)
            model.load_state_dict(before)
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()
        losses = []
        for seed in range(1, 6):
            if graphed:
                static.copy_(places(seed))
                graph.replay()
            else:
                loss = step(places(seed))
            losses.append(float(loss))
        ends.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-5)
    for a, b in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_reduce_overhead_with_gradients():
    """torch.compile captures forward and backward; the answers follow positions and weights that change."""
    model = Model()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    for seed in range(6):
        answers = []
        for function in (model, compiled):
            torch.compiler.cudagraph_mark_step_begin()
            positions = places(seed).requires_grad_()
            energy, needed = function(positions)
            gradients = torch.autograd.grad(energy, [positions, *model.parameters()])
            answers.append([energy.detach().clone(), needed.clone(), *(g.clone() for g in gradients)])
        for a, b in zip(*answers, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            model.net[0].bias.add_(0.1)


def test_reduce_overhead_without_gradients():
    model = Model()
    norm = (model.types, model.mean, model.std, model.mask)

    def step(positions):
        """Energies and forces by the backward ops themselves, as inference does it."""
        d, neighbors, counts, needed = model.pairs(positions)
        moments = torch.ops.mdops.spline_moment(
            d,
            counts,
            *norm,
            model.mask,
            model.sel,
            model.sel[:0],
            CUTOFF,
            SMOOTH,
            0.0,
            1.5,
            0.0,
            INTERVALS,
            False,
            False,
        )[0]
        gradient = torch.ops.mdops.spline_moment_backward(
            moments, d, counts, *norm, CUTOFF, SMOOTH, 0.0, 1.5, 0.0, False, False
        )
        forces, virial, _ = ops.pair_forces(gradient, d, model.batch, neighbors, 1)
        return moments.double().square().sum() / 2, forces, virial, needed

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for seed in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            got = [value.clone() for value in compiled(places(seed))]
            for a, b in zip(got, step(places(seed)), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
