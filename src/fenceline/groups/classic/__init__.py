"""Groups of the classic protocol: members, rebalances, states."""
