"""`fenceline start`: runs one node, or the nodes of this host, in the foreground until SIGTERM or Ctrl-C.

Owns the command's options and exit codes: 0 after a clean stop, 1 after an error that the operator can fix, 2 for wrong
options, 70 after an internal error, 130 after a second signal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fenceline.errors import InternalError, OperatorError

EXIT_INTERNAL_ERROR = 70

EXAMPLES = """\
examples:
  fenceline start                                   one node on port 9092, data in the user's data directory
  fenceline start --data-dir ./data --listen :19092
  fenceline start --config server.properties --override log.retention.ms=3600000
  fenceline start --config server.properties --nodes 4     four nodes on this host, which share no replicas

Set properties of Kafka's server.properties in the file, with --override, or in the environment as FENCELINE_<KEY>
(underscores instead of dots). docs/configuration.md lists the supported properties.
"""


def parser() -> argparse.ArgumentParser:
    """The options of `fenceline start`."""
    options = argparse.ArgumentParser(
        prog="fenceline start",
        description="Run one Fenceline node, a broker and a controller in one process, or several on this host.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--config", type=Path, metavar="FILE", help="a file in the format of Kafka's server.properties"
    )
    options.add_argument("--data-dir", type=Path, metavar="DIR", help="the data directory; formatted if it is new")
    options.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address for clients (default :9092, all interfaces; port 0: any free port)",
    )
    options.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="set a property; may be repeated"
    )
    options.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="run N nodes, one for each core: with the next ids and ports, a directory node-ID each, and this host as"
        " their rack (docs/scale.md)",
    )
    options.add_argument(
        "--cluster-id", metavar="ID", help="with --nodes: format new directories for this cluster of several hosts"
    )
    options.add_argument(
        "--log-format", choices=("auto", "json", "console"), default="auto", help="format of the log lines on stderr"
    )
    options.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return options


def main(arguments: Sequence[str]) -> int:
    """Parse options, run the node, return the exit code."""
    options = parser().parse_args(arguments)
    from fenceline.node.logs import Logger, configure
    from fenceline.node.run import run_node, settings_from_options

    configure(log_format=options.log_format, level=options.log_level)
    try:
        overrides = settings_from_options(options.override, options.data_dir, options.listen)
        if options.nodes is not None:
            from fenceline.cli.start_host import run_host

            return run_host(options, overrides)
        if options.cluster_id is not None:
            raise OperatorError("--cluster-id belongs to --nodes", "Format a single node with `fenceline format`.")
        return run_node(options.config, overrides)
    except OperatorError as error:
        print(f"fenceline: {error.message}", file=sys.stderr)
        if error.advice:
            print(f"  {error.advice}", file=sys.stderr)
        return 1
    except InternalError as error:
        Logger("node").exception("internal error, the node has stopped")
        print(f"fenceline: internal error: {error}", file=sys.stderr)
        print(
            "  This is a bug in Fenceline. Keep the data directory and the log, and report it.",
            file=sys.stderr,
        )
        return EXIT_INTERNAL_ERROR
