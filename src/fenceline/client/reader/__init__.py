"""Reads exact ranges of offsets, for Spark and for commands."""
