"""`fenceline checkpoint`: exports checkpoints of Spark queries for another source."""

from __future__ import annotations

from typing import Annotated

import typer

from fenceline.cli.output import AsJson, examples, print_json, readable_errors
from fenceline.extras import require_packages

checkpoint = typer.Typer(
    no_args_is_help=True,
    help="Export checkpoints of Spark queries.",
    epilog=examples(("fenceline checkpoint export ./checkpoint ./for-kafka", "for Spark's own Kafka source")),
)


@checkpoint.callback()
def group() -> None:
    """Keeps `export` a subcommand: without a callback, Typer makes a single command the group itself."""


@checkpoint.command()
def export(
    source: Annotated[str, typer.Argument(help="checkpointLocation of a stopped query of format('fenceline')")],
    target: Annotated[str, typer.Argument(help="a directory that does not exist")],
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint for Spark's own Kafka source, without topic ids and leader epochs."""
    with readable_errors():
        require_packages("fenceline checkpoint", ["pyspark"], "spark")
        from pyspark_fenceline.source.checkpoint_export import export_checkpoint

        done = export_checkpoint(source, target)
        if as_json:
            positions = {str(tp): offset for tp, offset in sorted(done.positions.items())}
            print_json({"target": done.target, "batch_id": done.batch_id, "positions": positions})
        else:
            print(done.sentence())
