"""Cordoned directories, which accept no new replicas (`cordoned.log.dirs`, KIP-1066).

Owns applying the setting: new replicas are placed in other directories, moves into cordoned ones are rejected, and the
controller is informed by a heartbeat at once. Replicas in a cordoned directory stay, and grow.

A value that reached the metadata without this broker's checks and names none of its directories is ignored, with an
error in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fenceline.config.cordoned import CORDONED, cordoned_dirs
from fenceline.config.effective import effective_broker_config
from fenceline.errors import PeerError
from fenceline.metadata.features import MV_CORDONED_LOG_DIRS
from fenceline.metadata.image import ConfigResourceType
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from uuid import UUID

    from fenceline.config.node import NodeConfig
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage

log = Logger("directories")


class DirectoryCordons:
    """The cordons of one broker. Event loop only."""

    def __init__(
        self,
        config: NodeConfig,
        log_dirs: LogDirs,
        image: Callable[[], MetadataImage],
        report: Callable[[tuple[UUID, ...]], None],
    ) -> None:
        """`report` informs the controller of the cordoned directories."""
        self._config = config
        self._log_dirs = log_dirs
        self._image = image
        self._report = report
        self._taken: str | None = ""

    def on_image(self, delta: Delta) -> None:
        if any(kind is ConfigResourceType.BROKER for kind, _ in delta.changed_configs) or delta.changed_features:
            self.apply()

    def apply(self) -> None:
        """Apply the current setting; ignored below metadata.version 4.3-IV0, whose controllers do not support it."""
        image = self._image()
        text = effective_broker_config(image.configs, self._config, CORDONED)
        if image.metadata_version < MV_CORDONED_LOG_DIRS:
            text = ""
        if text == self._taken:
            return
        self._taken = text
        try:
            paths = {str(path) for path in cordoned_dirs(text, self._config.log_dirs)}
        except PeerError as error:
            log.error("invalid cordoned.log.dirs ignored", value=text, reason=error.message)
            return
        log_dirs = self._log_dirs
        log_dirs.cordoned = frozenset(each.path for each in log_dirs.opened if each.path in paths)
        ids = (each.directory_id for each in log_dirs.opened if each.path in paths)
        self._report(tuple(each for each in ids if each is not None))
        log.info("cordoned log directories", paths=sorted(log_dirs.cordoned))
