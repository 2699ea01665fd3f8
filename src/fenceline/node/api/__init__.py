"""What a node does with a request: the data path (`produce`, `fetch`) and the handlers of all other APIs."""
