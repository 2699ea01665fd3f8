"""The `fenceline` command. Owns words and tables on the terminal; every command calls the room that does the work.

`fenceline start` is dispatched before typer is imported, because a node's start is measured from its spawn.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Entry point of the console script."""
    # Ctrl-C while modules are imported ends the process without a traceback of whichever import it met.
    was_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if was_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["start"]:
        from fenceline.cli.start import main as start

        sys.exit(start(sys.argv[2:]))
    from fenceline.cli.app import run

    if was_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
