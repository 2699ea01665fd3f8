"""docs/rights.md, as the table of permissions has it; `python -m tests.node.api.permissions.rights_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fenceline.node.api.permissions.checks import Row
from fenceline.node.api.permissions.table import CONTROLLER_PERMISSIONS, PERMISSIONS
from fenceline.wire.apis import ApiKey

PAGE: Final = Path(__file__).parents[4] / "docs" / "rights.md"
_HEAD: Final = """# Rights

What each API asks about, with an authorizer ([security.md](security.md#acls)). With all rights of its row on what a
request names, it is not changed; without one of them, it is refused, or what it is missing for is. Where a row has
several, some of them suffice for some requests: a consumer's Fetch needs READ on its topics, a broker's CLUSTER_ACTION.

This page is generated from `src/fenceline/node/api/permissions/table.py`.

| API | Rights |
|---|---|
"""
_CONTROLLERS: Final = """
## On controllers

The rows that differ on the listeners of controllers:

| API | Rights |
|---|---|
"""


def _title(key: ApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))


def _row(key: ApiKey, row: Row) -> str:
    rights = ", ".join(f"{operation.name} on {resource.name}" for operation, resource in row.needs)
    return f"| {_title(key)} | {rights or 'none'} |\n"


def render() -> str:
    rows = "".join(_row(key, row) for key, row in PERMISSIONS.items())
    of_controllers = "".join(_row(key, row) for key, row in CONTROLLER_PERMISSIONS.items())
    return f"{_HEAD}{rows}{_CONTROLLERS}{of_controllers}"


if __name__ == "__main__":
    PAGE.write_text(render())
