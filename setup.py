"""Builds the optional Cython modules; without a compiler their pure-Python twins are used. With FENCELINE_PURE_PYTHON=1
none is built: a wheel made so is for every platform."""

import os

from setuptools import Extension, setup

MODULES = {
    "fenceline.records._kernel": "src/fenceline/records/_kernel.pyx",
    "fenceline.records._batch_scan": "src/fenceline/records/_batch_scan.pyx",
    "fenceline.log.core._tail": "src/fenceline/log/core/_tail.pyx",
    "fenceline.log.compaction._compaction": "src/fenceline/log/compaction/_compaction.pyx",
    "fenceline.node.api.fetch._plain_fetch": "src/fenceline/node/api/fetch/_plain_fetch.pyx",
    "fenceline.node.api.produce._plain_produce": "src/fenceline/node/api/produce/_plain_produce.pyx",
    "fenceline.tls._decryption": "src/fenceline/tls/_decryption.pyx",
    "fenceline.wire._plain_fetch": "src/fenceline/wire/_plain_fetch.pyx",
}

extensions = []
try:
    from Cython.Build import cythonize
except ImportError:
    cythonize = None
if cythonize is not None and os.environ.get("FENCELINE_PURE_PYTHON", "") in ("", "0"):
    extensions = cythonize(
        [Extension(name, [source], optional=True, extra_compile_args=["-O3"]) for name, source in MODULES.items()],
        include_path=["src"],
        compiler_directives={"language_level": "3"},
        nthreads=2,
    )

setup(ext_modules=extensions, options={"build_ext": {"parallel": 2}})
