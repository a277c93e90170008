"""Readers of PyTorch files, which never unpickle anything."""
