"""Starts LAMMPS with the pair style of mdops: `mdops lammps ARGS`, with LAMMPS' own ARGS; with MPI `mpirun -np 4 mdops
lammps -in in.lmp`. Without ARGS it prints the paths of LAMMPS and the plugin; -h is LAMMPS' own help. See
lammps.md."""

import argparse
import os

HELP = "run LAMMPS with `pair_style mdops`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(rest=[])  # the arguments of LAMMPS (mdops.cli.main)


def run(args: argparse.Namespace) -> int:
    from mdops.lammps import environment, find_program, plugin

    program = find_program()
    if not args.rest:
        print(f"LAMMPS   {program}\nplugin   {plugin()}")
        return 0
    env = environment()
    os.execve(program, [str(program), *args.rest], env)
    raise AssertionError("execve does not return")
