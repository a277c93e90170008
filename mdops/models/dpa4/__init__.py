"""DPA-4 (SeZM): the descriptor, its fitting of energies, and the model that holds both."""

from mdops.models.dpa4 import descriptor, fitting, model  # noqa: F401  (each registers its kinds)
