# SPDX-License-Identifier: MIT
"""Writes the table of presets in docs/presets.md from what the installed library says of them."""

import math
from pathlib import Path

import gradscaler

PAGE = Path(__file__).parents[1] / "presets.md"
BEGIN, END = "<!-- written by ci/docs -->\n", "<!-- to here -->"
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


def number(value):
    """2^16 for 65536; other numbers with five digits."""
    mantissa, exponent = math.frexp(value)
    if value == LARGEST_FLOAT:
        return "largest float"
    if mantissa == 0.5 and not 1 <= value < 16:
        return f"2^{exponent - 1}"
    return f"{value:.5g}"


def row(name):
    policy = gradscaler.Policy(name)
    factors = policy.growth_factor or 1, policy.backoff_factor or 1 / (policy.growth_factor or 1)
    if policy.target_amax:
        moves, start = "predicted", "1"
    elif not policy.growth_interval:
        moves, start = "never", number(policy.init_scale or 1)
    else:
        moves = f"x {number(factors[0])} every {policy.growth_interval:,}, x {factors[1]:g}"
        start = number(policy.init_scale or 1)
    limits = number(policy.min_scale) if policy.min_scale else "none", number(policy.max_scale or math.inf)
    return [f"`{name}`", start, moves, limits[0], limits[1].replace("inf", "none"), gradscaler.presets()[name]]


def table():
    rows = [["preset", "start", "moves", "floor", "ceiling", "whose rules"], ["---"] * 6]
    rows += [row(name) for name in gradscaler.presets()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def page():
    """The page as it should be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
