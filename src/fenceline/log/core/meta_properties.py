"""`meta.properties` of a log directory: its cluster and node (`formats.md F1`).

Owns reading it. Never writes it: formatting does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from fenceline.errors import OperatorError
from fenceline.ids import decode_uuid
from fenceline.log.core.disk import Disk, read_file

META_FILE: Final = "meta.properties"


def read_meta(disk: Disk, path: str) -> Mapping[str, str]:
    """`meta.properties` (F1). Raises OperatorError if the directory is not formatted or the file is damaged."""
    content = read_file(disk, f"{path}/{META_FILE}")
    if content is None:
        raise OperatorError(
            f"{path} is not formatted: it has no {META_FILE}",
            "Run `fenceline format` with the cluster id, or start without a configuration for a single node.",
        )
    pairs = (line.split("=", 1) for line in content.decode(errors="replace").splitlines() if "=" in line)
    meta = {key.strip(): value.strip() for key, value in pairs if not key.lstrip().startswith("#")}
    version = meta.get("version", "")
    if version.isdigit() and version != "1":
        raise OperatorError(
            f"{path}/{META_FILE} has version {version}; this release supports version 1",
            "If a newer release wrote it, start that release. Version 0 belongs to Kafka with ZooKeeper and is not "
            "supported.",
        )
    if version != "1" or not meta.get("node.id", "").isdigit() or not meta.get("cluster.id"):
        raise OperatorError(
            f"{path}/{META_FILE} is damaged: it needs version=1, cluster.id and node.id",
            "Restore the file from a backup; take the values from the other nodes' logs and configuration.",
        )
    return meta


def directory_id_of(text: str, path: str) -> UUID:
    """`directory.id` of the directory at `path`. Raises OperatorError if it is invalid."""
    try:
        return decode_uuid(text)
    except ValueError:
        raise OperatorError(
            f"{path}/{META_FILE} is damaged: directory.id={text} is not a valid id",
            "Restore the file from a backup; the voters of the metadata log name the id of this directory.",
        ) from None
