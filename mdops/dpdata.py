"""A driver for dpdata: `import mdops.dpdata`, then `system.predict("model.dp", driver="mdops")` (deepmd.md)."""

from typing import Any

import numpy as np
from dpdata.driver import Driver

from mdops.deepmd import DeepPot
from mdops.system import element_types


@Driver.register("mdops")
class MDOpsDriver(Driver):
    """Labels systems with a model: energies, forces and virials, eV and A."""

    def __init__(self, model: Any, **options: Any) -> None:
        """`model` is a file, a Potential or a DeepPot; `options` are those of `DeepPot`."""
        self.model = model if isinstance(model, DeepPot) else DeepPot(model, **options)

    def label(self, data: dict[str, Any]) -> dict[str, Any]:
        """dpdata's `data` with the results for all of its frames. A model with magnetic moments takes them from
        `spins`, and gives `force_mags`.

        Raises:
            InputError: the model does not know an element, or has no answer for a frame.
        """
        own = np.asarray(data["atom_types"])
        names = list(data["atom_names"])
        types = np.full(len(names), -1)
        used = np.unique(own)  # names without an atom need not be known
        types[used] = element_types([names[t] for t in used], self.model.get_type_map())
        cells = None if data.get("nopbc", False) else data["cells"]
        parameters = {name: data[name] for name in ("fparam", "aparam") if name in data}
        spins = data.get("spins") if self.model.has_spin else None
        arguments = data["coords"], cells, types[own]
        energy, force, virial, *magnetic = self.model.eval(*arguments, **parameters, spin=spins)
        f = len(force)
        found = {"energies": energy.reshape(f), "forces": force, "virials": virial.reshape(f, 3, 3)}
        return {**data, **found, **({"force_mags": magnetic[0]} if magnetic else {})}
