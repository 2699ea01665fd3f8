"""Nodes of Fenceline as child processes, with cut networks: for the command, for tests, for the test kit.

from fenceline.local_cluster.cluster import LocalCluster
"""
