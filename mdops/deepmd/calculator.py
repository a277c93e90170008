"""The ASE calculator with the name, the arguments and the results of DeePMD-kit's `deepmd.calculator.DP`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ase import Atoms

from mdops.calculator import MDOps, Model, Snapshot
from mdops.deepmd.deep_eval import fitting
from mdops.deepmd.deep_pot import DeepPot
from mdops.errors import InputError
from mdops.system import number_types


class DP(MDOps):
    """`atoms.calc = DP("model.dp")`, for programs that were written for DeePMD-kit.

    As `MDOps`, but the model is evaluated as by `DeepPot`, atoms that are periodic in one direction are so in all,
    atomic parameters may be in `atoms.info["aparam"]`, and types are those of `type_dict`.

    Attributes:
        dp: the model.
        type_dict: the type of each element.
    """

    name = "DP"

    def __init__(
        self,
        model: Model,
        label: str = "DP",
        type_dict: Mapping[str, int] | None = None,
        neighbor_list: Any = None,
        head: str | None = None,
        nlist_backend: str = "auto",
        *,
        skin: float = 1.0,
        **options: Any,
    ) -> None:
        """Reads the model.

        Args:
            model, head, neighbor_list, nlist_backend: as of `DeepPot`, and so are the `options`, such as device.
            label: ASE's.
            type_dict: the type of each element; by default the model's.
            skin: as of `MDOps`.

        Raises:
            InputError: `type_dict` has something else than the model's types. As `DeepPot`.
        """
        self.dp = DeepPot(
            model, head=head, neighbor_list=neighbor_list, nlist_backend=nlist_backend, **options
        )
        if type_dict is not None and not isinstance(type_dict, Mapping):
            raise InputError(f"type_dict is {type_dict!r}, expected the type of each element, as {{'O': 0}}")
        self.type_dict = dict(type_dict or {e: t for t, e in enumerate(self.dp.get_type_map())})
        for element, kind in self.type_dict.items():
            if not isinstance(element, str):
                raise InputError(f"type_dict has {element!r}, expected the symbols of elements")
            if not isinstance(kind, int | np.integer) or kind not in range(self.dp.get_ntypes()):
                raise InputError(
                    f"type_dict[{element!r}] is {kind!r}, expected 0 .. {self.dp.get_ntypes() - 1}"
                )
        super().__init__(self.dp.potential, skin=skin)
        self.implemented_properties = [*self.implemented_properties, "virial"]
        self.label = label

    def _pbc(self, atoms: Atoms) -> np.ndarray:
        return np.full(3, atoms.pbc.any())

    def _state(self, atoms: Atoms) -> Snapshot:
        found = super()._state(atoms)
        aparam, q = atoms.info.get("aparam"), self.dp.get_dim_aparam()
        if aparam is not None:
            found["aparam"] = fitting("aparam", aparam, [(len(atoms), q), (1, q)]).copy()
        return found

    def _types(self, numbers: np.ndarray, type_map: Sequence[str]) -> np.ndarray:
        return np.array([*self.type_dict.values(), -1])[number_types(numbers, list(self.type_dict))]
