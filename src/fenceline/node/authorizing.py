"""The authorizer of a node: its configuration, the metadata that it follows, and the audit log of denials.

Owns when the rules of the metadata log are in force here: from the first image at the committed end of the log on, with
each change, and as long as this node hears from the quorum. A node that was cut off cannot know which rights were
removed, so after `fenceline.authorizer.max.lag.ms` only super users have rights there. Never decides (`security.acls`),
and knows no API (`node.api.permissions`).

Rules: security.md A40, A49 to A51.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fenceline.config.authorizer import AuthorizerConfig
from fenceline.node.logs import Logger, json_line
from fenceline.node.metric_families import counters, gauges
from fenceline.node.repeated_lines import RepeatedLines
from fenceline.security.rights import Authorization, Denial, RequestRights
from fenceline.wire.acl_codes import AclOperation

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.controller.driver import ControllerDriver
    from fenceline.security.acls import AskingPeer

log: Final = Logger("audit")
_OF_NODES: Final = "If this is a node of the cluster, add its user to super.users on every node."
_WAITS_LONG_MS: Final = 1_000
_LOOK_S: Final = 0.5
"""Between two looks at the quorum, while requests come."""


class AuditLog:
    """The denials, each once in ten seconds with the number of its repetitions: among the node's other lines with the
    room `audit`, or in a file of their own, which is opened for every line, so that it can be moved away.

    What only nodes ask for is a warning too: a node that has no rights hangs outside of the cluster."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines = RepeatedLines(log.info if path is None else self._append)
        self._nodes = RepeatedLines(log.warning)

    def denied(self, denial: Denial) -> None:
        self._lines.write("denied", **denial._asdict())
        if denial.operation == AclOperation.CLUSTER_ACTION.name:
            self._nodes.write(
                "a request of nodes is denied", principal=denial.principal, host=denial.host, advice=_OF_NODES
            )

    def _append(self, event: str, **fields: Any) -> None:
        assert self._path is not None, "otherwise the node's log has the lines"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json_line("info", "audit", event, fields))
        except OSError as error:
            log.error("the audit log cannot be written", path=str(self._path), reason=str(error), **fields)

    def close(self) -> None:
        self._lines.flush()
        self._nodes.flush()


class NodeAuthorization:
    """Of a node with an authorizer. Belongs to the event loop."""

    def __init__(self, config: AuthorizerConfig, controller: ControllerDriver, clock: Clock) -> None:
        for warning in config.warnings:
            log.warning(warning)
        self._clock = clock
        self._controller = controller
        self._max_lag_ms = config.max_lag_ms or math.inf
        self._current_ms: float = -math.inf
        """When the image was last known to be current, in monotonic time."""
        self._checked_until_ms: float = -math.inf
        """Until then the rules are in force without another look at the quorum."""
        self._waiting = RepeatedLines(log.warning)
        self.audit = AuditLog(config.audit_path)
        self.rules = Authorization(
            config.super_users, allows_without_rules=config.allows_without_rules, denied=self.audit.denied
        )
        controller.subscribe(self._on_image)

    def rights(self, peer: AskingPeer, request: int) -> RequestRights:
        """Of the sender of a request with this API key."""
        if self._clock.monotonic_ms() >= self._checked_until_ms:
            self._check()
        return self.rules.rights(peer, request)

    async def in_force(self, waiting: RequestRights) -> None:
        """Waits until the rules are in force. Tells whose request waits: a quorum whose nodes are no super users of
        each other never has rules in force."""
        tell_ms = self._clock.monotonic_ms() + _WAITS_LONG_MS
        while not self._check():
            if self._clock.monotonic_ms() >= tell_ms:
                self._waiting.write("requests wait for the ACLs", principal=str(waiting.principal), advice=_OF_NODES)
            await asyncio.wait((self._controller.next_change(),), timeout=_LOOK_S)

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        self.rules.follow(image, delta.changed_acls)

    def _check(self) -> bool:
        """Put the rules in force, or suspend them; whether they are."""
        controller, now_ms = self._controller, self._clock.monotonic_ms()
        if not controller.is_behind:
            caught_up_ms = now_ms if controller.is_alone else controller.quorum.caught_up_ms(now_ms)
            self._current_ms = max(self._current_ms, -math.inf if caught_up_ms is None else caught_up_ms)
        was_in_force, until_ms = self.rules.is_in_force, self._current_ms + self._max_lag_ms
        self.rules.is_in_force = now_ms < until_ms
        self._checked_until_ms = min(now_ms + _LOOK_S * 1000, until_ms)
        if was_in_force and not self.rules.is_in_force:
            log.warning(
                "rights suspended",
                reason=f"no news from the quorum for {self._max_lag_ms:.0f} ms: rights may have been removed since",
                advice="Requests of users wait, or fail, until this node hears from the active controller.",
            )
        return self.rules.is_in_force

    def collect(self) -> Iterator[Any]:
        """A Prometheus collector."""
        rules = self.rules
        yield from counters(
            ("fenceline_authorization_allowed", "Questions about rights answered with yes", rules.allowed),
            ("fenceline_authorization_denied", "Requests or parts of them that were refused", rules.denied),
        )
        yield from gauges(
            ("fenceline_acls", "ACLs that this node knows", rules.rule_count),
            ("fenceline_acls_in_force", "0 while this node does not hear from the quorum", int(rules.is_in_force)),
        )

    def close(self) -> None:
        self.audit.close()
