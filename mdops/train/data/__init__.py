"""Training data: files, datasets, neighbour lists, batches, and their statistics."""
