# SPDX-License-Identifier: MIT
"""Prints the stable ABI up to Python 3.11 as the exports of Windows' python3.dll, to make an import library of.

With a name, such as python311, they are forwarded to that DLL, which makes a python3.dll for a Python that has none.
"""

import sys

from abi3info import DATAS, FUNCTIONS

to = sys.argv[1] if len(sys.argv) > 1 else None
print("LIBRARY python3.dll\nEXPORTS")
for table, kind in (FUNCTIONS, ""), (DATAS, " DATA"):
    for symbol, about in table.items():
        # Those that only some Pythons have cannot be forwarded.
        if (about.added.major, about.added.minor) <= (3, 11) and not (to and about.ifdef):
            print(symbol.name + (f" = {to}.{symbol.name}" if to else "") + kind)
