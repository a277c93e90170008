"""The ASE calculator: one Deep Potential model, or several models with their mean and deviation."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes
from ase.outputs import Properties, all_outputs

from mdops.applicability import DomainGuard, GuardAction
from mdops.errors import InputError
from mdops.flags import require_flags
from mdops.inputs import check_models, takes
from mdops.loading import load
from mdops.models import Output
from mdops.models.charge_spin import charge_spin_defaults
from mdops.potential import Matmul, Overflow, Potential
from mdops.system import System, as_numbers, as_real, atom_spins, charges_and_spins, number_types, voigt
from mdops.tracing import outside_inference_mode
from mdops.verlet import VerletList

__all__ = ["MDOps"]

Model = str | os.PathLike[str] | Potential
Snapshot = dict[str, np.ndarray | None]
_GUARD_EVERY = 10  # a guard that has to evaluate further models is called once in so many calculations


class MDOps(Calculator):
    """`atoms.calc = MDOps("model.dp")`: energy, free_energy, energies, forces, stress, stresses.

    Neighbour lists reach `skin` beyond the cutoff and are rebuilt only when needed. Results are kept only for the atoms
    for which they were computed, so one calculator may be used for any number of Atoms. ASE's stress is
    -virial / volume, for cells that are periodic in three directions; for other cells, ASE's
    PropertyNotImplementedError is raised. `stresses` are per atom, eV/A^3, and sum to the stress.

    Frame and atomic parameters are `atoms.info["fparam"]` (p,) and `atoms.arrays["aparam"]` (N, q), or else the
    `fparam` and `aparam` given here. Results are computed again when they change. If there are several models, those
    that have a parameter get it; a parameter that no model has is an error.

    With several models, results are means over the K models, and `results` also has deviations:
        forces_std (N,), sqrt(mean_k |F_k - <F>|^2), eV/A: DeePMD-kit's model deviation of forces,
        energy_std, sqrt(mean_k (E_k - <E>)^2), eV.
    `results["virial"]` (3, 3), eV, is always available.

    A model with magnetic moments uses those of the atoms (`atoms.set_initial_magnetic_moments`: vectors, or numbers
    along z). `results["force_mag"]` (N, 3) is minus the derivative of the energy by them.

    If a model has a modifier (`dipole_charge`), the energy, forces and stress of its charges are added, and there are
    no `stresses`.

    A model of other outputs gives these, under their names, instead of energies: `atoms.get_dipole_moment()` and
    `results["dipole"]` (3,), e A; `results["polarizability"]` (3, 3), "dos", or a property; and for each atom
    "atom_dipole" and so on. "dipole_forces" (N, 3, 3) and "dipole_virial" (3, 3, 3) are minus the derivatives of
    dipoles by positions and strain, the dipole's component first. Several models also give `<name>_std`.

    Attributes:
        models: the potentials.
        type_map: the elements the models know.
    """

    implemented_properties: list[str] = [  # noqa: RUF012  (as ASE declares it)
        "energy", "free_energy", "energies", "forces", "stress", "stresses",
    ]  # fmt: skip

    def __init__(
        self,
        model: Model | Sequence[Model],
        *,
        head: str | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str = "float32",
        skin: float = 1.0,
        overflow: Overflow = "error",
        spline: bool = True,
        r_min: float | None = None,
        matmul: Matmul = "float32",
        allow_low_bit: bool = False,
        fparam: Any = None,
        aparam: Any = None,
        guard: GuardAction | None = None,
    ) -> None:
        """Reads the models that are given as files.

        Args:
            model: a file, a Potential, or a sequence of these.
            head, device, dtype, overflow, spline, r_min, matmul, allow_low_bit: for files, as in `mdops.load`; a
                Potential is used as it is.
            skin: A; with a larger one, lists last longer and steps take more time.
            fparam: (p,); aparam: (N, q) or (q,).
            guard: "warn" (once) or "stop" (raise OutsideDomainError) if the models' committee differs more than in the
                test of `mdops learn`. The committee of a single model is read from files beside it, and evaluated in
                every tenth calculation.

        Raises:
            InputError: no model; models of different elements; parameters that the models do not have; r_min or
                spline=False for a Potential; another matmul than "float32" where it has no effect, or for a
                Potential with another one; a low-bit model without `allow_low_bit`.
            ModelFileError, UnsupportedModelError: as `mdops.load`.
        """
        super().__init__()
        require_flags(spline=spline, allow_low_bit=allow_low_bit)
        sources = [model] if isinstance(model, str | os.PathLike | Potential) else _several(model)
        if head is not None and any(isinstance(m, Potential) for m in sources):
            raise InputError(
                f"head={head!r} is for model files: load the Potential with mdops.load(..., head=...)"
            )
        _refuse_spline_options([m for m in sources if isinstance(m, Potential)], spline, r_min)
        self.models = [
            m
            if isinstance(m, Potential)
            else load(
                m,
                head=head,
                device=device,
                dtype=dtype,
                spline=spline,
                overflow=overflow,
                r_min=r_min,
                matmul=matmul,
                allow_low_bit=allow_low_bit,
            )
            for m in sources
        ]
        check_models(self.models, energies=False)
        self._outputs = self.models[0].model.outputs
        if not self.models[0].answers_energies:
            self.implemented_properties = [
                name for output in self._outputs for name in (output.name, output.atom_name)
            ]
        if any(m.modifier is not None for m in self.models):
            self.implemented_properties = [name for name in self.implemented_properties if name != "stresses"]
        if any(m.model.spin is not None for m in self.models):
            self.implemented_properties = [*self.implemented_properties, "force_mag"]
        if matmul != "float32" and any(m.matmul != matmul for m in self.models):
            raise InputError(
                f"matmul is {matmul!r}, but the Potential has another: call its use_matmul({matmul!r})"
            )
        self.type_map = list(self.models[0].type_map)
        self.skin = _length("skin", skin)
        self.parameters.update(models=[str(m) for m in sources if not isinstance(m, Potential)])
        # The parameters of the models themselves: for a Potential, the arguments for files have no effect.
        self.parameters.update(
            matmul=_each(m.matmul for m in self.models),
            device=_each(m.device for m in self.models),
            dtype=_each(str(m.dtype).removeprefix("torch.") for m in self.models),
            skin=self.skin,
        )
        path = sources[0] if not isinstance(sources[0], Potential) else None
        self.guard = None if guard is None else DomainGuard(self.models, guard, path)
        self._calculations = 0
        self._snapshot: Snapshot | None = None
        self._constant: tuple[np.ndarray, np.ndarray, list[System]] | None = None
        self.renew_lists()
        self.set(fparam=fparam, aparam=aparam)

    def set(self, **changes: Any) -> dict[str, Any]:
        """Set `fparam` or `aparam`, the only parameters that can be changed later."""
        for name, value in changes.items():
            if name not in ("fparam", "aparam"):
                raise InputError(f"`{name}` of MDOps cannot change after it is made; fparam and aparam can")
            if value is not None and not self._takes(name):
                raise InputError(f"{name} is given, but the model takes none")
            _optional(name, value)  # an error now, not at the first calculation
        return super().set(**changes)

    def _takes(self, name: str) -> bool:
        """Whether some model has that parameter."""
        return any(takes(m, name) for m in self.models)

    @property
    def neighbor_lists(self) -> list[VerletList]:
        """The current lists; models with the same cutoff and type map share one."""
        return list(self._lists.values())

    def renew_lists(self) -> None:
        """Forget the neighbour lists and the last results, so that the next results depend only on the atoms."""
        # Rows of a list are ordered by type, so models share a list only if their type maps are the same, too.
        self._lists = {
            _list_key(m): VerletList(m.cutoff, self.skin, ntypes=len(m.type_map)) for m in self.models
        }
        self.reset()

    def saved_lists(self) -> dict[str, np.ndarray]:
        """What the neighbour lists were built for, for `restore_lists`."""
        return {
            f"list {k} {part}": value.cpu().numpy()
            for k, own in enumerate(self._lists.values())
            for part, value in enumerate(own.built_for)
        }

    def restore_lists(self, saved: Mapping[str, np.ndarray]) -> None:
        """Builds the lists again that were `saved`."""
        for k, (key, own) in enumerate(self._lists.items()):
            parts = sorted(name for name in saved if name.startswith(f"list {k} "))
            if parts:
                own.update(*(torch.as_tensor(saved[name], device=key[1]) for name in parts))

    def reset(self) -> None:
        super().reset()
        self._snapshot = None

    def check_state(self, atoms: Atoms, tol: float = 0.0) -> list[str]:
        """The properties that changed since the last calculation, compared exactly, without ASE's tolerance."""
        if self._snapshot is None:
            return list(all_changes)
        now, old = self._state(atoms), self._snapshot
        return [name for name, value in now.items() if not _same(value, old[name])]

    @outside_inference_mode
    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Fill `results`; called by ASE."""
        atoms = self.atoms if atoms is None else atoms
        if atoms is None:
            raise InputError("MDOps has no atoms to calculate")
        # If several properties are requested, those that exist are given.
        is_periodic = bool(self._pbc(atoms).all())
        if properties and not is_periodic and {*properties} <= {"stress", "stresses"}:
            raise PropertyNotImplementedError(
                f"there is no {properties[0]} of atoms that are not periodic in three directions (pbc is {atoms.pbc}): "
                "there is no volume. A slab in a cell with vacuum may be given pbc in all three"
            )
        per_atom = {"stresses"} <= {*properties} & {*self.implemented_properties} and is_periodic
        # After an error there must be no old results.
        self.reset()
        state = self._state(atoms)
        answers = [
            _numpy(self._evaluate(m, s, state, per_atom))
            for m, s in zip(self.models, self._systems(state), strict=True)
        ]
        volume = abs(np.linalg.det(atoms.cell.array)) if is_periodic else 0.0
        has_energies = self.models[0].answers_energies
        self.results = _results(answers, volume) if has_energies else _other_results(answers, self._outputs)
        self._snapshot = {name: None if v is None else v.copy() for name, v in state.items()}
        self.atoms = atoms.copy()
        if self.guard is not None and (len(self.models) > 1 or self._calculations % _GUARD_EVERY == 0):
            self.guard.check(atoms, self.results["forces"], self.results.get("forces_std"))
        self._calculations += 1

    def export_properties(self) -> Properties:
        """The results that ASE has a name for."""
        return Properties({name: value for name, value in self.results.items() if name in all_outputs})

    def _state(self, atoms: Atoms) -> Snapshot:
        """Everything that the results depend on, not copied."""
        return {
            "positions": atoms.arrays["positions"],
            "numbers": atoms.arrays["numbers"],
            "cell": atoms.cell.array,
            "pbc": self._pbc(atoms),
            "fparam": _optional("fparam", atoms.info.get("fparam", self.parameters.get("fparam"))),
            "aparam": _optional("aparam", atoms.arrays.get("aparam", self.parameters.get("aparam"))),
            "charge_spin": charges_and_spins(
                [atoms], [default for m in self.models for default in charge_spin_defaults(m.model)]
            ),
            "spins": atom_spins([atoms]) if any(m.model.spin is not None for m in self.models) else None,
        }

    def _pbc(self, atoms: Atoms) -> np.ndarray:
        """(3,): in which directions they are periodic."""
        return atoms.pbc

    def _systems(self, state: Snapshot) -> list[System]:
        """The atoms in the form that each model takes; types, pbc and batch are reused until they change."""
        positions, cell, numbers, pbc = (state[n] for n in ("positions", "cell", "numbers", "pbc"))
        assert positions is not None and cell is not None and numbers is not None and pbc is not None
        old = self._constant
        if old is None or not np.array_equal(numbers, old[0]) or not np.array_equal(pbc, old[1]):
            fresh = [_constant_part(m, self._types(numbers, m.type_map), pbc) for m in self.models]
            old = self._constant = numbers.copy(), pbc.copy(), fresh
        x = torch.from_numpy(np.ascontiguousarray(as_real("positions", positions)))
        h = torch.from_numpy(np.ascontiguousarray(as_real("cell", cell)))[None]
        given = state["charge_spin"]
        return [
            System(
                x.to(part.types.device),
                part.types,
                h.to(part.types.device),
                part.pbc,
                part.batch,
                charge_spin=None if given is None else torch.from_numpy(given).to(part.types.device),
            )
            for part in old[2]
        ]

    def _types(self, numbers: np.ndarray, type_map: Sequence[str]) -> np.ndarray:
        """(N,): the types of atoms with these atomic numbers, for a model with these elements."""
        return number_types(numbers, type_map)

    def _evaluate(
        self, model: Potential, system: System, state: Snapshot, per_atom: bool
    ) -> dict[str, torch.Tensor]:
        moments = state["spins"]
        spins = None
        if model.model.spin is not None and moments is not None:
            spins = torch.as_tensor(moments, device=model.device)
        fparam, aparam = (
            torch.as_tensor(state[name], device=model.device)
            # A parameter that no model has is given to all of them, and they raise the error.
            if state[name] is not None and (takes(model, name) or not self._takes(name))
            else None
            for name in ("fparam", "aparam")
        )
        if aparam is not None and aparam.dim() == 1 and model.parameter_sizes["aparam"] == 1:
            aparam = aparam[:, None] if len(aparam) == system.atoms else aparam
        neighbors = self._lists[_list_key(model)]
        return model.evaluate_atoms(
            system, fparam, aparam, spins=spins, neighbors=neighbors, atom_virial=per_atom
        )


def _list_key(model: Potential) -> tuple[Any, ...]:
    return (model.cutoff, model.device, *model.type_map)


def _each(values: Iterable[Any]) -> str:
    """A value of the models in words: one if it is the same for all."""
    return ", ".join(dict.fromkeys(map(str, values)))


def _several(models: Any) -> list[Model]:
    """The models in a sequence."""
    if not isinstance(models, Sequence) or not all(
        isinstance(m, str | os.PathLike | Potential) for m in models
    ):
        raise InputError(f"model is {models!r}, expected a file, a Potential, or a list of those")
    return list(models)


def _length(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is {value!r}, expected a length in A") from error


def _refuse_spline_options(ready: Sequence[Potential], spline: bool, r_min: float | None) -> None:
    """Raises InputError for options that would have no effect on `ready` potentials, which are used as they are."""
    option = None
    if ready and r_min is not None:
        option = f"r_min={r_min}"
    elif not spline and any(model.r_min is not None for model in ready):
        option = "spline=False"
    if option is not None:
        raise InputError(
            f"{option} applies to model files only: load the Potential with mdops.load(..., {option})"
        )


def _optional(name: str, value: Any) -> np.ndarray | None:
    return None if value is None else as_numbers(name, value)


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b if a is None or b is None else np.array_equal(a, b)


def _constant_part(model: Potential, types: np.ndarray, pbc: np.ndarray) -> System:
    """A System without positions and cell, which are set later."""
    nothing = torch.empty(0, dtype=torch.float64)
    return System(
        nothing,
        torch.as_tensor(types, dtype=torch.int32, device=model.device),
        nothing,
        torch.as_tensor(pbc, device=model.device).clone()[None],
        torch.zeros(len(types), dtype=torch.int32, device=model.device),
    )


def _numpy(answer: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value.cpu().numpy(), np.float64) for name, value in answer.items()}


def _other_results(answers: Sequence[dict[str, np.ndarray]], outputs: Sequence[Output]) -> dict[str, Any]:
    """For models without energies: means of their outputs, and the deviations of the system's outputs."""
    mean = {name: np.mean([a[name] for a in answers], axis=0) for name in answers[0]}
    results: dict[str, Any] = {}
    for output in outputs:
        of_atoms = output.atom_name
        results[of_atoms] = mean[of_atoms]
        if output.extensive or output.intensive:
            results[output.name] = mean[output.name][0]
            if len(answers) > 1:
                results[f"{output.name}_std"] = np.std([a[output.name][0] for a in answers], axis=0)
        if output.differentiated:
            results[f"{output.name}_forces"] = mean["forces"]
            results[f"{output.name}_virial"] = mean["virial"][0]
    return results


def _results(answers: Sequence[dict[str, np.ndarray]], volume: float) -> dict[str, Any]:
    """ASE's results from the models' answers; `volume` is 0 if there is no stress."""
    mean = answers[0]
    if len(answers) > 1:
        # The energy of a model without magnetic moments does not change with them.
        without = (
            {"force_mag": np.zeros_like(mean["forces"])} if any("force_mag" in a for a in answers) else {}
        )
        mean = {
            name: np.mean([(without | a)[name] for a in answers], axis=0)
            for name in {**without, **answers[0]}
        }
    energy, virial = float(mean["energy"][0]), mean["virial"][0]
    results = {"energy": energy, "free_energy": energy, "energies": mean["atom_energy"]}
    results |= {name: mean[name] for name in ("forces", "force_mag") if name in mean}
    results["virial"] = virial
    if volume > 0:
        results["stress"] = voigt(-virial / volume)
        if "atom_virial" in mean:
            results["stresses"] = voigt(-mean["atom_virial"] / volume)
    if len(answers) > 1:
        deviations = np.array([a["forces"] for a in answers]) - mean["forces"]
        results["forces_std"] = np.sqrt((deviations**2).sum(-1).mean(0))
        results["energy_std"] = float(np.std([a["energy"][0] for a in answers]))
    return results
