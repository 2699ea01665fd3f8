"""The authorizer of a node: its configuration, the metadata that it follows, and the audit log of denials.

Owns when the rules of the metadata log are in force here: from the first image at the committed end of the log on, with
each change, and as long as this node hears from the quorum. A node that was cut off cannot know which rights were
removed, so after `fenceline.authorizer.max.lag.ms` only super users have rights there. Never decides (`security.acls`),
and knows no API (`node.api.permissions`).

Rules: security.md A40, A49 to A51.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fenceline.config.authorizer import AuthorizerConfig
from fenceline.node.logs import Logger, json_line
from fenceline.node.repeated_lines import RepeatedLines
from fenceline.security.rights import Authorization, Denial

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.node.controller.driver import ControllerDriver

log: Final = Logger("audit")
_LOOK_S: Final = 0.5
"""How often a node looks whether it still hears from the quorum."""


class AuditLog:
    """The denials, each once in ten seconds with the number of its repetitions: among the node's other lines with the
    room `audit`, or in a file of their own, which is opened for every line, so that it can be moved away."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines = RepeatedLines(log.info if path is None else self._append)

    def denied(self, denial: Denial) -> None:
        self._lines.write("denied", **denial._asdict())

    def _append(self, event: str, **fields: Any) -> None:
        assert self._path is not None, "otherwise the node's log has the lines"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json_line("info", "audit", event, fields))
        except OSError as error:
            log.error("the audit log cannot be written", path=str(self._path), reason=str(error), **fields)

    def close(self) -> None:
        self._lines.flush()


class NodeAuthorization:
    """Of a node with an authorizer. Belongs to the event loop."""

    def __init__(self, config: AuthorizerConfig, controller: ControllerDriver, clock: Clock) -> None:
        self._clock = clock
        self._max_lag_ms = config.max_lag_ms
        self._current_ms: int | None = None
        """When the image was last known to be current, in monotonic time."""
        self._changed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.audit = AuditLog(config.audit_path)
        self.rules = Authorization(
            config.super_users, allows_without_rules=config.allows_without_rules, denied=self.audit.denied
        )
        for warning in config.warnings:
            log.warning(warning)
        self._controller = controller
        controller.subscribe(self._on_image)

    def opened(self) -> None:
        """The metadata log has been read."""
        self.rules.follow(self._controller.image)
        self._look()

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        self.rules.follow(image, delta.changed_acls)
        if not self.rules.is_in_force:
            self._check()

    def _look(self) -> None:
        self._check()
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _check(self) -> None:
        """Put the rules in force, or suspend them."""
        is_current = self._is_current()
        if is_current is self.rules.is_in_force:
            return
        self.rules.is_in_force = is_current
        if not is_current:
            log.warning(
                "rights suspended",
                reason=f"no news from the quorum for {self._max_lag_ms} ms: rights may have been removed since",
                advice="Requests of users wait or fail until this node reaches the active controller.",
            )
        elif self._changed is not None:
            self._changed.set_result(None)
            self._changed = None

    def _is_current(self) -> bool:
        controller, now_ms = self._controller, self._clock.monotonic_ms()
        if controller.is_alone or controller.is_active:
            self._current_ms = now_ms
        elif not controller.is_behind:
            self._current_ms = controller.quorum.caught_up_ms
        known_ms = self._current_ms
        return known_ms is not None and (self._max_lag_ms == 0 or now_ms - known_ms < self._max_lag_ms)

    async def in_force(self) -> None:
        """Waits until the rules are in force."""
        while not self.rules.is_in_force:
            if self._changed is None:
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._changed,))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.audit.close()
