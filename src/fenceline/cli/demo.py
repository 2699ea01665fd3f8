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
) -> None:
    """Stream 336,776 flights through a node and Spark into Delta tables, check every row, draw the delays."""
    with readable_errors():
        from fenceline.demo.run import run_demo

        try:
            passed = run_demo(directory.absolute(), report.absolute())
        except KeyboardInterrupt:
            print("\nStopped; nothing is left running.")
            raise typer.Exit(130) from None
    if not passed:
        raise typer.Exit(1)
