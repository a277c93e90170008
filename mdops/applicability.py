"""The domain where a model was tested, as `mdops learn` writes it, and a guard against structures outside of it."""

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
USUAL = 0.95  # the share of frames of the last test whose deviation is usual
_MORE, _FEW = 4, 3  # so many times as many unusual frames as in the test, and so many on top, are outside


def domain_of(model: Potential) -> dict[str, Any]:
    """What the model says of where it was tested; empty where it says nothing.

    "deviation": the largest deviation of a force among frames of the last test's dynamics, eV/A; "usual_deviation":
    what 95 % of these frames stay below; "committee": the files beside the model whose answers the deviation is of;
    and, for people, "teacher", "labels", "errors", "temperatures" (K), "volumes" (A^3 an atom), "shares" of elements,
    "closest" pairs (A).
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
        for name, unit in (("temperatures", "K"), ("pressures", "GPa"), ("volumes", "A^3 an atom"))
        if domain.get(name)
    ]
    shares = [f"{e} {100 * a:.0f} to {100 * b:.0f} %" for e, (a, b) in domain.get("shares", {}).items()]
    closest = [f"{pair} {distance:.2f} A" for pair, distance in domain.get("closest", {}).items()]
    lines["domain"] = "; ".join(
        part for part in (", ".join(ranges), ", ".join(shares), f"closest pairs {', '.join(closest)}") if part
    )
    if domain.get("deviation"):
        lines["guard"] = f"a deviation of a force above {domain['deviation']:.3g} eV/A is outside of it"
    return lines


class DomainGuard:
    """Compares a model's forces with its committee's, and warns or stops where they differ more than they did in the
    dynamics that the model was tested in: in one structure more than ever there, or in many more than is usual there
    (in one of five that it was shown, and three more; there it was one of twenty).

    Attributes:
        level: the largest deviation of a force within the domain, eV/A. usual: what is usual there.
    """

    def __init__(
        self, models: Sequence[Potential], action: GuardAction, path: str | os.PathLike[str] | None
    ) -> None:
        """
        Args:
            models: those that simulate. Of one alone the others of its committee are read from files beside it.
            action: "warn" once, or "stop": raise OutsideDomainError.
            path: the file of the model.

        Raises:
            InputError: `action` is neither, or the model has no domain, or its committee is not there.
        """
        if action not in get_args(GuardAction):
            raise InputError(f"guard is {action!r}, expected {' or '.join(get_args(GuardAction))}")
        domain = domain_of(models[0])
        if not domain.get("deviation"):
            raise InputError(
                "guard: the model does not say where it was tested, as models of `mdops learn` do"
            )
        self.level, self._action, self._warned = float(domain["deviation"]), action, False
        self.usual, self._seen, self._unusual = float(domain["usual_deviation"]), 0, 0
        self._others = [] if len(models) > 1 else _committee(models[0], domain, path)

    def check(self, atoms: Atoms, forces: np.ndarray, forces_std: np.ndarray | None, when: str = "") -> float:
        """The deviation of the structure, eV/A.

        Args:
            atoms: the structure. forces: (N, 3), of the model. forces_std: (N,), of several models that simulate.
            when: for messages, as "at step 100".

        Raises OutsideDomainError where it is outside of the domain, and that is to stop the run.
        """
        if forces_std is None:
            both = np.stack([forces, *(model.compute(atoms)["forces"] for model in self._others)])
            forces_std = np.sqrt(((both - both.mean(0)) ** 2).sum(2).mean(0))
        atom = int(np.argmax(forces_std))
        deviation = float(forces_std[atom])
        self._seen += 1
        self._unusual += not deviation <= self.usual
        force = f"its committee differs by {deviation:.3g} eV/A in the force on atom {atom} ({atoms.symbols[atom]})"
        if not deviation <= self.level:
            self._outside(f"{force}, and by {self.level:.3g} at most where it was tested", when)
        elif self._unusual > _FEW + _MORE * (1 - USUAL) * self._seen:
            often = f"{self._unusual} of {self._seen} structures by more than {self.usual:.3g}"
            self._outside(f"{force}, and in {often}, as in one of twenty where it was tested", when)
        return deviation

    def _outside(self, what: str, when: str) -> None:
        place = f" {when}" if when else ""
        told = (
            f"outside of the model's domain{place}: {what}. Label such structures and train on them (`mdops learn`), "
            "or look at what happened to this one"
        )
        if self._action == "stop":
            raise OutsideDomainError(told)
        if not self._warned:
            warnings.warn(told, stacklevel=4)
            self._warned = True


def _committee(
    model: Potential, domain: dict[str, Any], path: str | os.PathLike[str] | None
) -> list[Potential]:
    """The others of the model's committee, from the files beside it."""
    if path is None:
        raise InputError("guard: give the model as a file, or all models of its committee")
    files = [Path(path).parent / name for name in domain.get("committee", [])]
    files = [file for file in files if file.name != Path(path).name]
    lacking = [str(file) for file in files if not file.is_file()]
    if lacking or not files:
        raise InputError(f"guard: the committee of {path} is not beside it: there is no {', '.join(lacking)}")
    dtype = str(model.dtype).removeprefix("torch.")
    return [load(file, device=model.device, dtype=dtype, overflow=model.overflow) for file in files]
