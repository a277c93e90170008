"""Finds, locks and replaces files of the package and of its cache. Nothing here needs the ops."""
