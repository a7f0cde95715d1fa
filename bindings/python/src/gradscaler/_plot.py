# SPDX-License-Identifier: MIT
"""Draws a history by matplotlib, or in block characters for a terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ._arguments import _power
from ._lines import read
from ._report import BINS, Report

BLOCKS = " ▁▂▃▄▅▆▇█"
# Colour-blind people can tell these colours apart, on white and on black.
SCALE, OVERFLOW, GROWTH, SKIP, NORM, LIMIT = "#4477aa", "#ee6677", "#228833", "#aa3377", "#66a0c8", "#ccaa33"


def plot(path: str | os.PathLike, ax: Any = None, report: Report | None = None) -> Any:
    """Draws a history: the scale with its overflows and growths, and the norm with the guard's threshold.

    >>> figure = gradscaler.plot("run.jsonl")        # doctest: +SKIP
    >>> figure.savefig("run.png")                  # doctest: +SKIP

    ax: None for a new Figure, which is returned; or one matplotlib Axes for the scale alone, or two.
    report: a Report made with histogram=True; a new Figure also shows its histogram.
    Without matplotlib it returns a str: the sketch of `gradscaler plot`.
    """
    columns = read(path)
    if ax is None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return sketch(columns)
        has_norm = not all(map(math.isnan, columns["norm"]))
        shares = _shares(report)
        rows = 1 + has_norm + bool(shares)
        figure = Figure(figsize=(10, 1 + 2.5 * rows), layout="constrained")
        axes = figure.subplots(rows, squeeze=False)[:, 0]
        if has_norm:
            axes[0].sharex(axes[1])
            axes[0].tick_params(labelbottom=False)
        _draw(columns, list(axes[: 1 + has_norm]))
        if shares:
            axes[-1].bar(BINS, shares, align="edge", width=1, color=SCALE)
            axes[-1].set(xlabel="magnitude of a gradient element, from", ylabel="share of elements (%)")
            axes[-1].spines[["top", "right"]].set_visible(False)
        figure.suptitle(headline(columns), fontsize=12)
        return figure
    _draw(columns, list(ax) if isinstance(ax, Sequence) or hasattr(ax, "flat") else [ax])
    return ax


def _shares(report: Report | None) -> list[float]:
    counts = [] if report is None else report.histogram
    return [100 * count / max(1, sum(counts)) for count in counts]


def headline(columns: Mapping[str, Sequence[float]]) -> str:
    """Returns one line with the last step and scale and the counts of events."""
    if not columns["step"]:
        return "no steps yet"
    overflows, growths, skips, losses = (len(find(columns)) for find in (_overflows, _growths, _skips, _bad_losses))
    parts = [f"step {columns['step'][-1]:.0f}", f"scale {_power(columns['loss_scale'][-1])}"]
    parts += [f"{overflows} overflow{'s' * (overflows > 1)}"] if overflows else []
    parts += [f"{losses} bad loss{'es' * (losses > 1)}"] if losses else []
    parts += [f"{growths} growth{'s' * (growths > 1)}"] if growths else []
    parts += [f"{skips} skipped by the guard"] if skips else []
    return ", ".join(parts)


def _overflows(columns: Mapping[str, Sequence[float]]) -> list[int]:
    return [i for i, overflow in enumerate(columns["overflow"]) if overflow == 1]


def _skips(columns: Mapping[str, Sequence[float]]) -> list[int]:
    """Returns the steps that the guard skipped."""
    cells = zip(columns["skip"], columns["overflow"], columns["bad_loss"], strict=True)
    return [i for i, (skip, overflow, bad_loss) in enumerate(cells) if skip == 1 and overflow != 1 and bad_loss != 1]


def _bad_losses(columns: Mapping[str, Sequence[float]]) -> list[int]:
    return [i for i, bad in enumerate(columns["bad_loss"]) if bad == 1]


def _growths(columns: Mapping[str, Sequence[float]]) -> list[int]:
    totals = columns["total_growths"]
    return [i for i in range(1, len(totals)) if totals[i] > totals[i - 1]]


def _draw(columns: Mapping[str, Sequence[float]], axes: Sequence[Any]) -> None:
    steps, scales, norms = columns["step"], columns["loss_scale"], columns["norm"]

    def mark(ax: Any, values: Sequence[float], indices: Sequence[int], label: str, **style: Any) -> None:
        if indices:
            at = [steps[i] for i in indices], [values[i] for i in indices]
            ax.plot(*at, linestyle="none", label=f"{label} ({len(indices)})", **style)

    ax = axes[0]
    ax.step(steps, scales, where="post", color=SCALE, linewidth=1.6)
    mark(ax, [*scales[:1], *scales], _overflows(columns), "overflow", marker="v", color=OVERFLOW, markersize=7)
    mark(ax, scales, _bad_losses(columns), "bad loss", marker="x", color=SKIP, markersize=7)
    mark(ax, scales, _growths(columns), "growth", marker="^", color=GROWTH, markersize=7)
    if any(scale > 0 for scale in scales):
        ax.set_yscale("log", base=2)
    ax.set_ylabel("loss scale")
    if len(axes) > 1:
        ax = axes[1]
        ax.plot(steps, norms, color=NORM, linewidth=1, label="norm")
        if not all(map(math.isnan, columns["guard_threshold"])):
            ax.plot(steps, columns["guard_threshold"], color=LIMIT, linewidth=1.6, label="guard threshold")
        mark(ax, norms, _skips(columns), "skipped by the guard", marker="x", color=SKIP, markersize=7)
        if any(norm > 0 for norm in norms):
            ax.set_yscale("log")
        ax.set_ylabel("norm of the gradients")
    for one in axes[:2]:
        one.spines[["top", "right"]].set_visible(False)
        if one.get_legend_handles_labels()[0]:
            one.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.98), ncols=4, fontsize=9)
    axes[min(len(axes), 2) - 1].set_xlabel("step")


def _log2(scale: float) -> float:
    """Returns the logarithm, also of 0 and infinity, which some rules reach: the limits of a double's exponent."""
    return math.log2(scale) if 0 < scale < math.inf else 1024.0 if scale > 0 else -1074.0


def sketch(columns: Mapping[str, Sequence[float]], width: int = 72, height: int = 8) -> str:
    """Draws the scale in block characters, and below it v for overflows and x for other skipped steps."""
    n = len(columns["step"])
    if n == 0:
        return headline(columns)
    width = min(width, n)
    bins = [range(i * n // width, (i + 1) * n // width) for i in range(width)]
    logs = [max(_log2(columns["loss_scale"][i]) for i in one) for one in bins]
    low, high = math.floor(min(logs)) - 1, math.ceil(max(logs))
    lines = []
    for row in range(height, 0, -1):
        eighths = (round(8 * (height * (x - low) / (high - low) - row + 1)) for x in logs)
        label = f"2^{high}" if row == height else f"2^{low}" if row == 1 else ""
        lines.append(f"{label:>6} " + "".join(BLOCKS[min(8, max(0, eighth))] for eighth in eighths))
    overflow, skip = columns["overflow"], columns["skip"]
    marks = ("v" if any(overflow[i] for i in one) else "x" if any(skip[i] for i in one) else " " for one in bins)
    first, last = f"{columns['step'][0]:.0f}", f"{columns['step'][-1]:.0f}"
    lines += [" " * 7 + "".join(marks), f"{'':7}{first}{last:>{max(1, width - len(first))}}", headline(columns)]
    return "\n".join(line.rstrip() for line in lines)
