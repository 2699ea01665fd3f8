"""Packages that `pip install fenceline` does not bring: the extra that has each of them, and the error without it.

Owns the words of that error. Never imports such a package itself: a node must start without pyarrow, pandas and
PySpark, and `pip install fenceline` stays small without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from fenceline.errors import OperatorError


class MissingPackageError(OperatorError, ImportError):
    """A package is not installed that this use of Fenceline needs. `advice` has the command that installs it. Also an
    ImportError, for programs that try an import."""


def missing_packages(purpose: str, packages: Sequence[str], extra: str) -> MissingPackageError:
    """The error for packages that are not installed; `purpose` needs them, the optional dependencies `extra` have
    them."""
    verb = "which is not installed" if len(packages) == 1 else "which are not installed"
    return MissingPackageError(
        f"{purpose} needs {' and '.join(packages)}, {verb}", f"Install with: pip install 'fenceline[{extra}]'"
    )


def require_packages(purpose: str, packages: Sequence[str], extra: str) -> None:
    """Raises MissingPackageError if one of the packages cannot be found. Imports none of them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise missing_packages(purpose, missing, extra)
