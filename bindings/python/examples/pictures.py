# SPDX-License-Identifier: MIT
"""Draws the pictures of runs in the guides, and writes the diagnosis of each run beside it in docs/runs.md.

    python pictures.py      writes docs/run-*.svg and the marked blocks of docs/runs.md

The gradients are synthetic: there is no training, and every machine computes the same scales and decisions. For a run
of your own, read `record`.
"""

import contextlib
import io
import random
import re
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import gradscaler
from gradscaler import GuardSample, Policy, Scaler, Want
from gradscaler.__main__ import main as command
from gradscaler._plot import OVERFLOW, SCALE

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = DOCS / "runs.md"
STEPS = 600
GUARD = {"guard_ratio": 10, "guard_decay": 0.99, "guard_warmup": 100, "guard_max_in_a_row": 10}
SPIKES = 180, 330, 331, 332, 470
RUNS = {  # the policy, the largest gradient of the first step, and what the gradients of some steps are multiplied by
    "good": (Policy("recommended", growth_interval=50), 2.0**-5, {}),
    "spikes": (
        Policy("recommended", growth_interval=100, guard_sample=GuardSample.THRESHOLD, **GUARD),
        2.0**-8,
        dict.fromkeys(SPIKES, 50),
    ),
    "stalled": (Policy("recommended", growth_interval=50), 2.0**-5, dict.fromkeys(range(500, STEPS + 1), np.nan)),
}
DARK = """
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
[style*="fill: #ffffff"] { fill: #0d1117 !important }
[style*="fill: #000000"] { fill: #e6edf3 !important }
[style*="stroke: #000000"] { stroke: #e6edf3 !important }
[style*="stroke: #cccccc"] { stroke: #3d444d !important }
[style*="fill: #0072b2"] { fill: #56b4e9 !important }
[style*="stroke: #0072b2"] { stroke: #56b4e9 !important }
[style*="#aa3377"] { stroke: #e38fc0 !important }
}"""


def record(name, folder):
    """Runs the scaler and returns the file of its history."""
    policy, level, factors = RUNS[name]
    scaler, noise = Scaler(policy), random.Random(0)
    history = Path(folder) / f"{name}.jsonl"
    with scaler.history(history), np.errstate(over="ignore"):
        for step in range(1, STEPS + 1):
            level *= 1 - 1 / 256
            gradients = np.array([1.0, -0.75, 0.5, 0.25]) * level * (0.75 + noise.random() / 2)
            scaled = gradients * factors.get(step, 1) * scaler.loss_scale
            scaler.update(scaler.unscale([scaled.astype(np.float16)], want=Want.NORM))
    return history


def draw_bad_losses(path):
    """Draws the scales of two runs in which the same 5 % of the losses are NaN."""
    figure = Figure(figsize=(10, 3.5), layout="constrained")
    ax = figure.subplots()
    for preset, label, colour in (
        ("torch", "each NaN is an overflow (torch)", OVERFLOW),
        ("recommended", "a NaN loss keeps the scale (recommended)", SCALE),
    ):
        scaler, noise, scales = Scaler(preset, growth_interval=50), random.Random(0), []
        for _ in range(STEPS):
            loss = np.nan if noise.random() < 0.05 else 1.0
            gradients = np.array([1.0, -0.75, 0.5, 0.25]) * 2.0**-14 * loss * scaler.loss_scale
            scaler.update(scaler.unscale([gradients.astype(np.float16)], loss=loss))
            scales.append(scaler.loss_scale)
        ax.step(range(1, STEPS + 1), scales, where="post", color=colour, linewidth=1.6, label=label)
    ax.axhline(
        2.0**-10, color="gray", linewidth=0.8, linestyle="--", label="below: all gradients of this run are 0 in float16"
    )
    ax.set_yscale("log", base=2)
    ax.set(xlabel="step", ylabel="loss scale", title="5 % of the batches make a loss of NaN")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=11)
    save(figure, path)


def save(figure, path, description=None):
    """Writes an SVG that is dark if the reader's page is."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "gradscaler", "svg.fonttype": "none", "path.simplify_threshold": 0.5}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Description": description})
    path.write_text(re.sub(" +$", "", text.getvalue().replace("</style>", DARK + "</style>", 1), flags=re.M))


def draw(history, path):
    with mpl.rc_context({"font.size": 13}):
        save(gradscaler.plot(history), path)


def printed(*words):
    """Returns what the command `gradscaler` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as text:
        command([*map(str, words)])
    return text.getvalue()


def guide(histories):
    """Returns docs/runs.md as it should be."""
    text = GUIDE.read_text()
    for name, history in histories.items():
        for words in ("diagnose",), ("watch", "--once"):
            block = f"<!-- of ci/pictures: {' '.join(words)} {name}.jsonl -->\n```text\n"
            said = printed(*words, history)
            marked = f"(?<={re.escape(block)}).*?(?=^```$)"
            text = re.sub(marked, lambda _, said=said: said, text, count=1, flags=re.M | re.S)
    return text


def main():
    with tempfile.TemporaryDirectory() as folder:
        histories = {name: record(name, folder) for name in RUNS}
        for name, history in histories.items():
            draw(history, DOCS / f"run-{name}.svg")
        draw_bad_losses(DOCS / "run-bad-losses.svg")
        GUIDE.write_text(guide(histories))


if __name__ == "__main__":
    main()
