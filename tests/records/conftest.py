"""Both kernels for every test that requests `twin`."""

from __future__ import annotations

from types import ModuleType

import pytest

from fenceline.records import _columns_py, _kernel_py, kernel
from tests.conftest import unavailable

try:
    from fenceline.records import _kernel as native
except ImportError:
    native = None
if native is not None and native.ABI != _kernel_py.ABI:
    native = None

RECORD_FUNCTIONS = ("append_record", "decode", "decode_rows", "encode", "murmur2", "walk")
COLUMN_FUNCTIONS = ("ColumnBuilder", "encode_columns", "hash_column")


@pytest.fixture(params=["native", "pure"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make `kernel` one of the twins for the test."""
    if request.param == "native" and native is None:
        unavailable("the Cython kernel is not built")
    sources: tuple[ModuleType, ModuleType] = (
        (native, native) if request.param == "native" else (_kernel_py, _columns_py)
    )
    for source, names in zip(sources, (RECORD_FUNCTIONS, COLUMN_FUNCTIONS), strict=True):
        for name in names:
            monkeypatch.setattr(kernel, name, getattr(source, name))
    return str(request.param)


@pytest.fixture(scope="session")
def natives() -> ModuleType:
    if native is None:
        unavailable("the Cython kernel is not built")
    return native
