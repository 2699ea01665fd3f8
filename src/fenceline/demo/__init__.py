"""The main job, end to end on real input: 336,776 flights through a node and Spark into two Delta tables, then checked.

A room of its own above the client, the test kit (for the node's process) and the Spark package; nothing imports it but
the command line.
"""
