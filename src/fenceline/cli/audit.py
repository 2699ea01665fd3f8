"""`fenceline audit`: whether a Delta table holds what the log holds, and its repair."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    examples,
    pairs,
    print_json,
    readable_errors,
    show,
)
from fenceline.errors import OperatorError

AUDIT_EXAMPLES: Final = examples(
    ("fenceline audit ./flights", "all topics of which the table has rows"),
    ("fenceline audit ./flights --topic flights --json", "one topic, for a program"),
    ("fenceline audit ./flights --repair", "take out what the log does not hold, add what is missing"),
    ("fenceline audit ./flights --repair --no-catch-up", "the same while a stream goes on filling the table"),
)
_SHOWN: Final = 40
_QUIETER: Final = ("expired", "compacted", "unproven", "behind")


def audit(
    table: Annotated[str, typer.Argument(help="path of the Delta table, or its address in an object store")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[list[str] | None, typer.Option(help="compare this topic only; may be repeated")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="make the table equal to the log")] = False,
    from_table: Annotated[
        bool, typer.Option("--from-table", help="nothing is missing before the table's own first row")
    ] = False,
    committed: Annotated[
        bool, typer.Option("--committed", help="the table is to hold committed records only (read_committed)")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--everything", help="read all of the log's batch headers, not only where rows are missing")
    ] = False,
    catch_up: Annotated[
        bool,
        typer.Option("--catch-up/--no-catch-up", help="with --repair: add what the table has not reached yet"),
    ] = True,
    doubtful_rows: Annotated[
        str, typer.Option(help="with --repair: keep or delete rows of which the log says nothing")
    ] = "keep",
    option: Annotated[list[str] | None, typer.Option(help="a client setting as key=value; may be repeated")] = None,
    storage: Annotated[list[str] | None, typer.Option(help="an object store's setting as key=value")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a table with the log: stale, missing, duplicate and foreign rows. Exits with 1 when they differ."""
    with readable_errors():
        if importlib.util.find_spec("deltalake") is None or importlib.util.find_spec("pyspark") is None:
            raise OperatorError("Tables need Fenceline's Spark parts", "Install them: pip install 'fenceline[spark]'")
        from pyspark_fenceline.audit_table import audit_here, settings
        from pyspark_fenceline.repair_table import repair_here

        chosen = settings(
            {"bootstrap.servers": bootstrap, **pairs(option or [], "--option")},
            topic,
            "table" if from_table else "earliest",
            "read_committed" if committed else "read_uncommitted",
            everything or None,
        )
        kept = pairs(storage or [], "--storage")
        if not repair and (doubtful_rows != "keep" or not catch_up):
            raise OperatorError(
                "--no-catch-up and --doubtful-rows say what a repair does, and none is asked for", "Add --repair."
            )
        repaired: Any = None
        if repair:
            repaired = repair_here(table, chosen, storage=kept, catch_up=catch_up, doubtful_rows=doubtful_rows)
        found = audit_here(table, chosen, storage=kept)
        findings = found.findings.to_pylist()
        verdict = found.verdict
        if as_json:
            print_json(_document(table, verdict, findings, repaired))
        else:
            if repaired is not None:
                print(repaired.sentence())
            _print_findings(findings)
            print(verdict.sentence())
    if not verdict.is_right:
        raise typer.Exit(1)


def _document(table: str, verdict: Any, findings: Sequence[Mapping[str, Any]], repaired: Any) -> dict[str, Any]:
    document = {
        "table": table,
        "verdict": verdict.word,
        "rows": verdict.row_count,
        "partitions": verdict.partition_count,
        "sees_truncation": verdict.sees_truncation,
        "kinds": {str(k): {"ranges": n, "rows": verdict.rows.get(k, 0)} for k, n in sorted(verdict.ranges.items())},
        "findings": list(findings),
    }
    if repaired is not None:
        document["repair"] = {
            "version": repaired.version,
            "removed_rows": repaired.removed_rows,
            "added_rows": repaired.added_rows,
            "files_removed": repaired.files_removed,
            "files_added": repaired.files_added,
            "removed": [{**one.told(), "reason": str(one.reason)} for one in repaired.removed],
            "left": list(repaired.left),
        }
    return document


def _print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """The first of them, faults before what is only worth knowing."""
    rows = sorted(findings, key=lambda one: one["kind"] in _QUIETER)
    shown = [
        {
            "partition": "-" if one["topic"] is None else f"{one['topic']}-{one['partition']}",
            "finding": one["kind"],
            "offsets": f"{one['start_offset']} to {one['end_offset_exclusive'] - 1}",
            "rows": one["rows"],
            "epochs": one["epochs"],
            "detail": one["detail"],
        }
        for one in rows[:_SHOWN]
    ]
    if shown:
        show(shown, as_json=False, optional=("detail",))
    if len(rows) > _SHOWN:
        print(f"... and {len(rows) - _SHOWN} more; all of them with --json")
