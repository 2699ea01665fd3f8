"""`fenceline demo`: the main job on real input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenceline.cli.output import readable_errors


def demo(
    directory: Annotated[Path, typer.Option("--dir", help="for the tables; replaced at the next demo")] = Path(
        "fenceline-demo"
    ),
    report: Annotated[Path, typer.Option(help="the HTML page to write")] = Path("demo-report.html"),
    months: Annotated[int, typer.Option(min=3, max=12, help="of the flights of 2013, from January on")] = 12,
) -> None:
    """Stream the flights of 2013 through three brokers and Spark into Delta tables, lose some on the way, and watch the
    tables being repaired: every row is checked, and a page tells what happened.
    """
    with readable_errors():
        from fenceline.demo.run import run_demo

        try:
            passed = run_demo(directory.absolute(), report.absolute(), months=months)
        except KeyboardInterrupt:
            print("\nStopped; nothing is left running.")
            raise typer.Exit(130) from None
    if not passed:
        raise typer.Exit(1)
