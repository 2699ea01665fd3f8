"""What a broker's coordinators share: the internal topic whose partitions they own, and loads, appends and timers.

A coordinator (`fenceline.groups`, `fenceline.transactions`) is a state machine; its driver (`node.groups`,
`node.transactions`) connects it to these parts. Knows neither of them.
"""
