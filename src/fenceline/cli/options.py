"""Options that the commands of a group share, written once.

Owns how typer learns of them. Knows no command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


def with_options_of(shared: Callable[..., Any]) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """For a command whose first parameter is what `shared` returns: it gets the options of `shared` before its own.
    Both are of one module."""
    options = inspect.signature(shared).parameters

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        _, *own = inspect.signature(command).parameters.values()

        def run(**given: Any) -> T:
            return command(
                shared(**{name: given.pop(name, option.default) for name, option in options.items()}), **given
            )

        described: Any = run
        described.__name__, described.__doc__ = command.__name__, command.__doc__
        # Arguments without a default come first.
        ordered = sorted([*options.values(), *own], key=lambda each: each.default is not each.empty)
        described.__signature__ = inspect.Signature(_evaluated(ordered, command.__module__))
        return run

    return decorate


def _evaluated(parameters: list[inspect.Parameter], module: str) -> list[inspect.Parameter]:
    """With the objects of their annotations, which typer does not look up for a given signature."""
    annotated = {"__annotations__": {each.name: each.annotation for each in parameters}, "__module__": module}
    hints = get_type_hints(type("Annotated", (), annotated), include_extras=True)
    return [each.replace(annotation=hints[each.name]) for each in parameters]
