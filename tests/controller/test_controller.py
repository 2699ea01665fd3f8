"""Invariants of the controller: its records continue the log, in its epoch or a later one (controller.md C1, C2)."""

from __future__ import annotations

import pytest

from fenceline.errors import InternalError
from fenceline.metadata.records import NoOpRecord
from tests.controller.helpers import Cluster


@pytest.mark.parametrize(("gap", "epoch"), [(1, 1), (-1, 1), (0, 0)])
def test_records_that_do_not_continue_the_log_stop_the_node(gap: int, epoch: int) -> None:
    controller = Cluster().controller
    image = controller.image
    with pytest.raises(InternalError, match="C1"):
        controller.replay([NoOpRecord()], controller.next_offset + gap, epoch)
    assert controller.image is image


def test_an_image_past_the_log_is_no_state() -> None:
    controller = Cluster().controller
    controller.reset(controller.image, controller.image.offset + 1)
    with pytest.raises(InternalError, match="C2"):
        controller.reset(controller.image, controller.image.offset)
