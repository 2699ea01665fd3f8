"""What logs lose: counted before it goes, kept as evidence, told by receipts.

Owns receipts and the files beside the evidence, through the `Disk` interface. Never hides or guesses anything: what is
not known is said to be not known. No event loop, no clock, no network: `fenceline.node.loss_*` delivers.
"""
