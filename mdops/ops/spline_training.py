"""A whole model with splines in one op, with the gradients of its weights, for training."""

from typing import Any

import torch

from mdops.ops._register import last_derivative, register_fake, register_formula
from mdops.ops.spline_potential import blank_results

_TABLES, _NETS = 13, 14  # positions in the arguments


def spline_training(*args: Any) -> tuple[torch.Tensor, ...]:
    """Energies, forces and virials as by `spline_potential`, once differentiable in the tables and the nets.

    For a loss on energies, forces and virials: its gradient by forces needs second derivatives of the net, which
    are computed here in passes over blocks of atoms (training.md, "A step"). On the CPU; nets of tanh layers. Not
    differentiable in positions.

    The arguments are those of `spline_potential` up to `gated`, except

        nets: a list of tensors, for each type, or once for all, the layers one after the other, weight
        (inputs, outputs), bias and timestep (outputs), and of the output layer weight and bias.

    Returns:
        atom_energy (N,), forces (N, 3), virial (S, 3, 3), within (N, ntypes) and nearest (N,) as `spline_potential`,
        and what the backward pass needs, in its own layout.
    """
    return _Step.apply(args[:_TABLES], args[_NETS + 1 :], args[_TABLES], *args[_NETS])


@register_fake("spline_training")
def _(*args: Any) -> tuple[torch.Tensor, ...]:
    results = blank_results(*args)
    return *results, results[-1].new_empty(torch.library.get_ctx().new_dynamic_size())


@register_fake("spline_training_backward")
def _(grad_energy: Any, grad_forces: Any, grad_virial: Any, saved: Any, *args: Any) -> tuple[Any, ...]:
    return args[_TABLES].new_empty(args[_TABLES].shape), [net.new_empty(net.shape) for net in args[_NETS]]


def _formula(needs: Any, grads: Any, args: Any) -> Any:
    *inputs, saved = args
    positions, cell = inputs[:2]
    shapes = (positions.shape[:1], positions.shape, cell.shape)
    gradients = (positions.new_zeros(s) if g is None else g for g, s in zip(grads[:3], shapes, strict=True))
    tables, *nets = last_derivative("spline_training_backward", *gradients, saved, *inputs)
    return tables, nets


register_formula("spline_training", _formula, (_TABLES, _NETS), constant=(3, 4, 5), saved=(5,))


class _Step(torch.autograd.Function):
    """The op with its formula as an autograd function: PyTorch's overhead for a registered op of so many arguments
    would cost 3% of a step of 192 atoms."""

    @staticmethod
    def forward(
        ctx: Any, before: tuple[Any, ...], after: tuple[Any, ...], tables: torch.Tensor, *nets: torch.Tensor
    ) -> Any:
        results = torch.ops.mdops.spline_training(*before, tables, nets, *after)
        ctx.others = before, after
        ctx.save_for_backward(results[-1], tables, *nets)
        ctx.mark_non_differentiable(*results[3:])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        before, after = ctx.others
        saved, tables, *nets = ctx.saved_tensors
        grad_tables, grad_nets = _formula(None, grads, [*before, tables, nets, *after, saved])
        return None, None, grad_tables, *grad_nets
