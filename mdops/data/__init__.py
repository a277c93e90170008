"""Labelled frames: files, datasets, neighbour lists, batches, their statistics, and a model's errors on them."""
