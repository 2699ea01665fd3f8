"""Tables show names as they are, whatever is in them."""

from __future__ import annotations

import pytest

from fenceline.cli.output import show


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("[/red]", "[/red]"),
        ("\x1b[2Jx", "\\x1b[2Jx"),
        ("a\nb\tc\0", "a\\nb\\tc\\x00"),
        ("\u202eniar", "\\u202eniar"),
        ("\u96e8 \u00fc", "\u96e8 \u00fc"),
        ("a\\nb", "a\\nb"),
    ],
)
def test_names_are_not_interpreted(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": name, "members": [name]}], as_json=False, title=name)
    printed = capsys.readouterr().out
    assert printed.count(shown) == 3, printed
    assert name in shown or name not in printed
