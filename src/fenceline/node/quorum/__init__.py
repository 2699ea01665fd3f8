"""Runs `fenceline.quorum`: timers, the metadata log, requests to and from other voters, transfers of snapshots."""
