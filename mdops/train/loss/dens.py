"""The loss "dens": trains a model to find energies, forces that are no derivatives of these, and noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from mdops.data.batch import Batch, rows
from mdops.data.dataset import Dataset
from mdops.data.labels import Labels, labels_of
from mdops.errors import ConfigError, DataError
from mdops.models import registry
from mdops.models.contract import DIRECT
from mdops.options import Options, key
from mdops.train.loss.base import Counts, Fraction, Loss, Result, difference
from mdops.train.loss.weights import Prefactor, Weight, weight_keys, weighted, weights_of

_TERMS = {"energy": "e", "forces": "f"}
_DEVIATIONS = 5.5  # one displacement in 800,000 is longer


@dataclass(kw_only=True)
@weighted(
    {
        "e": Weight(0.02, 1.0, "energies, in units of their deviation,"),
        "f": Weight(1000.0, 1.0, "forces, in units of the root of the mean square of their lengths,"),
    }
)
class DenoisingLossOptions(Options):
    KIND = "dens"
    NEUTRAL: ClassVar[dict[str, Any]] = {"dens_fixed_noise_std": True}

    loss_func: str = key(
        "mae",
        "use absolute values of errors of energies and lengths of those of forces, or squares",
        choices=("mae", "mse"),
    )
    dens_prob: float = key(0.5, "probability that a step moves atoms", low=0)
    dens_std: float = key(0.025, "standard deviation of each component of the noise", unit="A", above=0)
    dens_corrupt_ratio: float | None = key(
        0.5, "probability that such a step moves an atom; null: it moves all", low=0
    )
    dens_denoising_pos_coefficient: float = key(
        10.0, "weight of the noise of moved atoms, in units of dens_std", low=0
    )


class DenoisingLoss(Loss):
    """DeePMD-kit's loss of energies, forces and noise. With N the atoms of a frame, p the prefactors, < > the mean over
    frames or atoms:

        p_e <|dE| / (s N)> + <p_f |dF| / r for atoms at their places, p_n |dn| for moved atoms>

    with s the deviation of energies, r the root of the mean square of forces' lengths, and n the displacement over
    `dens_std`; with "mse" p_e <(dE / s)^2 / N>, and of vectors the mean square of their components. Energies are those
    of the atoms at their places, of moved atoms, too.
    """

    Options = DenoisingLossOptions

    def __init__(self, options: Any, prefactors: Mapping[str, Prefactor], labels: Labels) -> None:
        self.labels, self.prefactors, self._options = labels, prefactors, options
        self.reach = _DEVIATIONS * options.dens_std if options.dens_prob else 0.0
        self.terms = [name for name, weight in prefactors.items() if weight.counts]

    @classmethod
    def choose(cls, model: Any) -> None:
        kinds = dict.fromkeys(registry.options("model").values())
        having = [kind for kind in kinds if cls.Options.KIND in getattr(kind, "HEADS", ())]
        if type(model) not in having:
            names = " and ".join(kind.NAMES[0] for kind in having)
            raise ConfigError(
                f"loss.type: is 'dens', a loss of {names} models, and model.type is {model.NAMES[0]!r}"
            )
        model.active_mode = cls.Options.KIND

    @classmethod
    def make(cls, options: Any, labels: Labels) -> Self:
        if list(labels) != list(labels_of(DIRECT)):
            raise ConfigError(
                f"loss.type: is 'dens', and the model to train answers {', '.join(labels)}, not its heads' results"
            )
        for name in ("dens_prob", "dens_corrupt_ratio"):
            value = getattr(options, name)
            if value is not None and value > 1:
                raise ConfigError(f"loss.{name}: is {value:g}, expected a number from 0 to 1")
        weights = weights_of(options, _TERMS.values())
        return cls(options, {name: weights[term] for name, term in _TERMS.items()}, labels)

    def keys(self, label: str) -> list[str]:
        return weight_keys(_TERMS[label]) if label in _TERMS else ["loss.type"]

    def give_statistics(self, model: Any, data: Dataset, frames: np.ndarray) -> None:
        """Raises DataError if no atom in the frames has a force."""
        if float(model.heads.force_rms) > 0:
            return
        square = count = 0.0
        for frame in frames if data.has("forces") else ():
            if data.present["forces"][frame]:
                own = slice(data.offsets[frame], data.offsets[frame + 1])
                types = data.types[own]
                seen = (types >= 0) & ~np.isin(types, list(data.silent))
                square += float(np.square(data.labels["forces"][own][seen]).sum())
                count += int(seen.sum())
        if not square:
            raise DataError(
                f"{data.systems[0]}: the loss dens needs forces, and the data has none, or all are 0"
            )
        model.heads.force_rms.fill_((square / count) ** 0.5)

    def take_statistics(self, model: Any) -> None:
        """Raises DataError if all frames of the statistics have the same energy."""
        self._std = model.out_std.detach().double()
        self._force_rms = model.heads.force_rms.detach()
        if not bool((self._std > 0).all()):
            raise DataError(
                "energies of all frames of the statistics are sums of energies of the types alone, so that the loss "
                "dens has no unit for them: more frames, or others, have other energies"
            )

    def displacements(self, data: Dataset, frames: np.ndarray, seed: Sequence[int]) -> torch.Tensor | None:
        """Of some atoms that have a force. They depend on the seed and on the frames, not on their order."""
        o = self._options
        labelled = data.present["forces"] if data.has("forces") else np.zeros(len(data), bool)
        if not labelled[frames].any() or np.random.default_rng(seed).random() >= o.dens_prob:
            return None
        found = []
        for frame in frames:
            own, random = data.atoms(int(frame)), np.random.default_rng([*seed, int(frame)])
            atoms = own.stop - own.start
            moved = random.random(atoms) < (1.0 if o.dens_corrupt_ratio is None else o.dens_corrupt_ratio)
            noise = random.normal(0, o.dens_std, (atoms, 3))
            found.append(noise * (moved & labelled[frame])[:, None])
        return torch.from_numpy(np.concatenate(found))

    def parts(self, result: Result, batch: Batch, fraction: Fraction, counts: Counts) -> list[torch.Tensor]:
        # Heads without a part have gradients, too, which are 0.
        names = [*self.terms, *(["noise"] if "forces" in self.terms and "noise" in result else [])]
        found = [result[name][:0].sum() for name in names]
        if "energy" in self.terms and counts.get("energy"):
            error = self._energy_errors(result, batch)
            found.append(self.prefactors["energy"].at(fraction) * error.sum() / counts["energy"])
        if "forces" in self.terms and counts.get("forces"):
            error = difference("forces", result["forces"], batch) / self._force_rms
            found.append(self.prefactors["forces"].at(fraction) * self._sizes(error).sum() / counts["forces"])
            noise = batch.system.noise
            if noise is not None:
                error = result["noise"] - noise.displacements / self._options.dens_std
                error = torch.where(noise.moved[:, None], error, 0.0)
                weight = self._options.dens_denoising_pos_coefficient
                found.append(weight * self._sizes(error).sum() / counts["forces"])
        return found

    def _energy_errors(self, result: Result, batch: Batch) -> torch.Tensor:
        """(S,), of each frame; 0 without label."""
        if "energy" not in batch.labels:
            return result["energy"][:0]
        error = (result["energy"] - batch.labels["energy"]) / self._std[0]
        size = error.abs() if self._options.loss_func == "mae" else error.square()
        return torch.where(rows("energy", batch), size / batch.sizes, 0.0)

    def _sizes(self, error: torch.Tensor) -> torch.Tensor:
        """(N,), of errors (N, 3)."""
        if self._options.loss_func == "mae":
            return torch.linalg.vector_norm(error, dim=1)
        return error.square().mean(1) if error.shape[1] == 3 else error.flatten()
