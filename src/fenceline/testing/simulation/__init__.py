"""Deterministic simulation: the production code of the nodes on virtual time, with a simulated network and disks.

One seed determines one run: the options, the delays, the faults and the requests of clients. The same seed gives the
same run on every machine, so a failure is reproduced by its seed (`python -m fenceline.testing.simulation --seed N`).

Never imported by the server. `docs/simulation.md` explains how to reproduce a seed and how to write a scenario.
"""
