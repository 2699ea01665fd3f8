"""What is logged while the demo runs, and is not for the eyes of who watches it.

Owns the loggers' settings for that time, and nothing that is shown. Errors of others are logged as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing of `fenceline` is logged, whose news the demo narrates itself; and no interrupt on its way to who ends
    the demo: py4j logs each that comes while Java is asked as an error, at the root.
    """
    ours, root = logging.getLogger("fenceline"), logging.getLogger()
    nowhere, was_propagated = logging.NullHandler(), ours.propagate
    ours.addHandler(nowhere)
    # Whoever logs at the root first gives it a handler.
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
