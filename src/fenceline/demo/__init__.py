"""The demo: 336,776 flights through three brokers and Spark into two Delta tables, with a data loss on the way.

Builds on the client, the test kit (which runs the nodes' processes) and the Spark package. Only the command line
imports it.
"""
