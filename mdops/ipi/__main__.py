"""`i-pi-driver-py -m custom -P $(python -m mdops.ipi) ...`"""

from mdops.ipi import PES

print(PES)
