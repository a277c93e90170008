"""The progress display of a training."""

from collections.abc import Mapping

from mdops.data.labels import LABELS, Labels
from mdops.progress import StepProgress
from mdops.train.report.learning_curve import Report


def describe(errors: Mapping[str, float], labels: Labels = LABELS) -> str:
    """The root of the loss, if present, and RMSEs in one line."""
    parts = [f"loss {errors['loss']:.3g}"] if "loss" in errors else []
    for name, label in labels.items():
        if name in errors:
            parts.append(f"{name} {label.factor * errors[name]:.3g} {label.shown_unit}".rstrip())
    return ", ".join(parts)


class TrainingProgress(StepProgress):
    """Shows loss, RMSEs and speed.

    Attributes:
        latest: the last report of each branch, by its name.
    """

    times = 20

    def __init__(self, first: int, last: int, labels: Mapping[str, Labels]) -> None:
        """As in `StepProgress`, with the labels of each branch."""
        super().__init__(first, last)
        self._labels = labels
        self.latest: dict[str, Report] = {}

    def report(self, report: Report) -> None:
        """Takes the errors to show from now on."""
        self.latest[report.branch] = report

    def update(self, step: int) -> None:
        """After each step."""
        if self.is_due(step):
            self.show(step, f"{(step - self.first) / self.seconds:.3g} steps/s", self._errors(step))

    def _errors(self, step: int) -> str:
        """The latest errors: those of validation if there are some, with their step if it differs."""
        return "; ".join(self._of(report, step) for report in self.latest.values())

    def _of(self, report: Report, step: int) -> str:
        name, errors = "training", report.training
        if report.validation is not None:
            name, errors = "validation", report.validation
        of = f" of {report.branch}" if report.branch else ""
        at = f" at step {report.step}" if report.step != step else ""
        return f"{name}{of}{at}: {describe(errors, self._labels[report.branch])}"
