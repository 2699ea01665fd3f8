"""What is said of a node whose metadata can not go on: by blame, with what the operator is to do. Pure."""

from __future__ import annotations

from fenceline.errors import InternalError, OperatorError
from fenceline.log.errors import StorageError


def reason_to_end(error: BaseException) -> BaseException:
    """An OperatorError or InternalError for anything that ended the quorum's driver, the loader or the controller."""
    if isinstance(error, StorageError | OSError):
        told = error.message if isinstance(error, StorageError) else str(error)
        return OperatorError(
            f"The metadata log could not be made durable: {told}",
            "What the disk holds is not certain any more. Check it, then restart the node.",
        )
    if isinstance(error, OperatorError | InternalError):
        return error
    reason = InternalError(f"the controller failed: {error!r}")
    reason.__cause__ = error
    return reason
