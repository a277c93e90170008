"""Training inputs: DeePMD-kit's keys, checked."""
