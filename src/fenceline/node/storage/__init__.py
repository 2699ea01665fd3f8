"""Directories of logs: failures, moves, flushes, cleaning, recovery after a crash."""
