"""Suppresses log lines that would disturb the demo's output.

Owns the loggers' settings while the demo runs. Errors of other libraries are still logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the log lines of `fenceline`, whose events are on the demo's timeline, and those of interrupts: py4j
    logs a KeyboardInterrupt during a call into Java as an error, at the root logger.
    """
    ours, root = logging.getLogger("fenceline"), logging.getLogger()
    nowhere, was_propagated = logging.NullHandler(), ours.propagate
    ours.addHandler(nowhere)
    # Without propagation a handler that a library adds to the root logger does not print these lines.
    ours.propagate = False
    root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(_is_no_interrupt)
        ours.propagate = was_propagated
        ours.removeHandler(nowhere)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))
