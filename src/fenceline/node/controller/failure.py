"""The error that stops a node whose metadata has failed: whose fault it is, and the remedy. Pure."""

from __future__ import annotations

from fenceline.errors import InternalError, OperatorError
from fenceline.log.core.errors import StorageError


def fatal_error(error: BaseException) -> BaseException:
    """An OperatorError or InternalError for anything that ended the quorum's driver, the loader or the controller."""
    if isinstance(error, StorageError | OSError):
        reason = error.message if isinstance(error, StorageError) else str(error)
        return OperatorError(
            f"Could not flush the metadata log: {reason}",
            "The content of the disk is uncertain. Check the disk, then restart the node.",
        )
    if isinstance(error, OperatorError | InternalError):
        return error
    failure = InternalError(f"the controller failed: {error!r}")
    failure.__cause__ = error
    return failure
