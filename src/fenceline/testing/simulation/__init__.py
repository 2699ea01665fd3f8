"""Deterministic simulation: the node's own code on virtual time, with a simulated network and simulated disks.

One seed is one story: it draws the options, the delays, the faults and what clients do. The same seed gives the same
story on every machine, so a failure is replayed by its number (`python -m fenceline.testing.simulation --seed N`).

Never imported by the server. `docs/simulation.md` says how to replay a seed and how to write a scenario.
"""
