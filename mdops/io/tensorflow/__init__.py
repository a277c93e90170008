"""Frozen TensorFlow graphs of DeePMD-kit (`.pb`, `.pbtxt`), read as data: nothing in them is run."""
