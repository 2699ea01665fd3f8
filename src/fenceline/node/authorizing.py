"""The authorizer of a node: its configuration, the metadata that it follows, and the audit log of denials.

Owns when the rules of the metadata log are in force here: with the first image at the committed end of the log, then
with each change. Never decides (`security.acls`), and knows no API (`node.api.permissions`).

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
    from fenceline.node.controller.driver import ControllerDriver

log: Final = Logger("audit")


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

    def __init__(self, config: AuthorizerConfig, controller: ControllerDriver) -> None:
        self.audit = AuditLog(config.audit_path)
        self.rules = Authorization(
            config.super_users, allows_without_rules=config.allows_without_rules, denied=self.audit.denied
        )
        for warning in config.warnings:
            log.warning(warning)
        self._controller = controller
        controller.subscribe(self._on_image)

    def opened(self) -> None:
        """The metadata log has been read. A node that is alone in its quorum knows all that is committed."""
        if self._controller.is_alone:
            self.rules.follow(self._controller.image)

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        if self.rules.is_loaded:
            self.rules.follow(image, delta.changed_acls)
        elif not self._controller.is_behind:
            self.rules.follow(image)

    async def loaded(self) -> None:
        """Waits until the rules are in force."""
        while not self.rules.is_loaded:
            await asyncio.wait((self._controller.next_change(),))

    def close(self) -> None:
        self.audit.close()
