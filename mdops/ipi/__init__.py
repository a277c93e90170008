"""i-PI: a driver for its sockets and its forcefield `ffdirect`, in batches of beads (docs/how-to/ipi.md).

`mdops.ipi.PES` is the file that i-PI calls a custom PES; `python -m mdops.ipi` prints it.
"""

from pathlib import Path

# Not called ipi.py: i-PI imports it by the name of the file, which would hide i-PI itself.
PES = str(Path(__file__).with_name("mdops_pes.py"))
