"""The partitions that this node has: roles, fetchers of followers, ISR, and what the image changes about them."""
