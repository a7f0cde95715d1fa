# SPDX-License-Identifier: MIT
"""Checks that a module for macOS is what its wheel says: macho.py MODULE TAG, such as macosx_11_0_arm64.

Of the machine, from the version of the system on, signed where the system asks for it, with libraries of the system
alone, exporting what Python looks for; and what it takes from Python is looked up when it is loaded.
"""

import re
import subprocess
import sys

from macholib.mach_o import CPU_TYPE_NAMES, MH_BUNDLE, MH_DYLIB, MH_NOUNDEFS
from macholib.MachO import MachO
from macholib.SymbolTable import SymbolTable

path, tag = sys.argv[1:]
major, minor, machine = re.fullmatch(r"macosx_(\d+)_(\d+)_(\w+)", tag).groups()
file = MachO(path)
(header,) = file.headers
commands = {}
for command, fields, data in header.commands:
    commands.setdefault(command.get_cmd_name(), []).append((fields, data))
assert CPU_TYPE_NAMES[header.header.cputype].lower() == machine, CPU_TYPE_NAMES[header.header.cputype]
assert header.header.filetype in (MH_BUNDLE, MH_DYLIB), header.header.filetype
((version, _),) = commands["LC_BUILD_VERSION"]
assert version.minos == int(major) << 16 | int(minor) << 8, hex(version.minos)
assert "LC_CODE_SIGNATURE" in commands or machine == "x86_64", commands.keys()
libraries = {data.rstrip(b"\0").decode() for _, data in commands.get("LC_LOAD_DYLIB", [])}
assert libraries == {"/usr/lib/libSystem.B.dylib"}, libraries
symbols = SymbolTable(file, header=header)
exported = {name.decode() for _, name in symbols.extdefsyms}
assert exported - {"__mh_dylib_header", "___dso_handle"} == {"_PyInit__gradscaler"}, exported
binds = subprocess.run(
    ["llvm-objdump", "--macho", "--bind", "--lazy-bind", path], text=True, capture_output=True, check=True
)
late = [line for line in binds.stdout.splitlines() if " _Py" in line]
assert late and all("flat-namespace" in line for line in late), late
assert not header.header.flags & MH_NOUNDEFS
print(
    "stable ABI; signed; looked into, NOT RUN"
    if "LC_CODE_SIGNATURE" in commands
    else "stable ABI; looked into, NOT RUN"
)
