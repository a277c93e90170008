"""Training of models: data, statistics, losses, schedules, the loop (docs/reference/training-input.md)."""

from mdops.data.batch import Batch, make_batch
from mdops.data.dataset import Dataset, load_dataset
from mdops.data.neighbor_lists import PairLists
from mdops.data.storage import Storage
from mdops.train.config.read import parse_config, read_config, read_input
from mdops.train.loop.trainer import Trainer
from mdops.train.report.learning_curve import Report

__all__ = [
    "Batch",
    "Dataset",
    "PairLists",
    "Report",
    "Storage",
    "Trainer",
    "load_dataset",
    "make_batch",
    "parse_config",
    "read_config",
    "read_input",
]
