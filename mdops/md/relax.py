"""A relaxation with files, checkpoints and restarts: what `mdops relax` does."""

import dataclasses
import io
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms, units

from mdops.errors import InputError
from mdops.files.atomic import replace_file
from mdops.files.named import naming
from mdops.flags import require_kinds, require_path
from mdops.md import checkpoint as checkpoints
from mdops.md.checkpoint import Checkpoint
from mdops.md.engine import BatchFrame, Minimizer
from mdops.md.engine.restraints import Restraint, identity, placed
from mdops.md.engine.structures import is_list_of_atoms
from mdops.md.files import one_run, require_beginning
from mdops.md.log import text
from mdops.md.options import Output, Relaxation, same_file
from mdops.md.outputs import TextFile, Trajectory, close_all, closed_on_error, open_files, with_columns
from mdops.md.run import (
    charge_spin_identity,
    check_same,
    constraints_identity,
    last_checkpoint,
    models_identity,
    moments_identity,
)
from mdops.potential import Potential
from mdops.progress import tell_restart

__all__ = ["Relaxed", "relax"]

_SKIN = 0.5


@dataclasses.dataclass(frozen=True)
class Relaxed:
    """The result of this call.

    Attributes:
        structures: the final ones, with energies, forces and stress.
        converged: (S,) bool; steps: (S,) of each since the beginning; largest_force: (S,), eV/A.
        seconds: of this call. stopped: whether `stops` ended it.
    """

    structures: list[Atoms]
    converged: np.ndarray
    steps: np.ndarray
    largest_force: np.ndarray
    seconds: float
    stopped: bool


def relax(
    structures: Sequence[Atoms],
    potential: Potential | Sequence[Potential],
    relaxation: Relaxation,
    output: Output,
    *,
    result: Path | None = None,
    skin: float = _SKIN,
    show: Callable[[str], None] | None = None,
    restraints: Sequence[Sequence[Restraint]] | None = None,
    stops: Callable[[], bool] | None = None,
) -> Relaxed:
    """Relax structures side by side (`mdops.md.Minimizer`), in at most `output.steps` steps.

    Every `output.interval` steps a frame of each structure goes into the trajectory (with `step` and, of several,
    `system` in its info) and a line into the log. Every 50 such intervals the state is saved, and lists are rebuilt:
    a killed run that continues with `output.restart` ends with the same bits.

    Args:
        relaxation, output: the target, and the files.
        result: the file of the final structures, in a format of ASE, whether all have converged or not; replaced
            atomically.
        skin: A.
        show: called with each line of the log.
        restraints: of each structure, `mdops.md.Tether` and `Distance`; tethers hold atoms where they start.
        stops: called between steps. If it returns True, the state is saved, and the call ends without `result`.

    Raises:
        InputError: a structure, option or file that does not fit, or a file that another run writes.
        UnstableRunError: the relaxation of a structure failed.
    """
    require_kinds(relaxation=(relaxation, Relaxation), output=(output, Output))
    if not is_list_of_atoms(structures):
        raise InputError("relax takes a list of ase.Atoms")
    result = None if result is None else require_path("result", result)
    _check_result(result, output, structures)
    with one_run(output):
        return _Run(structures, potential, relaxation, output, result, skin, show, restraints, stops).go()


class _Run:
    _EVERY = 50  # intervals from checkpoint to checkpoint

    def __init__(
        self,
        structures: Sequence[Atoms],
        potential: Potential | Sequence[Potential],
        relaxation: Relaxation,
        output: Output,
        result: Path | None,
        skin: float,
        show: Callable[[str], None] | None,
        restraints: Sequence[Sequence[Restraint]] | None,
        stops: Callable[[], bool] | None,
    ) -> None:
        self.output, self.result, self.show = output, result, show
        models = [potential] if isinstance(potential, Potential) else list(potential)
        given = [atoms.copy() for atoms in structures]
        self.same = dataclasses.asdict(relaxation) | {"skin": skin, "interval": output.interval}
        self.same |= models_identity(models) | {"structures": _identity(given)}
        own = restraints or [[] for _ in given]
        if len(own) != len(given):
            raise InputError(f"restraints of {len(own)} structures, and there are {len(given)}")
        own = [placed(r, atoms.get_positions()) for r, atoms in zip(own, given, strict=True)]
        self.same["restraints"] = [identity(r) for r in own] if any(own) else None
        charges = [charge_spin_identity(atoms, models) for atoms in given]
        self.same["charge_spin"] = charges if any(charges) else None
        self.same["magnetic_moments"] = moments_identity(given, models)
        saved = last_checkpoint(output)
        options: dict[str, Any] = {"skin": skin, "restraints": own if any(own) else None}
        if saved is not None:
            check_same(saved.physics, self.same, output.checkpoint)
            ends = np.cumsum([len(atoms) for atoms in given])
            for s, positions in enumerate(np.split(saved.arrays["positions"], ends[:-1])):
                given[s].set_cell(saved.arrays["cell"][s])
                given[s].arrays["positions"][:] = positions
            options |= {"step": saved.step, "velocities": saved.arrays["momenta"]}
        self.minimizer = Minimizer(given, potential, relaxation, **options)
        self.minimizer.stops = stops
        if saved is not None:
            self.minimizer.inner = saved.inner
        self.trajectory: Trajectory | None = None
        self.log: TextFile | None = None
        if saved is None:
            self._save()
        if saved is not None and saved.marks:
            self._open(output, saved.marks)
        else:
            self._begin(restarts=saved is not None)

    def _open(self, output: Output, marks: dict[str, Any]) -> None:
        self.trajectory, self.log = open_files(output, marks)

    def _close(self) -> None:
        close_all(self.trajectory, self.log)

    def _begin(self, *, restarts: bool) -> None:
        """The files with the first frame; a checkpoint with their marks."""
        frame = self.minimizer.frame()

        def begin(output: Output) -> None:
            self._open(output, {})
            with closed_on_error(self._close):
                self._write(frame, heading=True)

        def begin_only(output: Output) -> None:
            begin(output)
            self._close()

        if restarts:
            show, self.show = self.show, None
            require_beginning(self.output, begin_only)
            self.show = show
        begin(self.output)
        with closed_on_error(self._close):
            self._save()

    def go(self) -> Relaxed:
        started, m = time.perf_counter(), self.minimizer
        if self.show is not None:
            tell_restart(m.step, self.output.steps)
        every = self._EVERY * self.output.interval
        stopped = False
        try:
            while m.step < self.output.steps and not m.converged.all() and not stopped:
                last = min(self.output.steps, (m.step // every + 1) * every)
                for frame in m.run(last - m.step, self.output.interval):
                    self._write(frame)
                # The end has a frame of its own.
                if m.converged.all() and m.step % self.output.interval:
                    self._write(m.frame())
                stopped = m.step < last and not m.converged.all()
                self._save(halted=stopped)
            structures = m.structures()
            if self.result is not None and not stopped:
                write_atomically(self.result, structures)
        finally:
            self._close()
        seconds = time.perf_counter() - started
        return Relaxed(structures, m.converged, m.steps, m.largest_force, seconds, stopped)

    def _write(self, frame: BatchFrame, *, heading: bool = False) -> None:
        m = self.minimizer
        structures = m.structures(frame)
        if self.trajectory:
            for s, atoms in enumerate(structures):
                atoms.info |= {"step": frame.step} | ({"system": s} if len(structures) > 1 else {})
                self.trajectory.write_frame(atoms)
        line = text(_columns(frame, structures), heading=heading)
        if self.log:
            self.log.write(line)
        if self.show is not None:
            self.show(line)

    def _save(self, *, halted: bool = False) -> None:
        """Writes a checkpoint; `halted`: between those of a run that is not stopped."""
        now, m = self.minimizer.frame(), self.minimizer
        named = {"trajectory": self.trajectory, "log": self.log}
        state = Checkpoint(
            step=m.step,
            physics=self.same,
            random={},
            sums={},
            marks={name: file.mark() for name, file in named.items() if file},
            arrays={"positions": now.positions, "momenta": now.momenta, "cell": now.cell},
            inner=m.halted if halted else m.inner,
        )
        checkpoints.save(self.output.checkpoint, state)
        if halted:
            return
        # A restart builds new lists, whose order decides the last bits of sums: so does this run.
        m.renew()


def _columns(frame: BatchFrame, structures: Sequence[Atoms]) -> dict[str, str]:
    """Names with units, and values, of a line of the log."""
    assert frame.largest_force is not None and frame.converged is not None
    line = {"step": f"{frame.step}"}
    if len(structures) > 1:
        line["converged"] = f"{int(frame.converged.sum())}/{len(structures)}"
    line |= {"E/eV": f"{frame.energy.sum():.6f}", "fmax/(eV/A)": f"{frame.largest_force.max():.6f}"}
    if len(structures) == 1 and structures[0].pbc.all():
        volume = structures[0].get_volume()
        line["P/GPa"] = f"{np.trace(frame.virial[0]) / 3 / volume / units.GPa:.4f}"
        line["V/A^3"] = f"{volume:.3f}"
    return line


def _identity(structures: Sequence[Atoms]) -> str:
    """A digest of the initial structures."""
    parts = []
    for atoms in structures:
        arrays = [atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc]
        arrays += [np.asarray(atoms.info[k], float) for k in ("fparam",) if k in atoms.info]
        arrays += [atoms.arrays[k] for k in ("aparam",) if k in atoms.arrays]
        parts += [np.ascontiguousarray(array).tobytes() for array in [*arrays, atoms.get_masses()]]
        parts.append(repr(constraints_identity(atoms)).encode())
    return sha256(b"|".join(parts)).hexdigest()[:16]


def _check_result(result: Path | None, output: Output, structures: Sequence[Atoms]) -> None:
    if result is None:
        return
    for path in (output.trajectory, output.log, output.checkpoint):
        if path is not None and same_file(path, result):
            raise InputError(f"{result} is the name of the result, and of another file of the run")
    if not result.absolute().parent.is_dir():
        raise InputError(f"there is no folder {result.absolute().parent} to write into")
    if result.exists() and not (output.overwrite or output.restart):
        raise InputError(f"{result}: exists already; give --overwrite to replace it")
    format = _format(result)
    if len(structures) > 1 and format.single:
        raise InputError(
            f"{result}: a file of ASE's format {format.name} holds one structure, not {len(structures)}"
        )
    with tempfile.TemporaryDirectory(prefix="mdops") as folder:
        try:
            write_atomically(Path(folder, result.name), [atoms.copy() for atoms in structures])
        except Exception as error:
            raise InputError(
                f"{result}: ASE cannot write these structures in its format {format.name}: {error}"
            ) from error


def _format(path: Path) -> Any:
    """ASE's, by file name; raises InputError if it cannot write it."""
    try:
        format = ase.io.formats.ioformats[ase.io.formats.filetype(str(path), read=False)]
    except Exception as error:
        raise InputError(f"{path}: ASE has no format for it ({error})") from error
    if not format.can_write:
        raise InputError(f"{path}: ASE reads its format {format.name}, and does not write it")
    return format


def write_atomically(path: Path, structures: Sequence[Atoms]) -> None:
    """Writes structures in the format of the name; the file is complete, or not there at all."""
    format = _format(path)
    shown = [with_columns(atoms) for atoms in structures]
    images = shown if len(shown) > 1 else shown[0]
    if format.acceptsfd:
        buffer: Any = io.BytesIO() if format.isbinary else io.StringIO()
        ase.io.write(buffer, images, format=format.name)
        data = buffer.getvalue()
        replace_file(path, data if format.isbinary else data.encode())
        return
    temporary = path.with_name(f".{path.name}.new{path.suffix}")
    try:
        with naming(path, temporary):
            ase.io.write(temporary, images, format=format.name)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
