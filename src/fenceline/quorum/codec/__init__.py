"""The quorum's messages as Kafka's APIs. Pure: no I/O, no decisions."""
