"""Sockets: the listeners of a node, its connections to clients and to other nodes. Decides nothing about a request."""
