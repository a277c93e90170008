"""The progress display of a simulation."""

from mdops.progress import StepProgress, tell_restart


def ns_per_day(steps: int, timestep: float, seconds: float) -> float:
    """Takes the time step in fs."""
    return steps * timestep * 1e-6 * 86400 / seconds if seconds > 0 else 0.0


class Reporter(StepProgress):
    """Shows time, temperature and speed."""

    def __init__(self, first: int, last: int, timestep: float) -> None:
        """Steps done already, shown at once, steps of the whole run, and fs a step."""
        tell_restart(first, last)
        super().__init__(first, last)
        self._timestep = timestep

    def update(self, step: int, temperature: float) -> None:
        """After each step, with the temperature in K."""
        if self.is_due(step):
            speed = ns_per_day(step - self.first, self._timestep, self.seconds)
            time = step * self._timestep / 1000
            self.show(step, f"{time:.3f} ps  {temperature:.0f} K  {speed:.3g} ns/day")
