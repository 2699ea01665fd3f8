"""The `fenceline` command. Owns options, messages and tables; the work of each command is done by another package.

`fenceline start` is dispatched before typer is imported, because start-up time is measured from the spawn.
"""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Entry point of the console script."""
    # Ctrl-C during imports ends the process without a traceback.
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
