"""Checks files of logs that no process has open. Never changes a file."""
