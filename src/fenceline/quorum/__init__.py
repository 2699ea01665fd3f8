"""Consensus on the metadata log (KRaft). No I/O, no clock, no randomness: drivers bring time, bytes and disks."""
