"""Reports of a training: learning curves, errors, tables, plots."""
