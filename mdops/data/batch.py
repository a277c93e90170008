"""Several frames as one input of a model, with what it should answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from mdops.data.dataset import Dataset
from mdops.data.labels import LABELS, PARAMETERS, Labels, silent_types
from mdops.data.neighbor_lists import PairLists, frames_system
from mdops.models.spin import Spin
from mdops.nn.sums import sum_systems
from mdops.ops import NeighborList
from mdops.potential import Potential
from mdops.system import AtomsByType, Noise, System


@dataclass
class Batch:
    """S frames with N atoms in all.

    Attributes:
        system: the atoms, batch index included.
        neighbors: their neighbours.
        sizes: (S,) int64, atoms of each frame, without virtual ones.
        labels: those of energy (S,), forces (N, 3), virial (S, 3, 3) and atom_energy (N,), or of `known`, that a frame
            of the batch has; float64, eV and A.
        present: for each of these (S,) bool, the frames that have it.
        fparam: (S, p) float64, or None; aparam: (N, q) float64, or None.
        complete: whether it is known, without a look at `present`, that every frame has all of these labels.
        known, silent, spin: of the dataset.
    """

    system: System
    neighbors: NeighborList
    sizes: torch.Tensor
    labels: dict[str, torch.Tensor]
    present: dict[str, torch.Tensor]
    fparam: torch.Tensor | None
    aparam: torch.Tensor | None
    complete: bool = False
    known: Labels = field(default_factory=lambda: LABELS)
    silent: tuple[int, ...] = ()
    spin: Spin | None = None

    def to(self, device: torch.device | str) -> "Batch":
        """This batch on a device."""

        def moved(value: torch.Tensor | None) -> torch.Tensor | None:
            return None if value is None else value.to(device)

        system, near = self.system, self.neighbors
        types, kinds = system.types.to(device), system.known_atoms_by_type()
        return replace(
            self,
            system=System(
                system.positions.to(device),
                types,
                system.cell.to(device),
                system.pbc.to(device),
                system.batch.to(device),
                None if kinds is None else AtomsByType(types, [index.to(device) for index in kinds]),
                paired=system.paired,
                charge_spin=moved(system.charge_spin),
                spins=moved(system.spins),
            ),
            neighbors=near._replace(
                neighbors=near.neighbors.to(device),
                images=near.images.to(device),
                counts=near.counts.to(device),
            ),
            sizes=self.sizes.to(device),
            labels={name: value.to(device) for name, value in self.labels.items()},
            present={name: value.to(device) for name, value in self.present.items()},
            fparam=moved(self.fparam),
            aparam=moved(self.aparam),
        )

    def displaced(self, displacements: torch.Tensor) -> "Batch":
        """With atoms moved by (N, 3), A, from where they have their forces. The neighbours are those before."""
        system = self.system
        noise = Noise(displacements.any(1), displacements, self.labels["forces"])
        return replace(self, system=replace(system, positions=system.positions + displacements, noise=noise))

    def taken_by(self, potential: Potential) -> "Batch":
        """This batch without parameters that the model does not take, which it would refuse: data may have them
        for other models."""
        sizes = potential.parameter_sizes
        fparam, aparam = self.fparam if sizes["fparam"] else None, self.aparam if sizes["aparam"] else None
        return (
            self
            if fparam is self.fparam and aparam is self.aparam
            else replace(self, fparam=fparam, aparam=aparam)
        )


def rows(name: str, batch: Batch) -> torch.Tensor:
    """(S,), (N,) or (P,) bool: the frames, atoms or pairs that have errors of the label; of answers of atoms, those
    that have an answer, and that no noise moved."""
    found, noise = labelled_rows(name, batch), batch.system.noise
    return found if noise is None or not batch.known[name].of_atom else found & ~noise.moved


def labelled_rows(name: str, batch: Batch) -> torch.Tensor:
    """The same, also of atoms that noise moved."""
    labelled, label = batch.present[name], batch.known[name]
    if label.of_pairs:
        return labelled.repeat_interleave(batch.sizes**2)
    if not label.of_atom or label.projects:
        return labelled
    found, silent = labelled[batch.system.batch.long()], silent_types(name, batch.silent, batch.spin)
    return found & answering(batch, silent) if silent else found


def answering(batch: Batch, silent: Sequence[int]) -> torch.Tensor:
    """(N,) bool: the atoms of types that are not `silent`."""
    types = batch.system.types
    found = types >= 0
    for kind in silent:
        found = found & (types != kind)
    return found


def scaled(result: Mapping[str, torch.Tensor], batch: Batch) -> Mapping[str, torch.Tensor]:
    """Answers whose sums over atoms have the coefficients that the batch has (`Label.scales`)."""
    for name in batch.labels:
        of = batch.known[name].scales
        if of in result:
            terms = result[f"atom_{of}"].double() * batch.labels[name]
            result = {**result, of: sum_systems(terms, batch.system.batch, batch.system.count)}
    return result


def make_batch(data: Dataset, lists: PairLists, frames: np.ndarray) -> Batch:
    """The batch of these frames (indices, in the order to have), from lists made before."""
    frames = np.asarray(frames, dtype=np.int64)
    values = {
        name: torch.from_numpy(array[data.rows(name, frames)])
        for name, array in data.labels.items()
        if data.present[name][frames].any()
    }
    parameters = {name: values.pop(name, None) for name in PARAMETERS}
    system = frames_system(data, frames)
    system.charge_spin, system.spins = parameters["charge_spin"], values.pop("spin", None)
    system.find_atoms_by_type(data.ntypes)
    return Batch(
        system,
        lists.gather(frames),
        torch.from_numpy(data.counted(frames)),
        values,
        {name: torch.from_numpy(data.present[name][frames]) for name in values},
        parameters["fparam"],
        parameters["aparam"],
        known=data.known,
        silent=data.silent,
        spin=data.spin,
    )
