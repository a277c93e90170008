"""Training of models: data, statistics, losses, schedules, the loop (docs/training.md)."""

from mdops.train.batch import Batch, make_batch
from mdops.train.config import parse_config, read_config
from mdops.train.data import Dataset, load_dataset
from mdops.train.lcurve import Report
from mdops.train.lists import PairLists
from mdops.train.storage import Storage
from mdops.train.trainer import Trainer

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
