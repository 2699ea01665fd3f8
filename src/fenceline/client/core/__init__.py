"""Connections, metadata, leader epochs and errors: what all clients share."""
