"""What a node loses: keeps it, writes receipts, sends them to the ledger topic, and expires the evidence."""
