"""Options of the Delta sink.

Owns their names and checks. `path` comes from `save(path)` and `start(path)`; `partitionBy`, `compression`,
`targetFileSizeBytes` control the files; `txnAppId` and `txnVersion` (Delta Lake's own names) make a batch write
idempotent, for use in `foreachBatch`; `storage.*` is passed to the object store. `kafka.*` names the brokers whose log
the table must match: with it stale rows are removed and no record is written twice (`delta.plan`). `delta.*` are the
properties of a new table (`delta.properties`), and with `upsertKeys` a write replaces rows of equal keys
(`delta.upsert`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.checkpoint_files import as_local
from pyspark_fenceline.common.given_options import GivenOptions
from pyspark_fenceline.common.retries import DEFAULT_RETRIES, RetryPolicy, retry_policy
from pyspark_fenceline.delta.properties import PREFIX, table_properties

CODECS: Final = ("snappy", "zstd", "gzip", "lz4", "none")
_REFUSED: Final = {
    "overwriteschema": "remove the table, or write to a new path",
    "replacewhere": "delete the rows first, then append",
    "partitionoverwritemode": "delete the rows first, then append",
}
_KNOWN: Final = {
    name.lower(): name
    for name in (
        "path", "checkpointLocation", "queryName", "partitionBy", "compression", "targetFileSizeBytes", "txnAppId",
        "txnVersion", "repair", "onRecreated", "mergeSchema", "upsertKeys", "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs", "overwriteSchema", "replaceWhere", "partitionOverwriteMode",
    )
}  # fmt: skip
"""Options by lower-case name; Spark adds the first three itself."""


@dataclass(frozen=True, slots=True)
class AppTransaction:
    """Delta's idempotence token: a commit of `version` by `app_id` happens at most once."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    target_file_size_bytes: int = 256 * 1024 * 1024
    transaction: AppTransaction | None = None
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    is_partitioning_given: bool = False
    client: Mapping[str, str] | None = field(default=None, repr=False)
    """Client properties if the table is compared with the log, else None."""
    on_recreated: str = "fail"
    merge_schema: bool = False
    retries: RetryPolicy = DEFAULT_RETRIES
    """For requests to brokers about the log."""
    checkpoint: str | None = None
    """Of the query that writes, if it has named one: its directory, or its URI in an object store."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of a new table: Delta's own `delta.*`."""
    upsert_keys: tuple[str, ...] = ()
    """Columns: a row replaces the table's row that is equal in them. Empty: rows are only added."""

    @property
    def loses_rows(self) -> bool:
        """Whether a write that does not replace the complete table may remove rows from it."""
        return self.client is not None or bool(self.upsert_keys)


def delta_options(options: Mapping[str, str]) -> DeltaOptions:
    """Parse and check. Raises `OperatorError` with the option's name."""
    given = {str(key).lower(): str(value) for key, value in options.items()}
    for name, advice in _REFUSED.items():
        if given.get(name, "false").lower() not in ("false", ""):
            raise OperatorError(f"Option '{name}' is not supported by format('fenceline_delta')", advice)
    path = given.get("path", "").strip()
    if not path:
        raise OperatorError("format('fenceline_delta') needs the table's path", "Use .save(path) or .start(path).")
    path = as_local(path)
    compression = given.get("compression", "snappy").lower()
    compression = "none" if compression == "uncompressed" else compression
    if compression not in CODECS:
        raise OperatorError(f"Option 'compression' must be one of {', '.join(CODECS)}, not '{compression}'")
    size = given.get("targetfilesizebytes", str(256 * 1024 * 1024))
    if not size.isdigit() or int(size) < 1:
        raise OperatorError(f"Option 'targetFileSizeBytes' must be a positive whole number, not '{size}'")
    names, keys = _columns(given, "partitionBy"), _columns(given, "upsertKeys")
    storage = GivenOptions(options).prefixed("storage.")
    on_recreated = given.get("onrecreated", "fail").lower()
    if on_recreated not in ("fail", "replace"):
        raise OperatorError(f"Option 'onRecreated' must be fail or replace, not '{on_recreated}'")
    client = _client(given)
    if keys and client is not None:
        raise OperatorError(
            "Option 'upsertKeys' cannot be combined with a comparison with the log: a row that a record replaced "
            "cannot be restored when the log is truncated",
            "Remove 'upsertKeys', or set 'repair' to false.",
        )
    GivenOptions(options).warn_of_unknown(_KNOWN, ("storage.", "kafka.", PREFIX), "format('fenceline_delta')")
    return DeltaOptions(
        path,
        names,
        compression,
        int(size),
        _transaction(given),
        storage or None,
        is_partitioning_given="partitionby" in given,
        client=client,
        on_recreated=on_recreated,
        merge_schema=_boolean(given, "mergeSchema", default=False),
        retries=retry_policy(GivenOptions(options)),
        checkpoint=as_local(given.get("checkpointlocation", "").strip()) or None,
        properties=table_properties(given, loses_rows=client is not None or bool(keys)),
        upsert_keys=keys,
    )


def _columns(given: Mapping[str, str], option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.get(option.lower(), "").split(",") if name.strip())
    if len({name.lower() for name in names}) != len(names):
        raise OperatorError(f"Option '{option}' names a column twice: {', '.join(names)}")
    if option.lower() in given and not names and option == "upsertKeys":
        raise OperatorError("Option 'upsertKeys' names no column", "Name the key columns, separated by commas.")
    return names


def _client(given: Mapping[str, str]) -> Mapping[str, str] | None:
    """The `kafka.*` properties without prefix if the table is to be compared with the log, else None."""
    client = {key.removeprefix("kafka."): value for key, value in given.items() if key.startswith("kafka.")}
    has_brokers = bool(client.get("bootstrap.servers", "").strip())
    if not _boolean(given, "repair", default=has_brokers):
        return None
    if not has_brokers:
        raise OperatorError(
            "To compare the table with the log, option 'kafka.bootstrap.servers' must name the brokers",
            "Set it, or remove 'repair' and the other options 'kafka.*'.",
        )
    return client


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OperatorError(f"Option '{name}' must be true or false, not '{text}'")
    return text == "true"


def _transaction(given: Mapping[str, str]) -> AppTransaction | None:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if app_id is None and version is None:
        return None
    if not app_id or version is None:
        raise OperatorError("Options 'txnAppId' and 'txnVersion' belong together", "Set both, or neither.")
    if not version.strip().isdigit():
        raise OperatorError(f"Option 'txnVersion' must be a whole number, not '{version}'")
    return AppTransaction(app_id, int(version))
