"""A model that is ready to use: it makes lists, chooses an evaluator, checks neighbours, sums over atoms."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np
import torch

from mdops import evaluators
from mdops import system as systems
from mdops.core.export import PRECISIONS, core_arrays, core_arrays_unasked, why_no_core
from mdops.errors import InputError, UnsupportedModelError
from mdops.evaluators.autograd import Autograd
from mdops.evaluators.base import Evaluator, Step
from mdops.evaluators.context import EvaluationContext, Matmul, Use
from mdops.evaluators.one_op import Fused
from mdops.flags import require_flags
from mdops.hessian import hessians
from mdops.io import write_model
from mdops.io.tree import with_digits
from mdops.io.write import require_writable
from mdops.jit import kernels
from mdops.models import model_of_tree
from mdops.models.contract import AtomicModel, Tree
from mdops.models.judge import Overflow
from mdops.models.net_fitting import NetFitting
from mdops.ops import NeighborList
from mdops.system import System
from mdops.tracing import outside_inference_mode
from mdops.verlet import VerletList

if TYPE_CHECKING:
    from torch.export import ExportedProgram

T = TypeVar("T")


def _in_own_precision(method: Callable[..., T]) -> Callable[..., T]:
    """The method without autocast, in which PyTorch's operations would round float32 to 16 bits."""

    @wraps(method)
    def own(self: "Potential", *args: Any, **kwargs: Any) -> T:
        device = self.device.type
        if not torch.is_autocast_enabled(device):
            return method(self, *args, **kwargs)
        with torch.autocast(device, enabled=False):
            return method(self, *args, **kwargs)

    return own


def why_not_matmul(potential: EvaluationContext, matmul: str) -> str | None:
    """Why this model, on its device and in its state, cannot be evaluated with products of that accuracy (other than
    float32); None if it can."""
    on_gpu = potential.device.type == "cuda"
    if matmul == "tf32" and not on_gpu:
        return f"the model is on {potential.device}, and only GPUs have such products"
    if matmul != "tf32" and on_gpu:
        return (
            "a GPU has no such products: use 'tf32', which is as fast as bf16 and more accurate, or float32, which is "
            "as fast as bf16x3 and bf16x6"
        )
    if matmul != "tf32" and not torch.ops.mdops.cpu_bf16():
        return "this CPU has neither AMX nor AVX512-BF16, or its kernels for AVX-512 are switched off"
    if potential.dtype != torch.float32:
        return f"the model computes in {str(potential.dtype).removeprefix('torch.')}"
    if potential.model.takes_matmul(matmul):
        return None
    if potential.overflow == "truncate":
        return "overflow='truncate' evaluates the steps that drop neighbours by PyTorch's own products"
    problem = Fused.why_not(potential)
    return problem and f"the fused step, which has such products, does not cover this model: {problem}"


_EVALUATORS: dict[str, Sequence[type[Evaluator]]] = {
    "simulate": evaluators.SIMULATE,
    "differentiate": evaluators.DIFFERENTIATE,
    "train": evaluators.TRAIN,
}


class Potential(EvaluationContext):
    """The energy E = sum_i e_i of any atomic model, with forces and virials as its derivatives. Models of other
    outputs, such as dipoles, give these under their names instead of energies (docs/reference/models.md).

    Made by `mdops.load`. Parameters have the compute dtype; positions, cells and energies are float64. An evaluator
    computes the results: `evaluator` chooses the first that supports the model (mdops.evaluators).

    Attributes, in addition to those of `mdops.evaluators.context.EvaluationContext`:
        source: the origin of the model, as `mdops.io.ModelFile.source`; `save` writes it, too.
        read: the tree of the file from which it was loaded, whose numbers may have more digits than the compute dtype;
            `save` writes these numbers for weights that did not change.
        allow_low_bit: whether dynamics with a low-bit model is allowed (`MDOps`, the engine).
    """

    def __init__(self, model: AtomicModel, *, overflow: Overflow = "error") -> None:
        super().__init__(model, overflow=overflow)
        self.source: dict[str, Any] = {}
        self.read: Tree | None = None
        self.allow_low_bit = False

    @property
    def sel(self) -> list[int] | list[list[int]]:
        """Places for neighbours of each type; if a model has several parts, a list for each of them."""
        places = [list(spec.sel or ()) for spec in self.neighbors]
        return places[0] if len(places) == 1 else places

    def splines(self) -> str | None:
        """The model's splines in words; None if it has none."""
        angles = [f"{knots.intervals} of angles" for knots in self.angle_knots if knots is not None]
        if not self.knots:
            own = self.spline_tolerance is not None and self.own_evaluator().chooses_knots
            return "splines with knots for the types that there are" if own else None
        every = (self.grid, *self.attention_grids, *self.inner_grids)
        grids = [str(grid.intervals) for grid in every if grid is not None]
        counts = grids + list(dict.fromkeys(angles))
        return f"splines of {' and '.join(counts)} intervals beyond {self.r_min:g} A"

    # -- How it is evaluated

    def use_matmul(self, matmul: Matmul) -> None:
        """Choose the accuracy of the matrix products in `evaluate` and in everything that uses it: the products of the
        fitting net, or of layers that pass messages, in kinds of models that have the choice.

        "float32" has the accuracy of float32 (22 bits on a GPU). The others are for simulations, faster and less
        accurate. All sum in float32: "tf32" keeps 11 bits of each factor, on a GPU; "bf16x6" all 24, "bf16x3" 16 and
        "bf16" 8, on a CPU with AMX or AVX512-BF16 (matmul.md has their errors and speeds). The choice is kept when the
        model is copied, pickled or moved; `save` does not write it.

        Raises:
            InputError: an unknown name, or one that has no effect: on a device without such products, in float64, with
                exact nets, with overflow "truncate", and for models that the fused step does not support and whose
                layers have no choice. If the model is moved or changed to such a state later, `evaluate` raises the
                error.
        """
        if matmul not in get_args(Matmul):
            raise InputError(f"matmul is {matmul!r}, expected one of {', '.join(get_args(Matmul))}")
        if matmul != "float32":
            self._refuse_matmul(matmul, why_not_matmul(self, matmul))
        self._matmul = matmul

    def _refuse_matmul(self, matmul: Matmul, problem: str | None) -> None:
        if problem is not None:
            raise InputError(
                f"matmul is {matmul!r}, and {problem}: use matmul 'float32' (`Potential.use_matmul`)"
            )

    def evaluator(self, use: Use = "simulate") -> Any:
        """The first evaluator that supports the model in its state and on its device: to "simulate", to "differentiate"
        by positions and weights, or to "train" (differentiable in the weights).

        Raises UnsupportedModelError if there are charges beyond the cutoff, which only `evaluate` adds."""
        self.require_no_modifier("a model's evaluator")
        return self.own_evaluator(use)

    def own_evaluator(self, use: Use = "simulate") -> Any:
        """The same, also for models with charges, which the caller then has to add."""
        watch = self._watching()
        # An evaluator may cache results of buffers, such as the statistics of the data, which no step changes.
        state = (*self._structure(), watch, watch.buffers())
        kind = self._same(f"kind to {use}", state, lambda: self._first(use))
        if use == "simulate" and self._matmul != "float32":
            why_not = self._same("why not", state, lambda: why_not_matmul(self, self._matmul))
            self._refuse_matmul(self._matmul, why_not)
        if kind.packs_weights:
            return self._same(kind.name, (*state, watch.parameters()), lambda: kind(self))
        return self._same(use, (kind, *state), lambda: kind(self))

    def _first(self, use: Use) -> type[Evaluator]:
        if self.dtype not in (torch.float32, torch.float64):
            raise InputError(f"the model is in {self.dtype}: models compute in float32 or float64")
        return next((kind for kind in _EVALUATORS[use] if kind.why_not(self) is None), Autograd)

    def explain(self, use: Use = "simulate") -> str:
        """In one line: the evaluator in use, why no faster one is used, and what that costs."""
        kinds = _EVALUATORS[use]
        kind = self._first(use)
        of = f"({self.scheme.name}: {self.scheme.words})" if self.scheme else None
        line = " ".join(filter(None, [f"{kind.name}: {kind.summary}", kind.kernels(self), of]))
        faster = [k for k in kinds[: list(kinds).index(kind)] if self.device.type in k.devices]
        missed = [(k, k.why_not(self)) for k in faster if k.knows(self)]
        if not missed:
            return (
                f"{line}; mdops has no faster evaluator for {self.kind}"
                if kind is kinds[-1] and faster
                else line
            )
        reasons = "; ".join(dict.fromkeys(why for _, why in missed if why is not None))
        return f"{line}; not {' or '.join(k.name for k, _ in missed)}: {reasons} ({missed[0][0].cost})"

    def rebuilt_kernels(self) -> str | None:
        return kernels.taken_from_cache(self)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        core: Sequence[str] | None = None,
        elements: Sequence[str] | None = None,
    ) -> None:
        """Write a file that `mdops.load` reads, with `source`. Weights have the precision that the options name. Those
        that did not change since they were loaded keep all digits of the file, whatever the compute dtype is.

        The suffix determines the format: .dp or .yaml, which DeePMD-kit reads too, .json, or .safetensors (formats.md).
        A .safetensors file also contains data for the C core and LAMMPS, if the core evaluates the model
        (docs/reference/core.md) and it has at most eight types: that takes time and space.

        Args:
            path: the file; it is replaced once the new one is complete.
            core: "float32", "float64" or both: precisions for which the core's part must be written; empty: none.
            elements: the types for which the core's part is made, for a model of many; by default all.

        Raises:
            ModelFileError: weights are not finite, the suffix is unknown, or the file cannot be written.
            UnsupportedModelError: the C core does not evaluate the model, but `core` or `elements` is given.
            InputError: an unknown precision or element.
        """
        require_writable(path)
        tree, exact = self.model.to_tree(), self
        if self.read is not None:
            tree = with_digits(tree, self.read, np.float32)
            exact = Potential(model_of_tree(tree, torch.float64), overflow=self.overflow)
            exact.grids, exact.source = self.grids, self.source  # grids: for their r_min
            exact.modifier = self.modifier
        more: Mapping[str, np.ndarray] = {}
        without = why_no_core(self.source, self.modifier)
        if without and (core or elements):
            raise UnsupportedModelError(without)
        if core or elements:
            more = core_arrays(exact, core or tuple(PRECISIONS), elements)
        elif core is None and not without and Path(path).suffix == ".safetensors":
            more, _ = core_arrays_unasked(exact)
        write_model(path, tree, self.source, more)

    def export(
        self, *, capacity: int | None = None, angle_capacity: int | None = None, atom_virial: bool = False
    ) -> "ExportedProgram":
        """A `torch.export` program of energies, forces and virials, for any number of atoms, neighbours and systems.

        It contains the current weights, and runs on the model's device with the same evaluator as `evaluate`.
        `torch.export.save` writes it, and `torch._inductor.aoti_compile_and_package` compiles it. To run, it needs the
        library of the ops, and nothing else of mdops (docs/how-to/compile.md).

        Args:
            capacity: the number of neighbours per atom for which the program's own neighbour list has room. None: the
                program takes a list.
            angle_capacity: for a model with angles between edges, how many neighbours of an atom may be within the
                cutoff of angles; time and memory grow with its square. None: as many as the model's sel allows, or, if
                that sets no limit, as many as the list has places.
            atom_virial: return atomic virials, too.

        Returns:
            The program. Its inputs are positions (N, 3) float64, types (N,) int32, cell (S, 3, 3) float64; then without
            a capacity batch (N,) int32, neighbors and images (N, K) and counts (N, ntypes), int32, or with one pbc
            (S, 3) bool and batch; then fparam (S, p), aparam (N, q), charge_spin (S, 2) and spins (N, 3), float64, if
            the model has them (ops.md, "Conventions"). It returns a dict of energy (S,), atom_energy (N,), forces
            (N, 3), virial (S, 3, 3) and, if requested, atom_virial (N, 3, 3), eV and A, with spins also force_mag
            (N, 3); all are NaN if `evaluate` would raise an error about the atoms, or if a capacity is too small.

        Raises:
            InputError: `overflow` is "truncate", a capacity is not positive, there is one for angles and the model has
                none, or there is none and the model has virtual atoms, whose neighbours no list of atoms has.
            UnsupportedModelError: the operations of the model depend on the number of atoms, or atomic virials are
                requested of a model that passes messages: the number of ghosts that these need depends on positions.
        """
        from mdops.export import export_program  # imports torch.export, which takes a second

        require_flags(atom_virial=atom_virial)
        if atom_virial and self.reach > 1:
            raise UnsupportedModelError(
                f"{self.kind} passes messages: exported programs have no atomic virials of such models"
            )
        return export_program(self, capacity=capacity, angle_capacity=angle_capacity, atom_virial=atom_virial)

    # -- Answers

    @outside_inference_mode
    @_in_own_precision
    def forward(
        self,
        positions: torch.Tensor,
        types: torch.Tensor,
        cell: torch.Tensor | None = None,
        pbc: torch.Tensor | None = None,
        batch: torch.Tensor | None = None,
        neighbors: NeighborList | None = None,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        spins: torch.Tensor | None = None,
        forces: bool = False,
        create_graph: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Energies, differentiable in positions, cell, parameters and weights.

        Args:
            positions: (N, 3), A.
            types: (N,) integers, -1 for a virtual atom.
            cell: (S, 3, 3), or (3, 3) for one system, A; without it nothing is periodic.
            pbc: (S, 3) or (3,) bool; with a cell all are True by default.
            batch: (N,) integers, the system of each atom; one system by default.
            neighbors: a list with at least all pairs within the cutoff; made here by default.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,); only if the model has them.
            spins: (N, 3), only if the model has magnetic moments; a list must then be of `system_with_spins`.
            forces: return forces and virial, too.
            create_graph: make these differentiable, for a loss on them.

        Returns:
            energy (S,) and atom_energy (N,), eV, float64; with `forces` also forces (N, 3), eV/A, and virial
            (S, 3, 3), W = -dE/d(strain), eV; if the model has magnetic moments also force_mag (N, 3), minus the
            derivative by the spins.

        Raises:
            InputError: an argument does not fit, parameters are missing, or given although the model has none, atoms
                coincide, or there are more neighbours than `sel`; or `matmul` is not "float32".
        """
        if self.matmul != "float32":
            self._refuse_matmul(self.matmul, "differentiable energies need PyTorch's own products")
        spin = self.model.spin
        ntypes = len(self.type_map) if spin is None else spin.ntypes
        system = self.system_with_spins(
            systems.from_tensors(positions, types, cell, pbc, batch, ntypes), spins
        )
        aparam = aparam if spin is None else spin.rows_of(aparam)
        systems.require_finite("fparam", fparam)
        systems.require_finite("aparam", aparam)
        near, aparam = self._listed(system, neighbors, aparam)
        evaluator: Autograd = self.evaluator("differentiate")
        answers, _ = evaluator(system, near, fparam, aparam, forces=forces, create_graph=create_graph)
        found = self.with_sums(answers, system)
        return found if spin is None else spin.of_atoms(found)

    def system_with_spins(self, system: System, spins: torch.Tensor | None) -> System:
        """The system with these spins (N, 3), as `evaluate` takes it: with virtual atoms, or with vectors beside its
        atoms. Without spins, the system is unchanged.

        Raises InputError if the model has magnetic moments and none are given, or the reverse."""
        if (spins is None) != (self.model.spin is None):
            what = "has magnetic moments, but" if spins is None else "has none, but magnetic moments"
            raise InputError(f"the model {what} {'none ' if spins is None else ''}are given")
        systems.require_finite("spins", spins)
        spin = self.model.spin
        return system if spin is None or spins is None else spin.system(system, spins)

    @outside_inference_mode
    @_in_own_precision
    @torch.no_grad()
    def evaluate(
        self,
        system: System,
        neighbors: NeighborList | None = None,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        atom_virial: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Energy, forces, virial and atom_energy (as in `forward`), without an autograd graph: for simulation.

        With `atom_virial` also atom_virial (N, 3, 3), eV, in DeePMD-kit's convention: with e_i the energy of atom i
        and d = x_j - x_i, the virial of atom j is the sum over i of -de_i/dd (x) d, the force's component first. The
        virial of a pair belongs to its neighbour. They sum to the virial up to rounding. The same evaluator computes
        them in the same pass; in four passes, if the model passes messages.

        With a `modifier` the results include the charges' part, and there are no atomic virials.

        For a model with magnetic moments, use `evaluate_atoms`; or `system_with_spins`, and then the results have rows
        of virtual atoms, too: force_mag, minus the derivative by the spins, is in these rows, and everything else in
        the rows of atoms.
        """
        if atom_virial:
            self.require_no_modifier("a virial of an atom")
            if self.reach > 1 and not self.answers_energies:
                raise UnsupportedModelError(
                    f"{self.kind} passes messages: there are atomic virials of energies alone"
                )
        self._require_moments(system)
        near, aparam = self._listed(system, neighbors, aparam)
        answers, _ = self.own_evaluator()(system, near, fparam, aparam, atom_virial=atom_virial)
        found = self.with_sums({name: value.detach() for name, value in answers.items()}, system)
        if self.modifier is not None:
            more = self.modifier.answers(system, self.type_map)
            found |= {name: found[name] + value for name, value in more.items()}
        return found

    @outside_inference_mode
    def evaluate_atoms(
        self,
        system: System,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        spins: torch.Tensor | None = None,
        neighbors: VerletList | None = None,
        atom_virial: bool = False,
    ) -> dict[str, torch.Tensor]:
        """As `evaluate`, for any model: of atoms with their magnetic moments `spins` (N, 3), if the model has some, and
        results have rows of atoms alone, force_mag (N, 3), too.

        neighbors: a list that is kept from call to call; None: a new one.
        """
        rows = self.system_with_spins(system, spins)
        at = rows.positions, rows.cell, rows.pbc, rows.types, rows.batch
        near = None if neighbors is None else neighbors.update(*at)
        return self._of_atoms(rows, near, fparam, aparam, atom_virial=atom_virial)

    def _of_atoms(
        self,
        rows: System,
        near: NeighborList | None,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
        *,
        atom_virial: bool,
    ) -> dict[str, torch.Tensor]:
        """`evaluate` for a system with its moments and for atomic parameters of atoms; results have rows of atoms."""
        spin = self.model.spin
        aparam = aparam if spin is None else spin.rows_of(aparam)
        found = self.evaluate(rows, near, fparam, aparam, atom_virial=atom_virial)
        return found if spin is None else spin.of_atoms(found)

    @outside_inference_mode
    @_in_own_precision
    @torch.no_grad()
    def descriptors(self, system: System, neighbors: NeighborList | None = None) -> torch.Tensor:
        """(N, D): the descriptor of each atom, computed by the nets themselves. A model with magnetic moments takes a
        system of `system_with_spins` or `system_of`; virtual atoms have rows, too.

        Raises:
            InputError: as `forward`.
            UnsupportedModelError: the model has no descriptor, or consists of several models.
        """
        self._require_moments(system)
        near = self.neighbor_list(system) if neighbors is None else neighbors
        self._check_cutoff(near)
        autograd = Autograd(self)
        pairs, _ = autograd.judged(autograd.neighborhood(system, near), Step(system, near))
        pairs = dataclasses.replace(pairs, first_derivative_only=True)
        size = self.model.atoms_at_once(pairs)
        if size is None or size >= system.atoms:
            return self.model.describe(pairs)
        runs = [slice(first, first + size) for first in range(0, system.atoms, size)]
        return torch.cat([self.model.describe(pairs.of_atoms(run)) for run in runs])

    @outside_inference_mode
    @_in_own_precision
    @torch.no_grad()
    def last_hidden(
        self, system: System, fparam: torch.Tensor | None = None, aparam: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(N, H): what the last layer of each atom's fitting net gets; arguments as of `descriptors` and `forward`.

        Raises:
            InputError: as `forward`.
            UnsupportedModelError: the model has no fitting net, or consists of several models.
        """
        fitting = getattr(self.model, "fitting", None)
        if not isinstance(fitting, NetFitting):
            raise UnsupportedModelError(f"{self.kind} has no fitting net of its own")
        return fitting.last_hidden(self.descriptors(system), system, fparam, aparam)

    @_in_own_precision
    def predict(
        self,
        system: System,
        neighbors: NeighborList,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
        *,
        check: bool = True,
    ) -> dict[str, torch.Tensor]:
        """energy, atom_energy, forces and virial, differentiable in the weights: for training. Without `check`,
        neighbours are not checked (`check_frames` has already done it)."""
        evaluator = self.evaluator("train")
        if not isinstance(evaluator, Autograd):
            options = {}
        else:  # other outputs are trained without derivatives
            options = {"create_graph": True} if self.answers_energies else {"forces": False}
        answers, _ = evaluator(system, neighbors, fparam, aparam, check=check, **options)
        return self.with_sums(answers, system)

    def compute(
        self,
        atoms: Any,
        fparam: np.ndarray | Sequence[float] | None = None,
        aparam: np.ndarray | Sequence[float] | None = None,
        *,
        atom_virial: bool = False,
    ) -> dict[str, np.ndarray]:
        """Results for ASE Atoms, or a list of them: S systems with N atoms in all.

        Args:
            atoms: ase.Atoms or a list of them; elements are looked up in `type_map`, "X" is a virtual atom.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,).
            atom_virial: return atomic virials, too.

        Returns:
            energy (S,), forces (N, 3), virial (S, 3, 3), atom_energy (N,) and, if requested, atom_virial
            (N, 3, 3); eV and A. A model of dipoles: dipole (S, 3) and atom_dipole (N, 3), with minus their derivatives
            by positions and strain, forces (N, 3, 3) and virial (S, 3, 3, 3), the dipole's component first. For others:
            polarizability (S, 3, 3), dos (S, n), or a property under its own name (S, n), each with atom_<name>, and
            atom_population (N, 2). A model with magnetic moments uses those of the atoms
            (`atoms.set_initial_magnetic_moments`), and also returns force_mag (N, 3).

        Raises:
            InputError: as `forward`, and for an element the model does not know.
        """
        require_flags(atom_virial=atom_virial)
        frames = atoms if isinstance(atoms, list | tuple) else [atoms]
        parts = self._parameter("fparam", fparam), self._parameter("aparam", aparam)
        result = self._of_atoms(self.system_of(frames), None, *parts, atom_virial=atom_virial)
        return {name: value.cpu().numpy() for name, value in result.items()}

    @outside_inference_mode
    def hessians(
        self,
        atoms: Any,
        fparam: np.ndarray | Sequence[float] | None = None,
        aparam: np.ndarray | Sequence[float] | None = None,
    ) -> list[np.ndarray]:
        """d^2E/dx dx of ASE Atoms, or of each of a list of them: (3 n, 3 n), eV/A^2, by autograd through the nets
        themselves, or through the splines of angles if the model has some. It takes 3 n passes. Magnetic moments stay
        as they are.

        Raises InputError as `compute`, UnsupportedModelError for models with other outputs."""
        self.require_energies("a Hessian")
        frames = atoms if isinstance(atoms, list | tuple) else [atoms]
        system, spin = self.system_of(frames), self.model.spin
        of_frames, of_rows = self._parameter("fparam", fparam), self._parameter("aparam", aparam)
        of_rows = of_rows if spin is None else spin.rows_of(of_rows)
        found = hessians(self, system, self.neighbor_list(system), of_frames, of_rows).cpu().numpy()
        ends = np.cumsum([len(one) ** 2 for one in frames])[:-1]
        pairs = zip(np.split(found, ends), map(len, frames), strict=True)
        return [own.reshape(n, n, 3, 3).swapaxes(1, 2).reshape(3 * n, 3 * n) for own, n in pairs]

    def _require_moments(self, system: System) -> None:
        if self.model.spin is not None and not (system.paired or system.spins is not None):
            raise InputError(
                "the model has magnetic moments, but the system has none: see `system_with_spins`"
            )

    def _parameter(self, name: str, value: np.ndarray | Sequence[float] | None) -> torch.Tensor | None:
        if value is None:
            return None
        numbers = value if isinstance(value, torch.Tensor) else systems.as_numbers(name, value)
        found = torch.as_tensor(numbers, dtype=torch.float64, device=self.device)
        systems.require_finite(name, found)
        return found

    def _listed(
        self, system: System, neighbors: NeighborList | None, aparam: torch.Tensor | None
    ) -> tuple[NeighborList, torch.Tensor | None]:
        """The neighbours, and the atomic parameters for the evaluators. A mask is applied to the list instead."""
        if aparam is not None and self.model.masks:
            if neighbors is not None or aparam.shape[:1] != (system.atoms,):
                raise InputError(
                    "aparam of this model says which atoms exist, but the neighbour list was made without it, or "
                    "aparam does not have a row for each atom: leave out the absent atoms, and give no aparam"
                )
            types = system.types.masked_fill(systems.hidden_atoms(aparam), -1)
            system, aparam = dataclasses.replace(system, types=types, atoms_by_type=None), None
        near = self.neighbor_list(system) if neighbors is None else neighbors
        self._check_cutoff(near)
        return near, aparam

    def _check_cutoff(self, neighbors: NeighborList) -> None:
        if neighbors.cutoff < self.cutoff:
            raise InputError(
                f"the neighbour list has the cutoff {neighbors.cutoff} A, but the model needs {self.cutoff} A"
            )
