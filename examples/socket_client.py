"""Drives mdops through a socket with i-PI's protocol: here ASE is the server and relaxes the atoms.

python examples/socket_client.py

For another server (i-PI, or another code) only `client` is needed, with its host and port.
"""

import os
import threading
from contextlib import suppress

from alloy import MODEL, alloy
from ase.calculators.socketio import SocketClient, SocketIOCalculator
from ase.optimize import LBFGS

from mdops.calculator import MDOps

SOCKET = f"mdops_{os.getpid()}"  # /tmp/ipi_...


def client() -> None:
    """Answers the server until it closes the connection."""
    atoms = alloy()  # the same elements, in the same order, as the server's
    atoms.calc = MDOps(MODEL)
    with suppress(ConnectionError):
        SocketClient(unixsocket=SOCKET).run(atoms, use_stress=True)


atoms = alloy()
atoms.rattle(0.1, seed=2)
with SocketIOCalculator(unixsocket=SOCKET, timeout=60) as server:
    thread = threading.Thread(target=client)
    thread.start()
    atoms.calc = server
    before = atoms.get_potential_energy()
    optimizer = LBFGS(atoms, logfile=None)
    optimizer.run(fmax=0.01, steps=100)
    print(f"{before:.4f} eV -> {atoms.get_potential_energy():.4f} eV in {optimizer.nsteps} steps")
thread.join()
