"""The loop: label, train, explore, select, until the students are good (docs/explanation/learning.md)."""

import multiprocessing
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from mdops._library import check_device
from mdops.data.dataset import load_dataset
from mdops.errors import InputError
from mdops.files.lock import BusyError, locked
from mdops.learn.changes import adapt
from mdops.learn.config import Config
from mdops.learn.domain import measured_domain
from mdops.learn.explore import Run, explore
from mdops.learn.jobs import Jobs
from mdops.learn.labels import gather, label, read_frames, teacher_of, write_frames
from mdops.learn.progress import Told, timed
from mdops.learn.report import write_report
from mdops.learn.rounds import Round, Summary, finished_rounds, read, write
from mdops.learn.select import chosen_frames, fresh_frames
from mdops.learn.structures import elements_of, first_set, start_structures
from mdops.learn.students import answers_of, check_input, committee, held_out, model_files, train
from mdops.learn.trust import Trust, trust_levels
from mdops.loading import load


@dataclass(frozen=True)
class Result:
    """The result of `learn`.

    Attributes:
        model: the file of the student. report: the page about it; None without matplotlib.
        errors: root mean square errors on fresh frames of its own dynamics: "forces" (eV/A), "energy" (eV/atom).
        reached: whether these are within the targets, and no run was stopped.
        calls: the number of structures given to the teacher.
    """

    model: Path
    report: Path | None
    errors: dict[str, float]
    reached: bool
    calls: int


def learn(config: Config, folder: str | os.PathLike[str]) -> Result:
    """Learns a potential from a teacher, in a folder, and continues an earlier run there.

    It starts processes: a script that calls it needs `if __name__ == "__main__":` around the call.

    Raises:
        InputError: structures, options or files do not fit, or another run uses the folder.
        ConfigError, ModelFileError, UnsupportedModelError, LibraryError: errors of the teacher or the students' input.
        DivergedError: a training diverged.
    """
    top = Path(folder)
    check_device(config.compute.device)
    top.mkdir(parents=True, exist_ok=True)
    try:
        with (
            locked(top / ".mdops-learn.lock", remove=False),
            Jobs(config.compute.processes, config.compute.threads) as jobs,
        ):
            return _Loop(config, top, jobs).go()
    except BusyError as who:
        # Child processes import the script that called `learn`.
        is_own = multiprocessing.current_process().name != "MainProcess"
        guard = (
            '; a script that calls it needs `if __name__ == "__main__":` around the call' if is_own else ""
        )
        raise InputError(f"{top}: another `mdops learn` runs in this folder ({who}){guard}") from None


class _Loop:
    def __init__(self, config: Config, top: Path, jobs: Jobs) -> None:
        self.config, self.top, self.jobs = config, top, jobs
        self.structures = start_structures(config.start)
        self.type_map = elements_of(self.structures)
        check_input(config.students, self.type_map)
        self.teacher = teacher_of(config.teacher)
        self.told, self.cpu_before = Told(top, config), 0.0
        for line in adapt(top, _sections(config), self.teacher.identity):
            self.told.say(line)

    def go(self) -> Result:
        while (kind := self._next()) is not None:
            done = finished_rounds(self.top)
            now = Round(self.top, len(done))
            now.folder.mkdir(exist_ok=True)
            started = now.folder / "kind.json"
            if started.exists():
                kind = read(started)  # the kind with which it began
            else:
                write(started, kind)
            self.cpu_before = self.jobs.cpu_seconds
            if kind == "first":
                self._first(now)
            else:
                self._round(now, kind == "final")
        return self._end()

    # -- The next round

    def _next(self) -> str | None:
        """The kind of the next round; None after the last one."""
        done = [summary for _, summary in finished_rounds(self.top)]
        if not done:
            return "first"
        budget, spent = self.config.budget, sum(s.calls for s in done)
        left = budget.calls - spent
        may_explore = (
            left >= self.config.targets.frames + self.config.select.fresh + 1
            and sum(s.kind == "explore" for s in done) < budget.rounds
        )
        last = done[-1]
        reached = last.kind != "first" and self._is_reached(last)
        if last.kind == "final":
            return None if reached or not may_explore else "explore"
        return "final" if reached or not may_explore else "explore"

    def _is_reached(self, summary: Summary) -> bool:
        targets, errors = self.config.targets, summary.errors
        good = errors["forces"] <= targets.forces and summary.stopped == 0
        return good and (targets.energy is None or errors["energy"] <= targets.energy)

    # -- Rounds

    def _random(self, now: Round, stage: int) -> np.random.Generator:
        """A generator that depends only on the round and the stage."""
        return np.random.default_rng((self.config.seed, now.number, stage))

    def _before(self, now: Round) -> list[tuple[Round, Summary]]:
        return finished_rounds(self.top)[: now.number]

    def _stage(self, now: Round, what: str) -> None:
        done = [summary for _, summary in self._before(now)]
        calls = sum(s.calls for s in done)
        if now.labels.asked.exists():
            calls += now.labels.count()
        self.told.stage(what, done, calls)

    def _first(self, now: Round) -> None:
        summary = Summary("first")
        if not now.labels.asked.exists():
            now.labels.ask(first_set(self.structures, self.config.start, self._random(now, 0)))
        self._label(now, summary)
        self._finish(now, summary)

    def _round(self, now: Round, final: bool) -> None:
        config, before = self.config, self._before(now)
        known_files = [r.labels.labels for r, _ in before]
        known = [frame for file in known_files for frame in read_frames(file)]
        summary = Summary("final" if final else "explore", labels=len(known))
        trust = self._train(now, known_files, final, summary)
        frames, runs = self._explore(now, trust, summary)
        if not now.labels.asked.exists():
            now.labels.ask(self._select(now, frames, known, trust, final))
        self._label(now, summary, known)
        self._measure(now, summary, runs)
        summary.deviation = max(frame.info["deviation"] for frame in frames)
        summary.trust = asdict(trust)
        self._finish(now, summary)
        energy = 1000 * summary.errors["energy"]
        self.told.say(
            f"round {now.number}: {1000 * summary.errors['forces']:.3g} meV/A and {energy:.3g} meV/atom (RMSE) on "
            f"{summary.fresh} fresh frames, {summary.stopped} of {summary.runs} runs stopped; target "
            f"{1000 * config.targets.forces:.3g} meV/A"
        )

    def _finish(self, now: Round, summary: Summary) -> None:
        summary.cpu_seconds = self.jobs.cpu_seconds - self.cpu_before
        now.finish(summary)

    def _train(self, now: Round, labels: Sequence[Path], final: bool, summary: Summary) -> Trust:
        """Trains the committee; returns its trust levels, and which student is the best on held-out labels."""
        config, path = self.config, now.folder / "trust.json"
        with timed(summary.seconds, "training"):
            if not path.exists():
                steps = config.students.final_steps if final else config.students.steps
                self._stage(
                    now,
                    f"training {config.students.number} students for {steps:,} steps on {summary.labels} labels",
                )
                seed = 1000 * config.seed + now.number
                train(
                    now.folder,
                    config.students,
                    labels,
                    self.type_map,
                    steps,
                    seed,
                    config.compute.device,
                    self.jobs,
                )
                answers = answers_of(self._committee(now), held_out(labels, self.type_map))
                errors = [answers.errors(k)["forces"] for k in range(config.students.number)]
                trust = trust_levels(answers, config.targets.forces)
                write(path, {"trust": asdict(trust), "student": int(np.argmin(errors))})
        told = read(path)
        summary.student = told["student"]
        return Trust(**told["trust"])

    def _committee(self, now: Round) -> Any:
        return committee(now.folder, self.config.students.number, self.config.compute.device)

    def _explore(self, now: Round, trust: Trust, summary: Summary) -> tuple[list[Atoms], list[Run]]:
        config = self.config
        with timed(summary.seconds, "exploration"):
            self._stage(now, f"exploring up to a deviation of {trust.high:.3g} eV/A")
            frames, runs = explore(
                now.folder,
                config.explore,
                self.structures,
                swap=config.start.swap,
                number=config.students.number,
                device=config.compute.device,
                high=trust.high,
                seed=(config.seed, now.number, 1),
                jobs=self.jobs,
            )
        summary.stopped, summary.runs = sum(run.stopped for run in runs), len(runs)
        if not frames:
            raise InputError(
                f"{now.folder}: no run reached its first frame: make explore.interval or explore.timestep "
                "shorter, or give more initial labels (start.frames)"
            )
        return frames, runs

    def _select(
        self, now: Round, frames: list[Atoms], known: list[Atoms], trust: Trust, final: bool
    ) -> list[Atoms]:
        """Selects fresh frames at random, and, except in the last round, frames worth a label."""
        config, random = self.config, self._random(now, 2)
        fresh = fresh_frames(frames, config.targets.frames if final else config.select.fresh, random)
        for place in fresh:
            frames[place].info["fresh"] = True
        if final:
            return [frames[place] for place in fresh]
        spent = sum(s.calls for _, s in self._before(now))
        most = config.budget.calls - spent - config.targets.frames - len(fresh)
        others = [frame for place, frame in enumerate(frames) if place not in set(fresh)]
        number = min(config.select.frames, most)
        picked = chosen_frames(others, known, number, trust, self._committee(now)[0])
        return [frames[place] for place in fresh] + [others[place] for place in picked]

    def _label(self, now: Round, summary: Summary, known: Sequence[Atoms] = ()) -> None:
        folder, teacher = now.labels, self.teacher
        with timed(summary.seconds, "labels"):
            if not folder.labels.exists():
                self._stage(now, f"labelling {len(read_frames(folder.asked))} structures")
                label(
                    folder,
                    self.config.teacher,
                    teacher.identity,
                    teacher.at_once,
                    teacher.may_spread,
                    self.jobs,
                )
                gather(folder, known, self.config.limits)
        if folder.each.is_dir():  # left by a run that was killed while it removed files
            shutil.rmtree(folder.each)
        summary.calls = folder.count()
        summary.set_aside = [str(frame.info["failed"]) for frame in read_frames(folder.set_aside)]
        if summary.set_aside:
            self.told.say(
                f"round {now.number}: {len(summary.set_aside)} structures set aside ({summary.set_aside[0]}): "
                f"{folder.set_aside}"
            )

    def _measure(self, now: Round, summary: Summary, runs: list[Run]) -> None:
        """Measures the errors of the student on the fresh frames."""
        labels = read_frames(now.labels.labels)
        fresh = [k for k, frame in enumerate(labels) if frame.info.get("fresh")]
        if not fresh:
            raise InputError(f"{now.labels.set_aside}: the teacher labelled none of the fresh frames")
        path = now.folder / "fresh.extxyz"
        write_frames(path, [labels[k] for k in fresh])
        answers = answers_of(self._committee(now), load_dataset([path], self.type_map))
        summary.errors, summary.fresh = answers.errors(summary.student), len(fresh)

    # -- The end

    def _end(self) -> Result:
        """Writes the model, its committee and the report, unless they exist."""
        done = finished_rounds(self.top)
        last, summary = done[-1]
        model = self.top / "model.safetensors"
        mark = self.top / "result.json"
        if not (mark.exists() and read(mark)["round"] == last.number and model.exists()):
            self.told.say(f"round {last.number}: writing the model and the report")
            self._write_models(last, summary, [r for r, _ in done])
            report = write_report(self.config, self.top, done, self.teacher, self.type_map)
            write(mark, {"round": last.number, "report": report})
        told = read(mark)
        calls = sum(s.calls for _, s in done)
        report_path = self.top / "report.html" if told["report"] else None
        return Result(model, report_path, summary.errors, self._is_reached(summary), calls)

    def _write_models(self, last: Round, summary: Summary, rounds: Sequence[Round]) -> None:
        """Writes model.safetensors and the other models of the committee beside it, each with its domain."""
        files = model_files(last.folder, self.config.students.number)
        files.insert(0, files.pop(summary.student))
        names = ["model.safetensors", *(f"committee-{k}.safetensors" for k in range(1, len(files)))]
        domain = measured_domain(
            last, summary, self.teacher.identity, sum(len(read_frames(r.labels.labels)) for r in rounds)
        )
        for name, file in zip(names[::-1], files[::-1], strict=True):
            potential = load(file)
            potential.source = {**potential.source, "domain": {**domain, "committee": names}}
            potential.save(self.top / name)


def _sections(config: Config) -> dict[str, Any]:
    """The input as a tree, without the keys that do not affect results."""
    tree = asdict(config)
    for name in ("teacher", "compute", "report"):
        del tree[name]
    return tree
