"""Nets, their activation functions, and sums over atoms: what models are built of."""
