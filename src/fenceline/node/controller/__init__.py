"""The controller of a node: its driver, its channel to the active controller, its listener, registrations."""
