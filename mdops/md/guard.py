"""Stops a run with unphysical values, with advice."""

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from mdops.errors import InputError, MDOpsError
from mdops.potential import Potential

# Far beyond temperatures of condensed phases.
_HOTTEST = 20_000.0
_ADVICE = (
    "Try a shorter --timestep, relax the structure first, or check that the model was trained "
    "for structures and temperatures like these"
)


# The errors of the neighbour search for impossible positions and cells.
_OF_STRUCTURES = re.compile(
    r"mdops::neighbor_(matrix|pairs): "
    r"(argument `(positions|cell|cutoff)` (?!has |is on |holds more )|atoms \d+ and \d+ are neighbours through)"
)


def is_refusal(error: Exception) -> bool:
    """Whether it is the error of a model, or of the neighbour search, for an invalid structure."""
    return isinstance(error, InputError) or (
        isinstance(error, RuntimeError) and _OF_STRUCTURES.match(str(error)) is not None
    )


@contextmanager
def refused_as_input() -> Iterator[None]:
    """Raises a model's or op's error on its input as InputError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or not is_refusal(error):
            raise
        raise InputError(str(error)) from error


def warn_untrained_virials(models: Sequence[Potential]) -> None:
    """Warns of models with known training labels without virials: their pressure is untrained."""
    for model in models:
        training = model.source.get("training")
        labels = training.get("labels") if isinstance(training, dict) else None
        if isinstance(labels, dict) and not labels.get("virial"):
            warnings.warn(
                f"the model was trained on {', '.join(labels)}, not on virials (stress): its pressure, and a cell that "
                "follows it, may be far off. Train it on data with virials, and with loss.start_pref_v and "
                "limit_pref_v above 0",
                stacklevel=3,
            )
            return


class UnstableRunError(MDOpsError, RuntimeError):
    """A run whose values are no longer physical; the message says when, and what to do."""


class Guard:
    """Watches the temperature, and explains the errors of a step."""

    def __init__(self, timestep: float, target: float | None) -> None:
        """Takes fs, and K."""
        self._timestep, self._limit = timestep, max(_HOTTEST, 20 * (target or 0.0))

    def allows(self, temperature: float) -> bool:
        """Whether it is physical (K)."""
        return temperature <= self._limit

    def check(self, step: int, temperature: float | np.ndarray) -> None:
        """Raises UnstableRunError for an unphysical temperature (K; one, or (S,) of several systems)."""
        for system, value in enumerate(np.atleast_1d(temperature).tolist()):
            if not self.allows(value):
                name = f"system {system}: " if np.size(temperature) > 1 else ""
                found = f"{value:.3g} K" if math.isfinite(value) else "not a number"
                raise self._stop(step, f"{name}the temperature is {found}")

    @contextmanager
    def explain(self, step: int) -> Iterator[None]:
        """Turns errors of a model or an op on impossible positions and cells into UnstableRunError."""
        try:
            yield
        except Exception as error:
            if not is_refusal(error):
                raise
            raise self._stop(step, str(error)) from error

    def _stop(self, step: int, what: str) -> UnstableRunError:
        time = step * self._timestep / 1000
        return UnstableRunError(
            f"the run blew up at step {step} ({time:.3f} ps, {self._timestep} fs a step): {what}. {_ADVICE}."
        )
