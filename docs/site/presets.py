# SPDX-License-Identifier: MIT
"""Writes the table of presets in docs/presets.md, docs/presets.svg, which has the scale of each preset in the same run,
and how many presets, recordings and formats there are in README and the first page.

All show what the installed library says and does. The run is made with + and * alone, which round the same on every
machine: the picture is the same, byte by byte.
"""

import functools
import json
import math
import random
import re
import warnings
from itertools import pairwise
from pathlib import Path

import gradscaler
from gradscaler import Event, Report, ReportKind, Want

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/presets.md"
COUNTED = ROOT / "README.md", ROOT / "docs/site/index.md"
BEGIN, END = "<!-- written by ci/docs -->\n", "<!-- to here -->"
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
LARGEST_HALF = 65504

# The run of the picture.
STEPS, PER_COLUMN = 24_000, 150
SPIKE, NAN, RISE, PLATEAU, BURST = 3_000, 6_000, 14_000, 18_000, range(21_000, 21_046)

# The picture: panels in rows of ACROSS, with a pixel for PER_COLUMN steps; the run above them is FACTOR times as wide.
ACROSS, WIDTH, HEIGHT, LEFT, TOP, FACTOR = 5, 194, 150, 54, 236, 4
OCTAVE, HIGHEST, GRID = 1.5, 34, (32, 16, 0, -16)
TICKS = {  # of a decision: the lower end and the length in a panel, and the words of the key
    "overflow": (123, 8, "an overflow: the step is skipped"),
    "skipped": (134, 8, "the guard skips the step"),
    "clipped": (134, 5, "the guard clips the gradients"),
}
STYLE = """
text{font:15px sans-serif;fill:#1f2328}.name{font-weight:bold}.small{font-size:13px}.axis{text-anchor:end}
path{fill:none;stroke-width:2.5}.paper{fill:#fff}.grid{stroke:#d0d7de;stroke-width:1}
.end{fill:#d55e00}.scale{stroke:#0072b2;stroke-width:1.8}.overflow{stroke:#d55e00}.skipped{stroke:#b0508a}.clipped{stroke:#009e73}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#0d1117}.grid{stroke:#3d444d}
.end{fill:#e69f00}.scale{stroke:#56b4e9}.overflow{stroke:#e69f00}.skipped{stroke:#e38fc0}.clipped{stroke:#2fc79b}}
"""


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
    scale = [number(policy.init_scale or 1)]
    if policy.growth_interval:
        assert factors[1] == 0.5, "the page says that an overflow halves the scale"
        if (factors[0], policy.growth_interval) != (2, 2000):
            scale.append(f"x {number(factors[0])} every {policy.growth_interval:,}")
        if policy.min_scale:
            scale.append(f"floor {number(policy.min_scale)}")
        if policy.max_scale:
            scale.append(f"ceiling {number(policy.max_scale)}")
    else:
        scale.append("fixed")
    return [f"`{name}`", ", ".join(scale), gradscaler.presets()[name]]


def table():
    rows = [["preset", "scale", "rules"], ["---"] * 3, *map(row, gradscaler.presets())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def gradients():
    """Returns the largest gradient of every step; NaN if it is NaN."""
    noise, level, largest = random.Random(0), 2.0**-9, []
    for step in range(STEPS):
        level *= 1 - 3e-4 if step < RISE else 1 + 1.65e-3 if step < PLATEAU else 1
        amax = level * (0.75 + noise.random() / 2) * (64 if step == SPIKE else 1)
        largest.append(math.nan if step == NAN or step in BURST else amax)
    return largest


def measured(amax):
    """Returns the report of 4096 gradients that are this large."""
    return Report(kind=ReportKind.TENSORS, elements=4096, measured=Want.NORM, sum_squares=4096 * amax * amax)


def run(name, largest, reports):
    """Returns the scale at the start of every column, and the columns of each kind of decision."""
    with warnings.catch_warnings(action="ignore"):  # some presets guard nothing before guard_norm is set
        scaler = gradscaler.Scaler(name)
    scales, columns = [], {kind: set() for kind in TICKS}
    for step, (amax, report) in enumerate(zip(largest, reports, strict=True)):
        if step % PER_COLUMN == 0:
            scales.append(scaler.loss_scale)
        overflow = not amax * scaler.loss_scale <= LARGEST_HALF
        events = scaler.update(overflow or report)
        if events & (Event.SKIPPED | Event.CLIPPED):
            kind = "overflow" if overflow else "skipped" if events & Event.SKIPPED else "clipped"
            columns[kind].add(step // PER_COLUMN)
        if events & Event.STOPPED:
            break
    return [*scales, scaler.loss_scale], columns


def curve(values, zero, octave, step=1):
    """Returns a path with a column for each value, on an axis of powers of two."""
    heights = [f"{zero - octave * math.log2(value):.1f}" for value in values]
    path = f"M0 {heights[0]}"
    for column, (before, height) in enumerate(pairwise(heights), 1):
        path += f"H{column * step}V{height}" if height != before else ""
    return f'<path class="scale" d="{path}H{min(len(values), STEPS // PER_COLUMN) * step}"/>'


def stopped(x, y):
    return f'<circle class="end" cx="{x}" cy="{y:.1f}" r="4"/>'


def panel(name, scales, columns, labelled):
    zero, right = 22 + OCTAVE * HIGHEST, STEPS // PER_COLUMN
    lines = "".join(f"M0 {zero - OCTAVE * log:.1f}H{right}" for log in GRID)
    parts = [f'<text class="name" y="12">{name}</text><path class="grid" d="{lines}"/>', curve(scales, zero, OCTAVE)]
    if labelled:
        for log in GRID:
            parts.append(f'<text class="small axis" x="-6" y="{zero - OCTAVE * log + 4:.1f}">2^{log}</text>')
    for kind, (bottom, tall, _) in TICKS.items():
        if columns[kind]:
            ticks = "".join(f"M{column}.5 {bottom}v-{tall}" for column in sorted(columns[kind]))
            parts.append(f'<path class="{kind}" d="{ticks}"/>')
    if len(scales) <= right:
        parts.append(stopped(len(scales), zero - OCTAVE * math.log2(scales[-1])))
    return "".join(parts)


def head(largest):
    """Draws the run that every preset goes through, and the key."""
    columns = [largest[at : at + PER_COLUMN] for at in range(0, STEPS, PER_COLUMN)]
    highest = [max((amax for amax in one if amax == amax), default=1) for one in columns]
    parts = ['<text class="name" y="16">One run for all presets: the largest gradient of each step</text>']
    parts.append(curve(highest, 20, 7, FACTOR))
    for step, y, text in (
        (SPIKE, 46, "a spike"),
        (NAN, 62, "a step with NaN"),
        (RISE, 146, "from here on they grow"),
        (BURST[0], 46, f"{len(BURST)} overflows in a row"),
    ):
        x = step // PER_COLUMN * FACTOR
        parts.append(f'<text class="small" x="{x + 6}" y="{y}">{text}</text>')
        parts.append(f'<path class="grid" d="M{x} {y - 10}V150"/>')
    for number, (kind, (_, tall, text)) in enumerate(TICKS.items()):
        x = 240 * number
        parts.append(f'<path class="{kind}" d="M{x + 4} 190v-{tall}"/>')
        parts.append(f'<text class="small" x="{x + 14}" y="190">{text}</text>')
    parts.append(f'{stopped(724, 185)}<text class="small" x="736" y="190">the training is stopped</text>')
    return "".join(parts)


def picture():
    """Returns the picture as it should be."""
    largest = gradients()
    reports = [measured(amax) for amax in largest]
    parts = [f'<g transform="translate({LEFT} 8)">{head(largest)}</g>']
    for number, name in enumerate(gradscaler.presets()):
        row, column = divmod(number, ACROSS)
        drawn = panel(name, *run(name, largest, reports), labelled=column == 0)
        parts.append(f'<g transform="translate({LEFT + WIDTH * column} {TOP + HEIGHT * row})">{drawn}</g>')
    width, height = LEFT + WIDTH * ACROSS, TOP + HEIGHT * (row + 1)
    size = f'width="{width}" height="{height}"'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}">'
    paper = f'<rect class="paper" {size}/>'
    return "\n".join([begin, f"<style>{STYLE}</style>", paper, *parts, "</svg>\n"])


def page():
    """The page as it should be."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END, 1)[1]


def saves_a_state(format):
    try:
        gradscaler.Scaler("torch").state_dict(format)
    except gradscaler.Error as error:
        assert "which saves no state" in str(error)
        return False
    return True


@functools.cache
def counts():
    """Returns (the place of a number in a page, the number)."""
    files = [json.loads(path.read_text()).get("traces") for path in (ROOT / "tests/traces").glob("*.json")]
    recordings, formats = list(filter(None, files)), sum(map(saves_a_state, gradscaler.formats()))
    return (
        (r"\d+(?= \[?presets\b)", len(gradscaler.presets())),
        (r"\d+(?= \[?recordings\b.{0,50} of \d+\sreal scalers)", sum(map(len, recordings))),
        (r"\d+(?=\sreal scalers)", len(recordings)),
        (r"(?<=itself and )\d+(?= others)", formats - 1),
        (r"\d+(?= formats)", formats),
    )


def counted(text):
    """Returns a page with the numbers as they should be."""
    for place, number in counts():
        text = re.sub(place, str(number), text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
    PAGE.with_suffix(".svg").write_text(picture())
    for path in COUNTED:
        path.write_text(counted(path.read_text()))
