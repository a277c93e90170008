"""Heat currents, and the thermal conductivity from them (docs/how-to/heat.md)."""

from dataclasses import dataclass

import numpy as np
from ase import units

from mdops.errors import InputError
from mdops.md.engine.frame import Frame

__all__ = ["GreenKubo", "green_kubo", "heat_current"]

# 1 eV/(A fs K) in W/(m K).
_W_PER_M_K = (1 / units.J) * 1e10 * 1e15


def heat_current(frame: Frame, masses: np.ndarray, energies: np.ndarray | float = 0.0) -> np.ndarray:
    """The heat current of a frame of an engine with `atom_virial`.

    J = sum_i (e_i + k_i) v_i + sum_i W_i^T v_i, with the energy e_i of the model, the kinetic energy k_i and the
    atomic virial W_i of atom i. It is extensive: the flux is J / volume.

    Args:
        masses: (N,), amu.
        energies: (N,) or one, eV: subtracted from e_i. A constant for each kind of atom changes no conductivity, and
            one near its mean energy removes most noise of diffusing atoms.

    Returns:
        (2, 3), eV A/fs: convection by moving atoms, and the transfer between atoms; J is the sum.

    Raises:
        InputError: the frame has no atomic virials.
    """
    if frame.atom_virial is None:
        raise InputError("the frame has no atomic virials: make the engine with atom_virial=True")
    velocities = frame.momenta / np.asarray(masses)[:, None] * units.fs  # A/fs
    kinetic = (frame.momenta**2).sum(1) / (2 * np.asarray(masses))
    carried = (frame.atom_energy - energies + kinetic) @ velocities
    given = np.einsum("iba,ib->a", frame.atom_virial, velocities)
    return np.stack([carried, given])


@dataclass(frozen=True)
class GreenKubo:
    """A correlation of heat currents, and the conductivity that is its integral.

    Attributes:
        times: (L,), fs, from 0.
        correlation: (L, 3), (eV A/fs)^2: <J_a(0) J_a(t)> of each direction.
        conductivity: (L, 3), W/(m K): its integral up to each time. In an isotropic substance the mean of the three is
            the conductivity, and their spread its uncertainty.
    """

    times: np.ndarray
    correlation: np.ndarray
    conductivity: np.ndarray


def green_kubo(
    currents: np.ndarray, interval: float, volume: float, temperature: float, longest: float
) -> GreenKubo:
    """The thermal conductivity kappa_a = 1 / (V kB T^2) times the integral of <J_a(0) J_a(t)> over t.

    Args:
        currents: (frames, 3), or (runs, frames, 3) of several runs alike, eV A/fs: J of an NVE run.
        interval: from one to the next, fs.
        volume: A^3; temperature: K, the mean of the run.
        longest: time up to which to integrate, fs; much shorter than a run.

    Raises:
        InputError: the run is not longer than that.
    """
    runs = np.asarray(currents, np.float64)
    runs = runs[None] if runs.ndim == 2 else runs
    frames, lags = runs.shape[1], round(longest / interval) + 1
    if not 1 < lags < frames:
        raise InputError(f"{frames} frames, {interval} fs apart, have no correlation up to {longest} fs")
    # Padded with zeros against wrap-around; each lag is averaged over its own number of pairs.
    spectrum = np.fft.rfft(runs, 2 * frames, axis=1)
    products = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :lags]
    correlation = (products / (frames - np.arange(lags))[:, None]).mean(0)
    steps = interval * (correlation[1:] + correlation[:-1]) / 2
    integral = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])
    factor = _W_PER_M_K / (volume * units.kB * temperature**2)
    return GreenKubo(interval * np.arange(lags), correlation, factor * integral)
