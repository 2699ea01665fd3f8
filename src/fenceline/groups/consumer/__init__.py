"""Groups of the consumer protocol (KIP-848): members, subscriptions, targets, reconciliation."""
