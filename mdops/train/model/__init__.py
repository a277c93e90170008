"""The model that a training begins with."""
