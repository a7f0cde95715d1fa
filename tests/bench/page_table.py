# SPDX-License-Identifier: MIT
"""The blocks that the programs of this folder write into pages; a processor's block from what bench.py measured."""

import argparse
import re
import textwrap
from pathlib import Path

ORDER = ("f32", "f16", "bf16", "f8_e4m3fn", "f8_e5m2", "cb16")
BLOCK = re.compile(r"<!-- written by ci/bench --page: ([^\n]*) -->\n(.*?)<!-- to here -->\n", re.DOTALL)


def number(value):
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def block(machine, rows):
    """Returns the block of this machine, as its JSON has it."""
    found = {(row["list"], row["dtype"], row["operation"]): row for row in rows}

    def ratio(name, dtype, operation, who):
        quartiles = found.get((name, dtype, operation), {"ratios": {}})["ratios"].get(who)
        return number(quartiles[0]) if quartiles else "-"

    lines = [
        "| | limit | check / limit | with norm / limit "
        "| torch, unscale | torch, unscale and clip | JAX, unscale and clip |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, about in (("GPT-2", "GPT-2, 148 tensors"), ("256 Ki", "256 Ki values, in the L2 cache")):
        for dtype in ORDER:
            alone = "alone" if dtype in ("f8_e5m2", "cb16") else "check"
            norm = "alone, + norm" if alone == "alone" else "check + norm"
            columns = [(alone, "limit"), (norm, "limit"), ("check", "torch")]
            columns += [("clip, not reached", "torch"), ("clip, not reached", "JAX")]
            limit = found.get((name, dtype, alone), {}).get("limit", "-")
            cells = " | ".join([limit, *(ratio(name, dtype, *column) for column in columns)])
            lines.append(f"| {about}, {dtype} | {cells} |")
    kind = f"{machine['cpu']}, {machine['instructions']}"
    step = ratio("161 of 64", "f32", "GradScaler", "torch")
    about = f"""gradscaler {machine["gradscaler"]} on {kind}, {machine["cores"]} cores, {machine["date"]}: in place, one
        thread; lower quartiles of alternating rounds. The limit is the slower of two loops over the same bytes, which
        check and sum nothing: one multiplies them ("memory"), one also does the conversions that their dtype
        needs ("conversions"). For torch {machine["torch"]} and JAX {machine["jax"]} it is their time over ours. A whole
        step of torch's class (unscale, clip, step, update; 161 gradients of 64 values) takes {step} times as long
        as ours."""
    text = "\n".join([*lines, "", textwrap.fill(" ".join(about.split()), 120)])
    return f"<!-- written by ci/bench --page: {kind} -->\n{text}\n<!-- to here -->\n"


def with_block(text, new, version):
    """
    Returns `text` with the block `new` instead of the one of the same processor, or below the others. Blocks of
    another minor version go: its kernels were others.
    """
    kind, of_this = BLOCK.match(new)[1], f"gradscaler {version.rsplit('.', 1)[0]}."
    old = list(BLOCK.finditer(text))
    if not old:
        raise SystemExit("docs/measured.md has no block that ci/bench wrote: put an empty one where the first shall be")
    blocks = {match[1]: match[0] for match in old if match[1] == kind or of_this in match[2]} | {kind: new}
    return text[: old[0].start()] + "\n".join(blocks.values()) + text[old[-1].end() :]


def run(doc, script, page, table):
    """The program `script`: prints a table, and with its option writes it into its block of the page."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(script.split()[1], action="store_true", dest="writes", help=f"write the table to {page}")
    writes, text = parser.parse_args().writes, table()
    print(text)
    if writes:
        page, begin, end = Path(__file__).parents[2] / page, f"<!-- written by {script} -->\n", "<!-- to here -->"
        before, rest = page.read_text().split(begin)
        page.write_text(before + begin + text + end + rest.split(end, 1)[1])
