"""Splines that stand for nets of distances and of angles, and where their knots are."""
