"""What a training shows as it goes on."""

from collections.abc import Mapping

from mdops.data.labels import LABELS
from mdops.progress import StepProgress
from mdops.train.report.learning_curve import Report


def describe(errors: Mapping[str, float]) -> str:
    """The root of the loss, if it is there, and RMSEs in one line."""
    parts = [f"loss {errors['loss']:.3g}"] if "loss" in errors else []
    for name, label in LABELS.items():
        if name in errors:
            parts.append(f"{name} {label.factor * errors[name]:.3g} {label.shown_unit}")
    return ", ".join(parts)


class TrainingProgress(StepProgress):
    """Shows loss, RMSEs and speed.

    Attributes:
        latest: the last report, None before the first.
    """

    times = 20
    latest: Report | None = None

    def report(self, report: Report) -> None:
        """Takes the errors to show from now on."""
        self.latest = report

    def update(self, step: int) -> None:
        """After each step."""
        if self.is_due(step):
            self.show(step, f"{(step - self.first) / self.seconds:.3g} steps/s", self._errors())

    def _errors(self) -> str:
        """The latest errors: those of validation where there is one."""
        if self.latest is None:
            return ""
        if self.latest.validation is not None:
            return f"validation: {describe(self.latest.validation)}"
        return f"training: {describe(self.latest.training)}"
