#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The table of ci/bench in docs/measured.md: each row has its own limit, a processor replaces its own block only."""

from page_table import BLOCK, block, with_block

MACHINE = {"cpu": "One", "instructions": "avx2", "cores": 2, "date": "2026-01-02", "torch": "2.15.0", "jax": "0.10.2"}


def of(cpu, version, check=1.234):
    def row(name, dtype, operation, loop, **ratios):
        return {"list": name, "dtype": dtype, "operation": operation, "limit": loop, "ratios": ratios}

    rows = [
        row("GPT-2", "f32", "check", "memory", limit=[check, 2, 3], torch=[20.04, 21, 22]),
        row("256 Ki", "f16", "check", "conversions", limit=[1.05, 2, 3]),
        row("256 Ki", "cb16", "alone", "memory", limit=[1.5, 2, 3]),
        row("161 of 64", "f32", "GradScaler", None, torch=[28.46, 29, 30]),
    ]
    return block(MACHINE | {"cpu": cpu, "gradscaler": version}, rows)


one, two, old = of("One", "0.6.0"), of("Two", "0.6.1"), of("Three", "0.5.9")
assert "\n| GPT-2, 148 tensors, f32 | memory | 1.23 | - | 20.0 | - | - |\n" in one
assert "\n| 256 Ki values, in the L2 cache, f16 | conversions | 1.05 | - | - | - | - |\n" in one
assert "\n| 256 Ki values, in the L2 cache, cb16 | memory | 1.50 | - | - | - | - |\n" in one
assert "\n| GPT-2, 148 tensors, bf16 | - | - | - | - | - | - |\n" in one
assert "takes 28.5 times as long as ours" in " ".join(one.split())
assert all(len(line) <= 120 for line in one.splitlines()[-8:])

page = f"before\n\n{one}\n{old}\n{two}\nafter\n"
anew = of("One", "0.6.2", 9.996)
assert with_block(page, anew, "0.6.2") == f"before\n\n{anew}\n{two}\nafter\n"
assert "| 10.0 |" in anew
assert with_block(page, of("Four", "0.6.0"), "0.6.0") == f"before\n\n{one}\n{two}\n{of('Four', '0.6.0')}\nafter\n"
# 0.60 is another version than 0.6; no block is left but the new one.
assert with_block(page, of("Four", "0.60.0"), "0.60.0") == f"before\n\n{of('Four', '0.60.0')}\nafter\n"
assert len(BLOCK.findall(with_block(page, of("Three", "0.6.0"), "0.6.0"))) == 3
try:
    with_block("no block\n", one, "0.6.0")
except SystemExit as error:
    assert "has no block" in str(error)
else:
    raise AssertionError("a page without a block was written")
