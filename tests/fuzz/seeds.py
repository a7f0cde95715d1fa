#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes long inputs to start with into a folder: from none at all, libFuzzer would take an hour to make some."""

import random
import sys
from pathlib import Path

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for number in range(64):
    source = random.Random(number)
    (folder / f"random-{number}").write_bytes(source.randbytes(source.randrange(1024)))
