"""Several models as one: the means of their forces, and their deviations."""

import functools
from collections.abc import Sequence

import torch

from mdops.md.engine.force_provider import ForceProvider, GraphSizes
from mdops.md.engine.state import ForceResult, ListOrigin


class Committee:
    """Providers of forces on the same atoms, used as one `ForceProvider`. They may differ in cutoff, type map, sel,
    dtype and device.

    Models with the same `list_key` share a neighbour list, and all lists are built in the same step.
    """

    def __init__(self, surfaces: Sequence[ForceProvider]) -> None:
        self._surfaces = list(surfaces)
        first = surfaces[0]
        self._device = first.potential.device
        self.captures = all(s.captures and s.potential.device == self._device for s in surfaces)
        farthest = max(surfaces, key=lambda surface: surface.r_min)
        self.r_min, self.warn_extrapolated = farthest.r_min, farthest.warn_extrapolated
        self.sel = torch.cat([surface.sel.to(self._device) for surface in surfaces])
        keys = [surface.list_key for surface in surfaces]
        self._list_of = [keys.index(key) for key in keys]
        self.needed = first.needed
        self.capacity = max(surface.capacity for surface in surfaces)
        self.room = self._most_room()

    @property
    def capacity(self) -> int:
        """Capacity of a row, in each list."""
        return self._surfaces[0].capacity

    @capacity.setter
    def capacity(self, places: int) -> None:
        for surface in self._surfaces:
            surface.capacity = places

    @property
    def room(self) -> GraphSizes:
        """For the graph of every model."""
        return self._surfaces[0].room

    @room.setter
    def room(self, room: GraphSizes) -> None:
        for surface in self._surfaces:
            surface.room = room

    @property
    def sizes(self) -> torch.Tensor:
        """Of the largest graphs."""
        return torch.stack([surface.sizes.to(self._device) for surface in self._surfaces]).amax(0)

    @property
    def cutoff(self) -> float:
        """The largest cutoff of a list, A."""
        return max(surface.cutoff for surface in self._surfaces)

    @property
    def origin(self) -> ListOrigin:
        """What the lists were built for."""
        farthest = max(surface.origin.offset for surface in self._surfaces)
        return self._surfaces[0].origin._replace(cutoff=self.cutoff, offset=farthest)

    def grow(self, longest: int) -> None:
        for surface in self._surfaces:
            surface.grow(longest)

    def widen(self, sizes: Sequence[int]) -> None:
        for surface in self._surfaces:
            surface.widen(sizes)

    def rebuild(self, positions: torch.Tensor, cell: torch.Tensor) -> None:
        """New lists. `needed` is negative if a search refused its input, else that of the longest row."""
        for k, surface in enumerate(self._surfaces):
            if self._list_of[k] == k:
                device = surface.potential.device
                surface.rebuild(positions.to(device), cell.to(device))
            else:
                surface.share_list(self._surfaces[self._list_of[k]])
        needed = torch.stack([surface.needed.to(self._device) for surface in self._surfaces])
        least = needed.amin(0)
        self.needed = torch.where(least[0] < 0, least, needed.amax(0))

    def forces(self, positions: torch.Tensor, cell: torch.Tensor) -> ForceResult:
        """With lists of `rebuild`."""
        devices = [surface.potential.device for surface in self._surfaces]
        return self._join(
            [s.forces(positions.to(d), cell.to(d)) for s, d in zip(self._surfaces, devices, strict=True)]
        )

    def forces_carefully(
        self, positions: torch.Tensor, cell: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor
    ) -> ForceResult:
        """As `ForceProvider.forces_carefully`."""
        results = []
        for surface in self._surfaces:
            arguments = [a.to(surface.potential.device) for a in (positions, cell, order, inverse)]
            results.append(surface.forces_carefully(*arguments))
        self.capacity = max(surface.capacity for surface in self._surfaces)
        self.room = self._most_room()
        return self._join(results)

    def _most_room(self) -> GraphSizes:
        return GraphSizes(*map(max, zip(*(surface.room for surface in self._surfaces), strict=True)))

    def _join(self, results: Sequence[ForceResult]) -> ForceResult:
        def stack(name: str, dim: int = 0) -> torch.Tensor:
            return torch.stack([getattr(result, name).to(self._device) for result in results], dim)

        forces, energies = stack("forces"), stack("atom_energy", 1)
        mean = forces.mean(0)
        # `minimum` keeps NaN; the types of float32 and float64 models may differ.
        nearest = functools.reduce(torch.minimum, [r.nearest.to(self._device) for r in results])
        return ForceResult(
            forces=mean,
            atom_energy=energies.mean(1),
            virial=stack("virial").mean(0),
            nearest=nearest,
            within=torch.cat([result.within.to(self._device) for result in results], 1),
            forces_std=(forces - mean).square().sum(2).mean(0).sqrt()[:, None],
            model_energy=energies,
            atom_virial=stack("atom_virial").mean(0),
            force_mag=stack("force_mag").mean(0),
        )
