"""A node, Fenceline's or Apache Kafka's, that a group of commands runs against."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.testing.mixed_cluster import MixedCluster


class CommandTarget:
    """`group`: the first word of the commands."""

    def __init__(self, group: str, bootstrap: str, controller: str = "") -> None:
        self._group = group
        self.bootstrap = bootstrap
        self.controller = controller

    def run(self, *arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [self._group, *arguments], env={"FENCELINE_BOOTSTRAP": self.bootstrap})
        assert result.exit_code == code, result.output
        return result.output

    def run_json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@contextmanager
def one_node(root: Path, kind: str, settings: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """The addresses of its broker and of its controller. `kind` as for `MixedCluster`."""
    with MixedCluster(root, [kind], settings=settings) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        yield cluster.nodes[0].bootstrap, cluster.nodes[0].controller
