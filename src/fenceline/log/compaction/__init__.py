"""Compaction of sealed segments, and the exchange of the files."""
