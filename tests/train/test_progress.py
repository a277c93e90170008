"""What a training shows between its reports."""

from mdops.data.labels import LABELS
from mdops.train.report.learning_curve import Report
from mdops.train.report.progress import TrainingProgress


def test_errors_are_shown_with_the_step_that_they_are_of(capsys):
    """Where reports are seldom, the errors are not those of the step that is shown."""
    with TrainingProgress(0, 20, {"": LABELS}) as progress:
        progress.report(Report(1, 0.01, {"loss": 2.5}, None))
        progress.update(1)
        progress.update(2)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("step 1/20  training: loss 2.5  ")
    assert second.startswith("step 2/20  training at step 1: loss 2.5  ")
