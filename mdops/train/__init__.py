"""Training of models: data, statistics, losses, schedules (docs/training.md)."""

from mdops.train.batch import Batch, make_batch
from mdops.train.data import Dataset, load_dataset
from mdops.train.lists import PairLists
from mdops.train.storage import Storage

__all__ = ["Batch", "Dataset", "PairLists", "Storage", "load_dataset", "make_batch"]
