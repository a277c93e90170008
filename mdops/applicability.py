"""The domain in which a model was tested, as `mdops learn` writes it, and a guard that detects structures outside."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from ase import Atoms

from mdops.errors import InputError, OutsideDomainError
from mdops.loading import load
from mdops.potential import Potential

GuardAction = Literal["warn", "stop"]

KEY = "domain"  # in a model's `source`
USUAL = 0.95  # the share of the last test's frames that are below the usual deviation
_MORE, _FEW = 4, 3  # outside: more unusual frames than `_MORE` times the share in the test, plus `_FEW`


def domain_of(model: Potential) -> dict[str, Any]:
    """The range in which the model was tested, as stored in the model; empty if it stores none.

    "deviation": the largest deviation of a force in the frames of the last test, eV/A. "usual_deviation": 95 % of
    these frames are below it. "committee": files beside the model; the deviation is that of the forces of these models.
    For people there are "teacher", "labels", "errors", "temperatures" (K), "volumes" (A^3 per atom), "shares" of
    elements, and "closest" pairs (A).
    """
    told = model.source.get(KEY)
    return told if isinstance(told, dict) else {}


def describe_domain(domain: dict[str, Any]) -> dict[str, str]:
    """The domain in words, a line for each part."""
    if not domain:
        return {}
    errors, lines = domain.get("errors", {}), dict[str, str]()
    if domain.get("teacher"):
        lines["learned from"] = f"{domain['teacher']}, {domain.get('labels')} labels"
    if errors:
        lines["tested"] = (
            f"{1000 * errors['forces']:.3g} meV/A, {1000 * errors['energy']:.3g} meV/atom (RMSE) on {errors['frames']} "
            "fresh frames of its own dynamics"
        )
    ranges = [
        f"{' to '.join(f'{value:.4g}' for value in dict.fromkeys(domain[name]))} {unit}"
        for name, unit in (("temperatures", "K"), ("pressures", "GPa"), ("volumes", "A^3 per atom"))
        if domain.get(name)
    ]
    shares = [f"{e} {100 * a:.0f} to {100 * b:.0f} %" for e, (a, b) in domain.get("shares", {}).items()]
    closest = [f"{pair} {distance:.2f} A" for pair, distance in domain.get("closest", {}).items()]
    lines["domain"] = "; ".join(
        part for part in (", ".join(ranges), ", ".join(shares), f"closest pairs {', '.join(closest)}") if part
    )
    if domain.get("deviation"):
        lines["guard"] = (
            f"structures whose forces deviate by more than {domain['deviation']:.3g} eV/A are outside"
        )
    return lines


class DomainGuard:
    """Compares a model's forces with those of its committee. It warns or stops if they differ more than in the dynamics
    in which the model was tested: if one structure has a larger deviation than any there, or if many more structures
    than there have an unusual one (there 1 of 20; here more than 1 of 5, plus 3).

    Attributes:
        level: the largest deviation of a force within the domain, eV/A. usual: 95 % of the test's frames are below it.
    """

    def __init__(
        self, models: Sequence[Potential], action: GuardAction, path: str | os.PathLike[str] | None
    ) -> None:
        """
        Args:
            models: the models of the simulation. The committee of a single model is read from files beside it.
            action: "warn" (once), or "stop" (raise OutsideDomainError).
            path: the file of the model.

        Raises:
            InputError: `action` is neither, the model has no domain, or files of its committee are missing.
        """
        if action not in get_args(GuardAction):
            raise InputError(f"guard is {action!r}, expected {' or '.join(get_args(GuardAction))}")
        domain = domain_of(models[0])
        if not domain.get("deviation"):
            raise InputError(
                "guard: the model file does not say where it was tested; only models of `mdops learn` do"
            )
        self.level, self._action, self._warned = float(domain["deviation"]), action, False
        self.usual, self._seen, self._unusual = float(domain["usual_deviation"]), 0, 0
        self._others = [] if len(models) > 1 else _committee(models[0], domain, path)

    def check(self, atoms: Atoms, forces: np.ndarray, forces_std: np.ndarray | None, when: str = "") -> float:
        """The deviation of the structure, eV/A.

        Args:
            atoms: the structure. forces: (N, 3), of the model. forces_std: (N,), if several models simulate.
            when: a part of the message, such as "at step 100".

        Raises OutsideDomainError if the structure is outside of the domain and `action` is "stop".
        """
        if forces_std is None:
            both = np.stack([forces, *(model.compute(atoms)["forces"] for model in self._others)])
            forces_std = np.sqrt(((both - both.mean(0)) ** 2).sum(2).mean(0))
        atom = int(np.argmax(forces_std))
        deviation = float(forces_std[atom])
        self._seen += 1
        self._unusual += not deviation <= self.usual
        force = f"the forces of its committee on atom {atom} ({atoms.symbols[atom]}) deviate by {deviation:.3g} eV/A"
        if not deviation <= self.level:
            self._outside(f"{force}; in the test the largest deviation was {self.level:.3g}", when)
        elif self._unusual > _FEW + _MORE * (1 - USUAL) * self._seen:
            often = f"{self._unusual} of {self._seen} structures deviate by more than {self.usual:.3g}"
            self._outside(f"{force}, and {often}; in the test 1 of 20 did", when)
        return deviation

    def _outside(self, what: str, when: str) -> None:
        place = f" {when}" if when else ""
        told = (
            f"outside of the model's domain{place}: {what}. Label such structures and train on them (`mdops learn`), "
            "or check whether this structure is physical"
        )
        if self._action == "stop":
            raise OutsideDomainError(told)
        if not self._warned:
            warnings.warn(told, stacklevel=4)
            self._warned = True


def _committee(
    model: Potential, domain: dict[str, Any], path: str | os.PathLike[str] | None
) -> list[Potential]:
    """The other models of the committee, from the files beside the model."""
    if path is None:
        raise InputError("guard: give the model as a file, or all models of its committee")
    files = [Path(path).parent / name for name in domain.get("committee", [])]
    files = [file for file in files if file.name != Path(path).name]
    lacking = [str(file) for file in files if not file.is_file()]
    if lacking or not files:
        raise InputError(f"guard: the committee of {path} is not beside it: there is no {', '.join(lacking)}")
    dtype = str(model.dtype).removeprefix("torch.")
    return [load(file, device=model.device, dtype=dtype, overflow=model.overflow) for file in files]
