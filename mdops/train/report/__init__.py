"""What a training tells: learning curves, errors, tables, plots."""
