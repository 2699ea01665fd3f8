"""Produce: from the bytes of a request to the append, and from the replicas' acknowledgement to the response."""
