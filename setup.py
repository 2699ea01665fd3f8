"""Builds the optional Cython kernel; without a compiler the pure-Python twin is used."""

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:
    extensions = []
else:
    extensions = cythonize(
        [
            Extension(
                "fenceline.records._kernel",
                ["src/fenceline/records/_kernel.pyx"],
                optional=True,
                extra_compile_args=["-O3"],
            )
        ],
        compiler_directives={"language_level": "3"},
    )

setup(ext_modules=extensions)
