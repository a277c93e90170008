"""A round's committee and the labels made after its training."""

from dataclasses import dataclass

import numpy as np
from ase import Atoms

from mdops.data.dataset import load_dataset
from mdops.learn.labels import read_frames
from mdops.learn.rounds import Round, Summary
from mdops.learn.students import Answers, answers_of, committee


@dataclass(frozen=True)
class Unseen:
    """A round's committee, its results for the labels made after its training, and which of these are fresh frames."""

    number: int
    frames: list[Atoms]
    answers: Answers
    student: int

    @property
    def fresh(self) -> np.ndarray:
        """(F,) bool."""
        return np.array([bool(frame.info.get("fresh")) for frame in self.frames])


def unseen(round_: Round, summary: Summary, number: int, device: str, type_map: list[str]) -> Unseen:
    """The results for a finished round; `number`: of its students."""
    path = round_.labels.labels
    answers = answers_of(committee(round_.folder, number, device), load_dataset([path], type_map))
    return Unseen(round_.number, read_frames(path), answers, summary.student)
