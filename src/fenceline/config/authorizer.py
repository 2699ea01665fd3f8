"""The configuration of the authorizer: Kafka's keys `authorizer.class.name`, `super.users` and
`allow.everyone.if.no.acl.found`, and where denials are logged.

Owns the list of super users and what is odd about it. Never decides who may do what.

Rules: security.md A40, A41.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from fenceline.errors import OperatorError

CLASS: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
WITHOUT_RULES: Final = "allow.everyone.if.no.acl.found"
AUDIT_FILE: Final = "fenceline.audit.log.file"
MAX_LAG: Final = "fenceline.authorizer.max.lag.ms"
STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
"""Kafka's own, whose rules are in the metadata log."""


class AuthorizerConfig(NamedTuple):
    """`super_users`: `Type:name` each. `audit_path` None: denials are among the node's other log lines."""

    super_users: tuple[str, ...]
    allows_without_rules: bool
    audit_path: Path | None
    max_lag_ms: int
    """How long rules are in force at a node that does not hear from the quorum; 0: for ever."""
    warnings: tuple[str, ...] = ()


def read_authorizer(lookup: Callable[[str], str | None]) -> AuthorizerConfig | None:
    """`lookup`: the text of a key. None without an authorizer. Raises OperatorError."""
    super_users, warnings = _super_users(lookup(SUPER_USERS) or "")
    if not lookup(CLASS):
        return None
    path = lookup(AUDIT_FILE)
    without_rules = (lookup(WITHOUT_RULES) or "").strip().lower() == "true"
    audit_path = Path(path).expanduser() if path else None
    return AuthorizerConfig(super_users, without_rules, audit_path, int(lookup(MAX_LAG) or 0), warnings)


def _super_users(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The list, and warnings about entries that match nobody."""
    users: list[str] = []
    warnings: list[str] = []
    for entry in filter(None, (each.strip() for each in text.split(";"))):
        kind, colon, name = entry.partition(":")
        if not colon or not kind or not name:
            raise OperatorError(
                f"{SUPER_USERS} has the entry {entry!r}, which is not of the form User:name",
                "Separate entries by semicolons: User:admin;User:broker.",
            )
        if kind != "User":
            warnings.append(f"{SUPER_USERS}: {entry!r} matches nobody, since the type of every principal is User")
        elif ",User:" in name:
            warnings.append(f"{SUPER_USERS}: {entry!r} is one name with commas; entries are separated by semicolons")
        users.append(entry)
    return tuple(users), tuple(warnings)
