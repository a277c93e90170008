"""The two halves of a time step, before and after the forces, of many systems at once."""

from typing import Any, NamedTuple

import torch

from mdops.ops._register import register_fake

_MOVES = 25  # numbers per system that describe its atoms' motion


class Begun(NamedTuple):
    """The results of `begin_step`."""

    positions: torch.Tensor
    momenta: torch.Tensor
    eta: torch.Tensor
    eta_momenta: torch.Tensor


class Ended(NamedTuple):
    """The results of `end_step`."""

    momenta: torch.Tensor
    scale: torch.Tensor
    kinetic: torch.Tensor
    energy: torch.Tensor
    eta: torch.Tensor
    eta_momenta: torch.Tensor
    tally: torch.Tensor


class BegunInCell(NamedTuple):
    """The results of `begin_cell_step`."""

    positions: torch.Tensor
    momenta: torch.Tensor
    cell: torch.Tensor
    cell_momenta: torch.Tensor
    xi: torch.Tensor
    xi_momenta: torch.Tensor
    eta: torch.Tensor
    eta_momenta: torch.Tensor
    moves: torch.Tensor


class EndedInCell(NamedTuple):
    """The results of `end_cell_step`."""

    momenta: torch.Tensor
    scale: torch.Tensor
    kinetic: torch.Tensor
    flow: torch.Tensor
    energy: torch.Tensor
    cell_momenta: torch.Tensor
    xi: torch.Tensor
    xi_momenta: torch.Tensor
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
    drift. Sources of the formulas are in source/op/dynamics/. Not differentiable; never waits for a GPU.

    Args:
        positions, momenta, forces: (N, 3); inverse_mass: (N,).
        batch: (N,) int32, the system of each atom, in rising order.
        scale, kinetic: (S,), as `end_step` gave them: the momenta are `scale` times those in `momenta`, and
            have that kinetic energy; the former is 1 before any step.
        eta, eta_momenta: (S, M), the thermostats' positions and momenta, M = 0 (none) to 4.
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
        reference: (N, 3), the atoms' positions when the neighbour list was made.
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


def next_step(
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
    noise: torch.Tensor,
    dt: float,
    kT: float,
    tau: float,
    keep: float,
) -> tuple[Ended, Begun]:
    """`end_step` of a step and `begin_step` of the next: for few atoms on a GPU one kernel.

    Arguments and results as of both, the same bits as by both.

    Raises:
        RuntimeError: as `begin_step`.
    """
    found = torch.ops.mdops.next_step(
        positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest, within, sel,
        eta, eta_momenta, freedom, tally, noise, dt, kT, tau, keep,
    )  # fmt: skip
    return Ended(*found[:7]), Begun(*found[7:])


def begin_cell_step(
    positions: torch.Tensor,
    momenta: torch.Tensor,
    forces: torch.Tensor,
    inverse_mass: torch.Tensor,
    batch: torch.Tensor,
    scale: torch.Tensor,
    flow: torch.Tensor,
    virial: torch.Tensor,
    cell: torch.Tensor,
    cell_momenta: torch.Tensor,
    xi: torch.Tensor,
    xi_momenta: torch.Tensor,
    eta: torch.Tensor,
    eta_momenta: torch.Tensor,
    freedom: torch.Tensor,
    inertia: torch.Tensor,
    dt: float,
    kT: float,
    tau: float,
    pressure: float,
    period: float,
    flexible: bool,
) -> BegunInCell:
    """The first half of a step at constant pressure (Martyna, Tobias and Klein): chains, cell, kick, and drift.

    As `begin_step`, with a cell h of each system that strains at the rate P / W (symmetric; the atoms go with it),
    where the momentum P follows G = virial + sum p p^T / m + 2 K / g - pressure V. It has a chain of thermostats of
    its own, xi, with masses 9 kT period^2 and kT period^2. Whole steps conserve the energy of `begin_step` plus
    pressure V + |P|^2 / (2 W) + f kT xi_0 + kT sum_{j>0} xi_j + the kinetic energies of the xi, where f is 6, or 1 if
    only the volume changes. mathematics.md has the equations and the splitting. Not differentiable; never
    waits for a GPU.

    Args:
        positions, momenta, forces, inverse_mass, batch, scale, eta, eta_momenta, freedom, dt, kT, tau: as of
            `begin_step`.
        flow: (S, 6), sum p p^T / m over the atoms of a system as xx, yy, zz, yz, xz, xy, of the momenta times
            `scale`.
        virial: (S, 3, 3), -dE/d(strain); only its symmetric part is used.
        cell: (S, 3, 3), rows are lattice vectors.
        cell_momenta: (S, 6), P; a multiple of (1, 1, 1, 0, 0, 0) if only the volume changes.
        xi, xi_momenta: (S, M), the positions and momenta of the cell's thermostats.
        inertia: (S,), W.
        pressure: energy per volume. period: the time scale of the cell's thermostats.
        flexible: the cell may change its shape, not only its volume.

    Returns:
        positions, momenta, cell, cell_momenta, xi, xi_momenta, eta, eta_momenta; and moves, (S, 25), how atoms move
        in this step, for `end_cell_step`. A strain above 1/2 in one step makes a system NaN.

    Raises:
        RuntimeError: as `begin_step`.
    """
    return BegunInCell(
        *torch.ops.mdops.begin_cell_step(
            positions, momenta, forces, inverse_mass, batch, scale, flow, virial, cell, cell_momenta, xi,
            xi_momenta, eta, eta_momenta, freedom, inertia, dt, kT, tau, pressure, period, flexible,
        )
    )  # fmt: skip


def end_cell_step(
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
    moves: torch.Tensor,
    reference_cell: torch.Tensor,
    virial: torch.Tensor,
    cell: torch.Tensor,
    cell_momenta: torch.Tensor,
    xi: torch.Tensor,
    xi_momenta: torch.Tensor,
    eta: torch.Tensor,
    eta_momenta: torch.Tensor,
    freedom: torch.Tensor,
    inertia: torch.Tensor,
    tally: torch.Tensor,
    dt: float,
    kT: float,
    tau: float,
    pressure: float,
    period: float,
    cutoff: float,
    flexible: bool,
) -> EndedInCell:
    """The second half of a step at constant pressure: kick, energies, the cell's momenta, chains, and a tally.

    Arguments as of `begin_cell_step` and `end_step`, with the new positions, cell, forces and virial, and:
        moves: (S, 25), as `begin_cell_step` gave it.
        reference_cell: (S, 3, 3), the cell when the neighbour list was made.
        cutoff: the cutoff of that list.

    The tally's distances are from the positions to which the strain since the list would have moved the atoms. The
    strain counts, too: if a vector may have shrunk by a fraction e, it adds e cutoff / 2 to them. No pair within
    `cutoff - skin` is missing in the list while they are at most skin / 2.

    Returns:
        momenta: (N, 3), still to be multiplied by `scale`, (S,).
        kinetic, energy: (S,), flow: (S, 6), at the end of the step.
        cell_momenta: (S, 6); xi, xi_momenta, eta, eta_momenta: (S, M); tally: (S, 6).

    Raises:
        RuntimeError: as `begin_step`.
    """
    return EndedInCell(
        *torch.ops.mdops.end_cell_step(
            positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest, within, sel,
            moves, reference_cell, virial, cell, cell_momenta, xi, xi_momenta, eta, eta_momenta, freedom,
            inertia, tally, dt, kT, tau, pressure, period, cutoff, flexible,
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


@register_fake("next_step")
def _(positions: Any, reference: Any, momenta: Any, *others: Any) -> tuple[torch.Tensor, ...]:
    eta, eta_momenta, freedom, tally = others[7:11]
    ended = (momenta, freedom, freedom, freedom, eta, eta_momenta, tally)
    return tuple(map(torch.empty_like, (*ended, positions, momenta, eta, eta_momenta)))


@register_fake("begin_cell_step")
def _(positions: Any, momenta: Any, *others: Any) -> tuple[torch.Tensor, ...]:
    own = others[6:12]  # cell, its momenta, and both chains
    moves = positions.new_empty(others[6].shape[0], _MOVES)
    return (*map(torch.empty_like, (positions, momenta, *own)), moves)


@register_fake("end_cell_step")
def _(positions: Any, reference: Any, momenta: Any, *others: Any) -> tuple[torch.Tensor, ...]:
    cell_momenta, *chains = others[11:16]
    freedom, _, tally = others[16:19]
    shapes = (momenta, freedom, freedom, cell_momenta, freedom, cell_momenta, *chains, tally)
    return tuple(map(torch.empty_like, shapes))
