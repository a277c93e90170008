"""Infrared and Raman spectra from dipoles and polarizabilities along a trajectory (docs/how-to/spectrum.md)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ase import Atoms, units
from ase.geometry import find_mic

from mdops.errors import InputError
from mdops.potential import Potential
from mdops.system import from_atoms

__all__ = ["Spectrum", "infrared", "raman", "responses", "with_charges"]

_PER_CM = 2 * np.pi * units._c * 100 * 1e-15  # 1/cm as an angular frequency in 1/fs
_POINTS = 4  # of the grid, per resolution
_WIDE = 4.0  # standard deviations after which the window is zero
_BATCH = 16  # how many frames are evaluated together


@dataclass(frozen=True)
class Spectrum:
    """Attributes:
    wavenumbers: (K,), 1/cm, rising, above 0.
    values: (K,); see the function that made it.
    """

    wavenumbers: np.ndarray
    values: np.ndarray


def infrared(
    dipoles: np.ndarray,
    interval: float,
    volume: float,
    temperature: float,
    *,
    resolution: float = 20.0,
    limit: float = 4000.0,
) -> Spectrum:
    """The absorption coefficient times the refractive index, alpha(w) n(w), in 1/cm.

    alpha n = integral over t of <M'(0) . M'(t)> exp(-iwt) / (6 c eps_0 V kB T), with the rate M' of the total dipole:
    classical nuclei, corrected as harmonic oscillators are (R. Ramirez et al., J. Chem. Phys. 121, 3973 (2004)).

    Args:
        dipoles: (T, 3), e A, of consecutive frames, without jumps (`with_charges`).
        interval: time between two frames, fs.
        volume: A^3. temperature: K.
        resolution: full width at half maximum of a sharp line, 1/cm: the correlation gets a Gaussian window.
        limit: largest wavenumber, 1/cm.

    Raises:
        InputError: there are too few frames for the resolution, the interval is too long for the limit, or a number is
            not positive.
    """
    _require_positive(volume=volume, temperature=temperature)
    grid, power = _power(np.asarray(dipoles, dtype=np.float64), interval, resolution, limit)
    rate = units._e * 1e-10 / 1e-15  # C m/s in e A/fs
    scale = (
        rate**2 * 1e-15 / (6 * units._c * units._eps0 * volume * 1e-30 * units._k * temperature)
    )  # 1/m in e^2 A^2/fs
    return Spectrum(grid, scale * power / 100)


def raman(
    polarizabilities: np.ndarray,
    interval: float,
    temperature: float,
    *,
    resolution: float = 20.0,
    limit: float = 4000.0,
) -> Spectrum:
    """The Raman intensity of unpolarised detection, without the factor of the laser's frequency, in arbitrary units.

    I(w) = [45 a(w) + 7 g(w)] / 45 / [w (1 - exp(-h w / 2 pi kB T))]. a is the spectrum of the rate of the mean
    polarizability, and g that of its anisotropy, (3/2) Tr b^2 with the traceless part b (M. Thomas et al., Phys.
    Chem. Chem. Phys. 15, 6608 (2013)).

    Args:
        polarizabilities: (T, 3, 3), in any unit. The other arguments are those of `infrared`.

    Raises:
        InputError: as `infrared`.
    """
    _require_positive(temperature=temperature)
    tensors = np.asarray(polarizabilities, dtype=np.float64).reshape(-1, 3, 3)
    mean = np.trace(tensors, axis1=1, axis2=2) / 3
    rest = (tensors + tensors.transpose(0, 2, 1)) / 2 - mean[:, None, None] * np.eye(3)
    grid, isotropic = _power(mean[:, None], interval, resolution, limit)
    _, anisotropic = _power(rest.reshape(len(rest), 9), interval, resolution, limit)
    energy = units._hplanck * units._c * 100 * grid / (units._k * temperature)
    intensity = (45 * isotropic + 7 * 1.5 * anisotropic) / 45
    return Spectrum(grid, intensity / (grid * _PER_CM * -np.expm1(-energy)))


def responses(model: Potential, frames: Iterable[Atoms]) -> np.ndarray:
    """The first output of a model for each frame: dipoles (T, 3), polarizabilities (T, 3, 3), ...

    Raises InputError as `Potential.forward`.
    """
    name, found, batch = model.model.outputs[0].name, list[np.ndarray](), list[Atoms]()

    @torch.no_grad()
    def evaluate() -> None:
        system = from_atoms(batch, model.type_map, model.device)
        answers = model(system.positions, system.types, system.cell, system.pbc, system.batch)
        found.append(answers[name].cpu().numpy())
        batch.clear()

    for atoms in frames:
        batch.append(atoms)
        if len(batch) == _BATCH:
            evaluate()
    if batch:
        evaluate()
    if not found:
        raise InputError("there are no frames")
    return np.concatenate(found)


def with_charges(dipoles: np.ndarray, frames: Sequence[Atoms], charges: Mapping[str, float]) -> np.ndarray:
    """Dipoles (T, 3), e A, plus those of the elements' charges (e) at the atoms. Atoms are followed across the cell's
    boundaries: the step of an atom is the shortest one to its place in the next frame.

    Raises InputError for an element without a charge.
    """
    symbols = frames[0].get_chemical_symbols()
    missing = [symbol for symbol in dict.fromkeys(symbols) if symbol not in charges]
    if missing:
        raise InputError(f"{missing[0]} has no charge; charges are given for {', '.join(charges)}")
    own = np.array([charges[symbol] for symbol in symbols])
    places = np.stack([atoms.positions for atoms in frames])
    steps, _ = find_mic(np.diff(places, axis=0).reshape(-1, 3), frames[0].cell, frames[0].pbc)
    moved = np.einsum("i,tix->tx", own, steps.reshape(len(frames) - 1, -1, 3)).cumsum(0)
    return dipoles + own @ places[0] + np.concatenate([np.zeros((1, 3)), moved])


def _power(
    series: np.ndarray, interval: float, resolution: float, limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Wavenumbers (K,), 1/cm, and the integral over t (fs) of the correlation of the rate of a series (T, n), times the
    window and exp(-iwt)."""
    _require_positive(interval=interval, resolution=resolution, limit=limit)
    deviation = 2 * np.sqrt(2 * np.log(2)) / (resolution * _PER_CM)  # standard deviation of the window, fs
    lags = int(np.ceil(_WIDE * deviation / interval))
    rate = np.diff(series, axis=0) / interval
    if len(rate) <= lags:
        raise InputError(
            f"a resolution of {resolution:g} 1/cm takes {lags + 2} frames that are {interval:g} fs apart, and there "
            f"are {len(series)}: make a longer run, or give a larger resolution (--resolution)"
        )
    highest = np.pi / interval / _PER_CM
    if limit > highest:
        raise InputError(
            f"frames that are {interval:g} fs apart have no wavenumbers beyond {highest:.0f} 1/cm, and the limit is "
            f"{limit:g}: write frames more often, or lower the limit"
        )
    rate = rate - rate.mean(0)
    size = 1 << (2 * len(rate) - 1).bit_length()
    transformed = np.abs(np.fft.rfft(rate, size, axis=0)) ** 2
    summed = np.fft.irfft(transformed.sum(1), size)[: lags + 1]
    times = np.arange(lags + 1)
    correlation = summed / (len(rate) - times) * np.exp(-0.5 * (times * interval / deviation) ** 2)
    grid = np.arange(1, int(limit * _POINTS / resolution) + 1) * (resolution / _POINTS)
    angles = np.outer(grid * _PER_CM * interval, times[1:])
    power = interval * (correlation[0] + 2 * np.cos(angles) @ correlation[1:])
    # The difference of two frames has a smaller amplitude than the rate, especially for fast motion.
    return grid, power / np.sinc(grid * _PER_CM * interval / (2 * np.pi)) ** 2


def _require_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (value > 0 and np.isfinite(value)):
            raise InputError(f"{name} is {value:g}, expected a positive number")
