"""A model with the arguments and results of DeePMD-kit's `deepmd.infer.DeepPot`."""

from typing import Any

import numpy as np

from mdops.deepmd.deep_eval import DeepEval
from mdops.flags import require_flags


class DeepPot(DeepEval):
    """`DeepPot("model.dp").eval(coords, cells, atom_types)`, for programs that were written for DeePMD-kit; more in
    `DeepEval`."""

    OUTPUT = "energy"

    def eval(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        atomic: bool = False,
        fparam: Any = None,
        aparam: Any = None,
        mixed_type: bool = False,
        charge_spin: Any = None,
        spin: Any = None,
    ) -> tuple[np.ndarray, ...]:
        """Energies, forces and virials of F frames of n atoms each.

        Args:
            coords: (F, n, 3) or (F, 3 n), A.
            cells: (F, 9) or (F, 3, 3), rows are lattice vectors, A; None: nothing is periodic.
            atom_types: (n,) for all frames, indices in `get_type_map()`; (F, n) with `mixed_type`. -1: no atom.
            atomic: give atomic energies and virials, too.
            fparam: (F, p), or (p,) for all frames.
            aparam: (F, n, q); (n, q) for all frames, or (q,) for all atoms.
            mixed_type: each frame has its own types.
            charge_spin: (F, 2), or (2,) for all frames, the charge, e, and the multiplicity, for models with embeddings
                of these; None: the model's default.
            spin: (F, n, 3) or (F, 3 n), magnetic moments, for models that take them.

        Returns:
            energy (F, 1), eV; force (F, n, 3), eV/A; virial (F, 9), W = -dE/d(strain), eV; with `atomic` also
            atom_energy (F, n, 1) and atom_virial (F, n, 9), a pair's virial booked on the neighbour. With `spin` then
            follow force_mag (F, n, 3), -dE/d(spin), and mask_mag (F, n, 1) bool, which atoms have moments. float64.

        Raises:
            InputError: shapes do not fit, or the model cannot evaluate a frame (`Potential.forward`).
        """
        require_flags(atomic=atomic)
        frames = self._frames(coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin, spin)
        (f, n), moments = frames.types.shape, self.potential.model.spin
        shapes: dict[str, tuple[int, ...]] = {"energy": (f, 1), "forces": (f, n, 3), "virial": (f, 9)}
        if atomic:
            shapes |= {"atom_energy": (f, n, 1), "atom_virial": (f, n, 9)}
        if moments is None:
            return self._answers(frames, shapes, atom_virial=atomic)
        shapes["force_mag"] = f, n, 3
        has_moment = np.array([*moments.use_spin, False])[frames.types][..., None]
        return *self._answers(frames, shapes, atom_virial=atomic), has_moment

    def _require_outputs(self) -> None:
        self.potential.require_energies("DeepPot", adds_charges=True)
