"""An open log. `state.py` is its state and how it grows, `readable_log.py` has the look-ups, `partition_log.py` is its
face; the other modules are operations on the state: truncate, save, delete old segments, check what is appended."""
