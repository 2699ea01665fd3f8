"""What is said of a node whose metadata can not go on: by blame, with what the operator is to do. Pure."""

from __future__ import annotations

import errno

from fenceline.errors import InternalError, OperatorError
from fenceline.log.errors import StorageError


def reason_to_end(error: BaseException) -> BaseException:
    """An OperatorError or InternalError for anything that ended the quorum's driver, the loader or the controller."""
    if isinstance(error, StorageError | OSError):
        told = error.message if isinstance(error, StorageError) else str(error)
        # Only the election state is written otherwise than by the log: as a whole, or not at all.
        is_full = not isinstance(error, StorageError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        return OperatorError(
            f"The metadata log could not be made durable: {told}",
            "Make room on the disk of the metadata log, then start the node again. Nothing that was acknowledged is"
            " lost; meanwhile the other controllers decide without it."
            if is_full
            else "What the disk holds is not certain any more. Check it, then restart the node.",
        )
    if isinstance(error, OperatorError | InternalError):
        return error
    reason = InternalError(f"the controller failed: {error!r}")
    reason.__cause__ = error
    return reason
