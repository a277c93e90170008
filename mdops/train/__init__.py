"""Training of models: data, statistics, losses, schedules, the loop (docs/training.md)."""

from mdops.train.config.sections import parse_config, read_config
from mdops.train.data.batch import Batch, make_batch
from mdops.train.data.dataset import Dataset, load_dataset
from mdops.train.data.neighbor_lists import PairLists
from mdops.train.data.storage import Storage
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
]
