"""Cluster metadata: records, the immutable image, deltas between images and snapshots. Decides nothing."""
