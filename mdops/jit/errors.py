"""What goes wrong with rebuilt kernels; the prebuilt ones go on."""

from mdops.errors import MDOpsError


class JitError(MDOpsError, RuntimeError):
    """Kernels cannot be built or kept; the message says why and what to do."""
