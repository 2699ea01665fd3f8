"""A node that is started by the command of a Containerfile or of a systemd unit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fenceline.testing.node import EmbeddedNode

ROOT = Path(__file__).parents[2]
INSTALLED_AT = "/opt/fenceline"
STATE = "/var/lib/fenceline"


class CommandNode(EmbeddedNode):
    """Runs exactly this command with these variables. Its folder is only for the test kit."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        super().__init__(data_dir=folder, environment=environment)
        self._command = list(command)

    def command(self) -> list[str]:
        return self._command


def placed(text: str, state: Path, *, installed_at: str = sys.prefix) -> str:
    """The text with the paths of a real installation replaced by those of this test."""
    return text.replace(INSTALLED_AT, installed_at).replace(STATE, str(state))
