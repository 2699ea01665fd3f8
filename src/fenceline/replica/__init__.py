"""Replica state of one partition: who leads it, at which epoch, what is committed. No I/O, no clock, no randomness."""
