"""Embeddings of a system's charge and multiplicity, which is 2 S + 1, in descriptors."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.errors import InputError
from mdops.system import CHARGES, MULTIPLICITIES, System

EXPECTED = "a charge, -100 to 99, and a multiplicity, 0 to 99"


def is_charge_spin(given: Sequence[float] | None) -> bool:
    """Whether an option `default_chg_spin` is `EXPECTED`, or None."""
    if given is None:
        return True
    return len(given) == 2 and int(given[0]) in CHARGES and int(given[1]) in MULTIPLICITIES


def charge_spin_defaults(model: Any) -> tuple[Sequence[float] | None, ...]:
    """The default of each part with such an embedding; None for those without one."""
    return tuple(default for one in model.descriptors for default in one.charge_spin_defaults)


def charge_spin_rows(
    charges: torch.Tensor, spins: torch.Tensor, system: System, default: Sequence[float] | None
) -> torch.Tensor:
    """Rows of tables (200, W) and (100, W) for each system's charge and multiplicity, side by side.

    Args:
        default: for systems without them; None: an error.

    Returns:
        (S, 2 W), or (1, 2 W) of the default.

    Raises:
        InputError: the system has none, and there is no default.
    """
    given = system.charge_spin
    if given is not None:
        charge, spin = given.long().unbind(1)
        return torch.cat([charges[charge - CHARGES.start], spins[spin - MULTIPLICITIES.start]], 1)
    if default is None:
        raise InputError(
            "the model has an embedding of charge and multiplicity and no default: give them with each system, as "
            "`atoms.info['charge_spin'] = [0, 1]`, in charge_spin.npy, or as `charge_spin 0 1` in LAMMPS' pair style"
        )
    row, other = CHARGES.index(int(default[0])), MULTIPLICITIES.index(int(default[1]))
    return torch.cat([charges[row], spins[other]])[None]
