"""The parts of a descriptor that are not plain sums over neighbours, in a step."""

from collections.abc import Sequence
from typing import Any

import torch

from mdops.evaluators.attention_sums import AttentionSums, attention_sums
from mdops.evaluators.context import EvaluationContext
from mdops.evaluators.splined import shared
from mdops.models.contract import Descriptor
from mdops.models.neighborhood import Neighborhood
from mdops.ops.neighbor_rows import NeighborRows
from mdops.tracing import is_exported


class NonRadialParts:
    """Their features: of those with layers of attention by splines, where these are to be had, of others by their own
    operations."""

    def __init__(self, potential: EvaluationContext, parts: Sequence[Descriptor]) -> None:
        self.parts = tuple(parts)
        whole: Any = potential.model
        self._mixed, self._is_hybrid = (
            whole.descriptor.mixed_types,
            whole.descriptor.parts != [whole.descriptor],
        )
        found = attention_sums(potential)
        self._sums = {part: found[part] for part in self.parts if part in found}

    @property
    def width(self) -> int:
        return sum(part.width for part in self.parts)

    @property
    def captures(self) -> bool:
        """Whether a pass never waits for a GPU."""
        return all(
            part.captures
            and (part.ends_at_cutoff or (part in self._sums and self._sums[part].has_tables_for_all()))
            for part in self.parts
        )

    def words(self) -> str | None:
        """How their features are made."""
        ways = {
            "its own operations, and autograd": [part.kind for part in self.parts if part not in self._sums],
            "splines, and one op a layer": [part.kind for part in self._sums],
        }
        told = [f"{', '.join(dict.fromkeys(kinds))}: {way}" for way, kinds in ways.items() if kinds]
        return "; ".join(told) or None

    def sums_alone(self) -> AttentionSums | None:
        """Those of the model's only part, if it is one with splines."""
        return None if self._is_hybrid else self._sums.get(self.parts[0])

    def features(self, near: Neighborhood, types: tuple[int, ...] | None) -> torch.Tensor:
        """(N, width), those of all parts."""
        return torch.cat([self.of(part, near, types) for part in self.parts], 1)

    def of(
        self, part: Any, near: Neighborhood, types: tuple[int, ...] | None, rows: NeighborRows | None = None
    ) -> torch.Tensor:
        """(N, its width), of a part, differentiable in the pair vectors. `near` has the hybrid's neighbours, or those
        of some of the atoms; `types` are those that there are (`Potential.present`); `rows`: of `sums_alone`, where
        that is known."""
        sums = self._sums.get(part)
        tables = None if sums is None else sums.tables_of(types)
        if sums is not None and tables is not None:
            values: torch.Tensor = part.contract(sums(near, tables, rows), near).values
            return values
        return part(shared(part, near, mixed=self._mixed) if self._is_hybrid else near).values

    def runs(self, near: Neighborhood) -> list[slice]:
        """The atoms in runs of one size, as many at once as the parts want: a small one at the end would take a GPU
        nearly as long."""
        if is_exported() or not all(part.is_local for part in self.parts):
            return [slice(None)]
        sizes = [part.atoms_at_once(near) for part in self.parts]
        most = min((n for n in sizes if n is not None), default=None)
        atoms = near.system.atoms
        if most is None or most >= atoms:
            return [slice(None)]
        size = -(-atoms // -(-atoms // max(most, 1)))
        return [slice(first, first + size) for first in range(0, atoms, size)]
