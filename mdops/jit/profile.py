"""Finds where the time of a model's steps goes: with kernels built with the profiler, or with PyTorch's profiler."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ase import Atoms

from mdops.errors import JitError
from mdops.evaluators.context import EvaluationContext
from mdops.files.atomic import replace_file
from mdops.jit import by_ops, by_stages, kernels, trace
from mdops.jit.stages import Stages
from mdops.jit.steps import Steps
from mdops.jit.trace import GPU, HOST, Record, Span

_ASKED = "--ops asks for that"


@dataclass(frozen=True)
class Profile:
    """The recorded steps.

    Attributes:
        record: the spans of all steps, and their time from another clock.
        key: of the kernels that recorded their stages; None: PyTorch's profiler recorded ops.
        why_ops: the reason for that.
    """

    record: Record
    key: str | None
    why_ops: str = ""

    @property
    def spans(self) -> list[Span]:
        return self.record.spans

    @property
    def way(self) -> str:
        """Which of the two was recorded, and why."""
        if self.key is not None:
            return f"stages, by kernels rebuilt with the profiler ({self.key})"
        return f"ops by PyTorch's profiler, not stages: {self.why_ops}"

    def write(self, path: Path) -> None:
        """Writes a file for ui.perfetto.dev."""
        made = self.record.text or trace.as_text(self.record.spans, {HOST: "mdops", GPU: "GPU"})
        replace_file(path, made)

    def table(self) -> str:
        """A table of stages or ops. Their sum is less than a step by the time between them, such as kernels' starts."""
        r = self.record
        lines = [trace.table(r.spans, r.steps, r.total, "stage" if self.key is not None else "op")]
        if r.bare is not None:
            lines.append(f"a step takes {1e-6 * r.bare:.4f} ms without the profiler")
        lines.append(f"a neighbour search takes {1e-6 * r.search:.4f} ms, when one is due")
        return "\n".join(lines)


def profile(
    model: EvaluationContext,
    atoms: Atoms,
    steps: int,
    *,
    skin: float = 1.0,
    ops: bool = False,
    on_step: Callable[[int], None] = lambda _: None,
) -> Profile:
    """Runs steps along thermal velocities. If the model has kernels that can be rebuilt with the profiler, these record
    their stages; otherwise, or if `ops` is set, PyTorch's profiler records. `on_step` gets the number of steps done.

    Raises JitError if PyTorch's profiler records nothing, or on a GPU no kernels.
    """
    if ops:
        return _of_ops(model, atoms, steps, skin, on_step, _ASKED)
    try:
        entry = kernels.entry_for(model, profiler=True)
        before = kernels.in_use(model)
        kernels.install(model, entry)
    except JitError as error:
        return _of_ops(model, atoms, steps, skin, on_step, str(error))
    kernels.use(model, entry.key, True)
    try:
        found = by_stages.record(Steps(model, atoms, skin), Stages(entry.path), steps, on_step)
    finally:
        kernels.use(model, entry.key, False)
        if before is not None:
            kernels.use(model, before, True)
    if found.spans:
        return Profile(found, entry.key)
    problem = f"for these atoms a step does not call the kernels ({model.explain()})"
    return _of_ops(model, atoms, steps, skin, on_step, problem)


def _of_ops(
    model: EvaluationContext,
    atoms: Atoms,
    steps: int,
    skin: float,
    on_step: Callable[[int], None],
    why: str,
) -> Profile:
    return Profile(by_ops.record(Steps(model, atoms, skin), steps, on_step), None, why)
