"""`fenceline audit`: compares a Delta table with the log, repairs it, and adds missing leader epochs to its rows.

Owns the command's options and exit codes. Without `--apply`, a repair or backfill only prints what it would change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    client_settings,
    examples,
    pairs,
    print_json,
    readable_errors,
    show,
)
from fenceline.errors import OperatorError
from fenceline.extras import require_packages

AUDIT_EXAMPLES: Final = examples(
    ("fenceline audit ./flights", "all topics in the table"),
    ("fenceline audit ./flights --topic flights --json", "one topic, as JSON"),
    ("fenceline audit ./flights --repair", "what a repair would change; --apply changes it"),
    ("fenceline audit ./flights --repair --kind stale,missing --apply", "delete stale rows, add missing rows"),
    ("fenceline audit ./flights --backfill --apply", "add leader epochs to rows that have none"),
)
DIFFERS: Final = 1
UNPROVEN: Final = 3
"""Exit codes. 0: the table equals the log, or is only behind. 1 is also for errors, 2 for wrong options."""
_SHOWN: Final = 40
_NOT_FAULTS: Final = ("expired", "compacted", "unproven", "undecided", "deleted", "behind")


def audit(
    table: Annotated[str, typer.Argument(help="path of the Delta table, or its URI in an object store")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[list[str] | None, typer.Option(help="compare only this topic; may be repeated")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="print what would make the table equal to the log; --apply changes it")
    ] = False,
    backfill: Annotated[
        bool,
        typer.Option("--backfill", help="print which rows without an epoch match the log; --apply writes their epochs"),
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="with --repair or --backfill: change the table")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="with --repair: repair findings of this kind; may be repeated [default: stale, beyond]"),
    ] = None,
    from_table: Annotated[
        bool, typer.Option("--from-table", help="do not report records before the table's first row as missing")
    ] = False,
    committed: Annotated[
        bool, typer.Option("--committed", help="expect only records of committed transactions (read_committed)")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--everything", help="read all batch headers of the log, not only where rows are missing")
    ] = False,
    by_values: Annotated[
        bool, typer.Option("--by-values", help="compare the values of rows without an epoch with the log")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            help="the records that the table should hold: a Spark SQL condition on the source's columns (needs Java)"
        ),
    ] = None,
    row_key: Annotated[
        list[str] | None,
        typer.Option(help="a column that distinguishes rows made from one record; may be repeated"),
    ] = None,
    deleted: Annotated[
        str | None,
        typer.Option(help="a CSV, JSON or Parquet file of rows deleted on purpose, by offset or key"),
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="a client setting as key=value; may be repeated")] = None,
    storage: Annotated[
        list[str] | None, typer.Option(help="an object store setting as key=value; may be repeated")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a table with the log: stale, missing, duplicate, unproven rows.

    Exit codes: 0 the table equals the log, or is only behind; 1 it differs, or an error occurred; 2 wrong options; 3
    no difference was found, but some rows cannot be proven.
    """
    with readable_errors():
        require_packages("fenceline audit", ["deltalake", "pyspark"], "spark")
        _check_options(repair=repair, backfill=backfill, apply=apply, kinds=kind, where=where)
        from pyspark_fenceline.auditing.table import audit_here, settings
        from pyspark_fenceline.auditing.transform import RowMapping

        chosen = settings(
            {**client_settings(bootstrap), **pairs(option or [], "--option")},
            topic,
            "table" if from_table else "earliest",
            "read_committed" if committed else "read_uncommitted",
            everything or None,
            by_values=by_values,
            mapping=RowMapping(where=where),
            row_key=row_key or None,
            deleted=deleted,
        )
        kept = pairs(storage or [], "--storage")
        done: Any = None
        if repair:
            from pyspark_fenceline.auditing.repair_table import repair_here

            kinds = None if kind is None else [name.strip() for each in kind for name in each.split(",")]
            done = repair_here(table, chosen, apply=apply, kinds=kinds, storage=kept)
        elif backfill:
            from pyspark_fenceline.auditing.backfill_table import backfill_here

            done = backfill_here(table, replace(chosen, by_values=True), apply=apply, storage=kept)
        found = audit_here(table, chosen, storage=kept)
        findings = _rows(found.findings)
        verdict = found.verdict
        if as_json:
            print_json(_document(table, verdict, findings, done))
        else:
            if done is not None:
                print(done.sentence())
            _print_findings(findings)
            print(verdict.sentence())
    if verdict.outcome == "different":
        raise typer.Exit(DIFFERS)
    if verdict.outcome == "unproven":
        raise typer.Exit(UNPROVEN)


def _check_options(
    *, repair: bool, backfill: bool, apply: bool, kinds: Sequence[str] | None, where: str | None
) -> None:
    if repair and backfill:
        raise OperatorError("--repair and --backfill cannot be combined", "Run them one after the other.")
    if kinds and not repair:
        raise OperatorError("--kind has no effect without --repair", "Add --repair.")
    if apply and not repair and not backfill:
        raise OperatorError("--apply has no effect by itself", "Add --repair or --backfill.")
    if backfill and where is not None:
        raise OperatorError(
            "--where cannot be combined with --backfill", "Remove --where: rows are compared by their values."
        )


def _rows(findings: Any) -> list[Mapping[str, Any]]:
    """The rows of a Spark DataFrame or an Arrow table."""
    table = findings.toArrow() if hasattr(findings, "toArrow") else findings
    rows: list[Mapping[str, Any]] = table.to_pylist()
    return rows


def _document(table: str, verdict: Any, findings: Sequence[Mapping[str, Any]], done: Any) -> dict[str, Any]:
    document = {
        "table": table,
        "verdict": verdict.outcome,
        "rows": verdict.row_count,
        "partitions": verdict.partition_count,
        "sees_truncation": verdict.sees_truncation,
        "kinds": {str(k): {"ranges": n, "rows": verdict.rows.get(k, 0)} for k, n in sorted(verdict.ranges.items())},
        "torn_transactions": list(verdict.torn),
        "notes": list(verdict.notes),
        "findings": list(findings),
    }
    if hasattr(done, "removed"):
        document["repair"] = {
            "applied": done.is_applied,
            "version": done.version,
            "removed_rows": done.removed_rows,
            "added_rows": done.added_rows,
            "files_removed": done.files_removed,
            "files_added": done.files_added,
            "removed": [{**one.to_json(), "reason": str(one.reason)} for one in done.removed],
            "added": [{name: getattr(one, name) for name in one.__slots__} for one in done.added],
            "left": list(done.left),
        }
    elif done is not None:
        document["backfill"] = {
            "applied": done.is_applied,
            "version": done.version,
            "proven_rows": done.proven_rows,
            "same_rows": done.same_rows,
            "unknown_rows": done.unknown_rows,
            "stale_rows": done.stale_rows,
            "stale": [{name: getattr(one, name) for name in one.__slots__} for one in done.stale],
        }
    return document


def _print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """Print the first findings, faults before notes."""
    rows = sorted(findings, key=lambda one: one["kind"] in _NOT_FAULTS)
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
        print(f"... and {len(rows) - _SHOWN} more (use --json for all)")
