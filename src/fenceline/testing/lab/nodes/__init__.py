"""What runs in the process of a node of the laboratory: the production node on a disk, a clock, a network and a server
that fail on request.

Owns the injection of faults. Decides none: the laboratory sends them over the control channel (`channel`). Without
faults, the node behaves as one that `fenceline start` runs.
"""
