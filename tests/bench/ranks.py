# SPDX-License-Identifier: MIT
"""The cost of an agreement between ranks: merging is measured here, gathering is from a model.

    cmake --build build/release --target limits && build/venv/bin/python tests/bench/ranks.py [--guide]

Prints a table for 8 to 65,536 ranks; --guide writes it to docs/ranks.md. The model: a gather among n ranks takes
ceil(log2 n) messages one after another, each of a latency, and moves 256 bytes of each other rank through a link.
"""

import ctypes
import math
import statistics
from pathlib import Path

from page_table import run

import gradscaler

ROOT = Path(__file__).parents[2]
SIZE, GROUP = 256, 64
NETWORKS = {"5 µs, 25 GB/s": (5e-6, 25e9), "30 µs, 1.25 GB/s": (30e-6, 1.25e9)}  # InfiniBand, 10 Gbit Ethernet
RANKS = [8, 64, 512, 4096, 65536]


def merge_times():
    """Seconds to merge as many reports, the median of five."""
    ctypes.CDLL(ROOT / "build/release/libgradscaler.so", mode=ctypes.RTLD_GLOBAL)
    merge = ctypes.CDLL(ROOT / "build/release/tests/bench/liblimits.so").merge_seconds
    merge.restype = ctypes.c_double
    merge.argtypes = [ctypes.c_char_p, ctypes.c_uint64] * 2
    scaler, out, times = gradscaler.Scaler(), ctypes.create_string_buffer(SIZE), {}
    fields = {"kind": gradscaler.ReportKind.TENSORS, "measured": gradscaler.Want.NORM}
    reports = [gradscaler.Report(sum_squares=1.0 + r, elements=r, **fields) for r in range(RANKS[-1])]
    reports = [bytes(scaler.set_rank(report, r)) for r, report in enumerate(reports)]
    for n in sorted({*RANKS, *(group for ranks in RANKS for group in groups(ranks))}):
        rows, repeats = b"".join(reports[:n]), max(1, 2_000_000 // n)
        found = [merge(rows, n, out, repeats) for _ in range(5)]
        assert all(seconds > 0 for seconds in found)
        times[n] = statistics.median(found)
    return times


def groups(ranks):
    """How many reports each merge has, from the innermost: groups of 64, then groups of those."""
    sizes = []
    while ranks > GROUP:
        sizes.append(GROUP)
        ranks = -(-ranks // GROUP)
    return [*sizes, ranks]


def gather(ranks, latency, bandwidth):
    return math.ceil(math.log2(ranks)) * latency + (ranks - 1) * SIZE / bandwidth if ranks > 1 else 0.0


def lines():
    merge = merge_times()
    head = [f"flat, {name}" for name in NETWORKS] + [f"by 64, {name}" for name in NETWORKS]
    yield f"| ranks | bytes | merge | {' | '.join(head)} |"
    yield "|---" * (3 + len(head)) + "|"
    for ranks in RANKS:
        flat = [gather(ranks, *network) + merge[ranks] for network in NETWORKS.values()]
        nested = [sum(gather(n, *network) + merge[n] for n in groups(ranks)) for network in NETWORKS.values()]
        size = f"{ranks * SIZE / 1024:,.1f} KiB" if ranks < 4096 else f"{ranks * SIZE / 2**20:,.2f} MiB"
        cells = [f"{seconds * 1e6:,.0f} µs" for seconds in [*flat, *nested]]
        yield f"| {ranks:,} | {size} | {merge[ranks] * 1e6:,.1f} µs | {' | '.join(cells)} |"


if __name__ == "__main__":
    run(__doc__, "tests/bench/ranks.py --guide", "docs/ranks.md", lambda: "\n".join([*lines(), ""]))
