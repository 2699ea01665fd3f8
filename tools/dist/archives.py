"""What must be in an archive, and what the modules in a wheel may need.

A wheel for a foreign platform cannot be imported here. So the ELF headers of its modules are read: the machine, the
libraries, and that every symbol they lack is Python's or one of the C library's that the target has. (auditwheel has
checked the versions of glibc's symbols before.)
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tools.dist.commands import StepFailed
from tools.dist.targets import Target

_MACHINES: Final = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_OF_PYTHON: Final = re.compile(r"_?Py[A-Z_].*")
_OF_C: Final = frozenset(
    "bcmp calloc free malloc memchr memcmp memcpy memmove memset realloc strchr strcmp strlen strncmp strrchr snprintf"
    " vsnprintf abort __stack_chk_fail".split()
)
_WEAK: Final = frozenset("__cxa_finalize __gmon_start__ _ITM_registerTMCloneTable _ITM_deregisterTMCloneTable".split())


def check_source_archive(archive: Path, sources: set[str]) -> None:
    """Raises StepFailed unless the archive has all of these files, and nothing that was made from them."""
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    missing = sources - names
    if missing:
        raise StepFailed(f"{archive.name} lacks {', '.join(sorted(missing)[:3])}: see MANIFEST.in")
    made = [name for name in names if name.endswith((".c", ".so", ".pyc"))]
    if made:
        raise StepFailed(f"{archive.name} has {', '.join(sorted(made)[:3])}")


def check_wheel(wheel: Path, target: Target | None) -> None:
    """Raises StepFailed unless the wheel has the tag and the modules of its target; None: no compiled module at all."""
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        wanted = {name.removesuffix(".pyx") for name in names if name.endswith(".pyx")}
        modules = [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]
        if not any(name.endswith("licenses/LICENSE") for name in names):
            raise StepFailed(f"{wheel.name} has no LICENSE")
        if target is None:
            if modules or not wheel.name.endswith("-py3-none-any.whl"):
                raise StepFailed(f"{wheel.name} is for one platform")
            return
        if target.tag not in wheel.name:
            raise StepFailed(f"{wheel.name} does not run on {target.tag}")
        missing = wanted - {name.partition(".")[0] for name in modules}
        if missing or not wanted:
            raise StepFailed(f"{wheel.name} lacks the compiled {', '.join(sorted(missing)) or 'modules'}")
        for name in modules:
            _check_module(name, ELFFile(io.BytesIO(content.read(name))), target)


def _check_module(name: str, module: ELFFile, target: Target) -> None:
    if module["e_machine"] != _MACHINES[target.machine]:
        raise StepFailed(f"{name} is for {module['e_machine']}")
    libraries = {
        str(vars(tag)["needed"])
        for section in module.iter_sections()
        if isinstance(section, DynamicSection)
        for tag in section.iter_tags()
        if tag.entry.d_tag == "DT_NEEDED"
    }
    allowed = {"libc.so.6"} if target.libc == "glibc" else {target.musl_name}
    if libraries - allowed:
        raise StepFailed(f"{name} needs {', '.join(sorted(libraries - allowed))}")
    symbols = module.get_section_by_name(".dynsym")
    assert isinstance(symbols, SymbolTableSection)
    undefined = {each.name for each in symbols.iter_symbols() if each["st_shndx"] == "SHN_UNDEF" and each.name}
    unknown = {each for each in undefined - _OF_C - _WEAK if not _OF_PYTHON.fullmatch(each)}
    if unknown:
        raise StepFailed(f"{name} needs the symbols {', '.join(sorted(unknown))}")
