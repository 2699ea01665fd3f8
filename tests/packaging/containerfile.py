"""Reads a Containerfile: stages, and their instructions in order. Owns only the syntax that ours uses."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Stage:
    """`instructions`: name and text, with continued lines joined."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [text for each, text in self.instructions if each == name]

    def one(self, name: str) -> str:
        (text,) = self.all(name)
        return text

    def command(self, name: str) -> list[str]:
        """An instruction in its JSON form."""
        found: list[str] = json.loads(self.one(name))
        return found

    @property
    def environment(self) -> dict[str, str]:
        pairs = [shlex.split(text) for text in self.all("ENV")]
        return dict(pair.split("=", 1) for line in pairs for pair in line)

    @property
    def healthcheck(self) -> list[str]:
        found: list[str] = json.loads(self.one("HEALTHCHECK").partition("CMD ")[2])
        return found


def read_containerfile(path: Path) -> list[Stage]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, text = line.partition(" ")
        if name == "FROM":
            base, _, stage = text.partition(" AS ")
            stages.append(Stage(base, stage))
        elif name:
            stages[-1].instructions.append((name, text.strip()))
    return stages
