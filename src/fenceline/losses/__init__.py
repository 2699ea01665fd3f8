"""Losses of log records: counted before they are removed, kept as evidence, reported by receipts.

Owns receipts and the files next to the evidence, through the `Disk` interface. Never hides or guesses anything: unknown
facts are reported as unknown. No event loop, no clock, no network: `fenceline.node.loss_*` delivers receipts.
"""
