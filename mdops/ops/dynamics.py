"""The two halves of a time step, before and after the forces, of many systems at once."""

from typing import Any, NamedTuple

import torch

from mdops.ops._register import register_fake


class Begun(NamedTuple):
    """What `begin_step` gives."""

    positions: torch.Tensor
    momenta: torch.Tensor
    eta: torch.Tensor
    eta_momenta: torch.Tensor


class Ended(NamedTuple):
    """What `end_step` gives."""

    momenta: torch.Tensor
    scale: torch.Tensor
    kinetic: torch.Tensor
    energy: torch.Tensor
    eta: torch.Tensor
    eta_momenta: torch.Tensor
    tally: torch.Tensor


def begin_step(
    positions: torch.Tensor,
    momenta: torch.Tensor,
    forces: torch.Tensor,
    inverse_mass: torch.Tensor,
    batch: torch.Tensor,
    scale: torch.Tensor,
    kinetic: torch.Tensor,
    eta: torch.Tensor,
    eta_momenta: torch.Tensor,
    freedom: torch.Tensor,
    noise: torch.Tensor,
    dt: float,
    kT: float,
    tau: float,
    keep: float,
) -> Begun:
    """Half a step of the thermostats, half a kick p += F dt/2, and the drift x += p dt/m.

    Units are those of the caller, with time^2 = mass length^2 / energy. All floats are float64. A system's
    chain of M thermostats (Nose-Hoover) multiplies its momenta by a factor; with masses Q_0 = g kT tau^2 and
    Q_j = kT tau^2, whole steps conserve E + K + g kT eta_0 + kT sum_{j>0} eta_j + sum_j p_j^2 / (2 Q_j) of each
    system. With noise (Langevin dynamics, BAOAB) p -> keep p + sqrt((1 - keep^2) m kT) xi in the middle of the
    drift. Sources of the formulas stand in source/op/dynamics/. Not differentiable; never waits for a GPU.

    Args:
        positions, momenta, forces: (N, 3); inverse_mass: (N,).
        batch: (N,) int32, the system of each atom, in rising order.
        scale, kinetic: (S,), as `end_step` gave them: the momenta are `scale` times those in `momenta`, and
            have that kinetic energy; the former is 1 before any step.
        eta, eta_momenta: (S, M), the thermostats' places and momenta, M = 0 (none) to 4.
        freedom: (S,), g.
        noise: (N, 3), standard normal numbers xi, or (0, 3) for none.
        dt: the time step. kT: energy. tau: the chain's time scale. keep: exp(-friction dt).

    Raises:
        RuntimeError: a shape, dtype or device that does not fit, or a value that makes no sense (on a GPU,
            wrong values in `batch` are answered with NaN momenta of those atoms).
    """
    return Begun(
        *torch.ops.mdops.begin_step(
            positions, momenta, forces, inverse_mass, batch, scale, kinetic, eta, eta_momenta, freedom, noise,
            dt, kT, tau, keep,
        )
    )  # fmt: skip


def end_step(
    positions: torch.Tensor,
    reference: torch.Tensor,
    momenta: torch.Tensor,
    forces: torch.Tensor,
    inverse_mass: torch.Tensor,
    batch: torch.Tensor,
    atom_energy: torch.Tensor,
    nearest: torch.Tensor,
    within: torch.Tensor,
    sel: torch.Tensor,
    eta: torch.Tensor,
    eta_momenta: torch.Tensor,
    freedom: torch.Tensor,
    tally: torch.Tensor,
    dt: float,
    kT: float,
    tau: float,
) -> Ended:
    """Half a kick by the new forces, energies of the systems, half a step of the thermostats, and a tally.

    Arguments as of `begin_step`, and:
        reference: (N, 3), where the atoms were when the neighbour list was made.
        atom_energy: (N,).
        nearest: (N,) float32 or float64, within: (N, ntypes) int32: as `spline_potential` gives them.
        sel: (ntypes,) int32.
        tally: (S, 6): of the steps so far the largest squared distance of an atom from `reference`, the
            largest `within - sel`, minus the smallest `nearest`, the largest size of the energy and the
            largest kinetic energy, and the sum of the kinetic energies. NaN stays.

    Returns:
        momenta: (N, 3), still to be multiplied by `scale`, (S,).
        kinetic, energy: (S,), at the end of the step.
        eta, eta_momenta: (S, M); tally: (S, 6).

    Raises:
        RuntimeError: as `begin_step`.
    """
    return Ended(
        *torch.ops.mdops.end_step(
            positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest, within, sel,
            eta, eta_momenta, freedom, tally, dt, kT, tau,
        )
    )  # fmt: skip


@register_fake("begin_step")
def _(positions: Any, momenta: Any, *others: Any) -> tuple[torch.Tensor, ...]:
    eta, eta_momenta = others[5:7]
    return tuple(map(torch.empty_like, (positions, momenta, eta, eta_momenta)))


@register_fake("end_step")
def _(positions: Any, reference: Any, momenta: Any, *others: Any) -> tuple[torch.Tensor, ...]:
    eta, eta_momenta, freedom, tally = others[7:11]
    return tuple(map(torch.empty_like, (momenta, freedom, freedom, freedom, eta, eta_momenta, tally)))
