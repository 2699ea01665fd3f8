"""Request handlers, one module per family of APIs; `node.api.tables` registers them."""
