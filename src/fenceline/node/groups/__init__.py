"""Runs `fenceline.groups`: loads shards of `__consumer_offsets`, appends their records, answers requests."""
