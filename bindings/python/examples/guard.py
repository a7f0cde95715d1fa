# SPDX-License-Identifier: MIT
"""Shows how guards protect a training from finite spikes, on real data: a small network reads handwritten digits.

Twelve of 600 batches are poisoned: their pixels are a thousand times too bright, their labels random. Eight of them
follow each other, as from a bad shard. Nothing overflows, so no loss scaler skips them. From step 380 on the loss has
four times the weight, as when a second term joins it; this is not a spike. The network trains on clean data, without a
guard, and with five guards. The last one never accepts a new level of the norm, and locks the training out.

    python guard.py [--out DIR] [--seeds N] [--guide]      writes guard.svg and guard.json to DIR (build/demo)

Every training is repeated from N seeds (5). --guide writes the picture and the table of docs/guard.md. The exit status
is 1 if the poison does no harm, if a guard that should help does not, if the last one does not lock the training out,
or if the picture of docs/guard.md shows another training; tests/demo/kernels.py tries this with the matrix kernels of
many processors. For a training loop of your own, read `guarded_step`.
"""

import argparse
import html
import json
import re
import shutil
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import numpy as np
from float16 import BATCH, backward, forward, init_weights, load_data, loss_gradient
from matplotlib.figure import Figure
from pictures import save

from gradscaler import Event, Policy, Scaler

SEEDS = 5
STEPS, LEARNING_RATE, MOMENTUM = 600, 0.2, 0.9
POISONED = 150, 151, 200, 320, *range(450, 458)
WEIGHT_FROM, WEIGHT = 380, 4
RULES = {
    "clean data, no guard": Policy("none"),
    "no guard": Policy("none"),
    "a norm above 3": Policy("none", guard_norm=3),
    "10 times the mean: `guard`": Policy("guard"),
    "6 sigmas: `olmo_like`": Policy("olmo_like"),
    "clipped: `zclip`": Policy("zclip"),
    "`axlearn` at 2 times the mean, outliers kept out": Policy("axlearn", guard_ratio=2),
}
POISON = "#b0508a"
CURVES = (  # the colour, the style and the width of the line, the label and where it begins
    ("no guard", "#d55e00", "-", 2.5, "no guard", 360, 0.5),
    ("10 times the mean: `guard`", "#0072b2", "-", 4, "preset guard", 215, 0.85),
    ("clean data, no guard", "#000000", ":", 1.5, "clean data, no guard", 150, 1.01),
)
GUIDE = Path(__file__).parents[3] / "docs" / "guard.md"


@dataclass
class Run:
    """The history of one training, step by step."""

    norms: list = field(default_factory=list)
    thresholds: list = field(default_factory=list)  # NaN if there is none
    multipliers: list = field(default_factory=list)
    accuracy: list = field(default_factory=list)  # after every tenth step

    def facts(self):
        skipped = [step for step, by in enumerate(self.multipliers) if by == 0]
        clipped = [step for step, by in enumerate(self.multipliers) if 0 < by < 1]
        return {
            "worst accuracy": min(self.accuracy[POISONED[0] // 10 :]),
            "final accuracy": self.accuracy[-1],
            "skipped": len(skipped),
            "clipped": len(clipped),
            "poisoned let through": sum(self.multipliers[step] == 1 for step in POISONED),
            "clean skipped or clipped": len({*skipped, *clipped} - {*POISONED}),
        }


class Sgd:
    """Gradient descent with momentum; changes the weights in place."""

    def __init__(self, weights):
        self.weights = weights
        self.velocity = {name: np.zeros_like(w) for name, w in weights.items()}

    def step(self, grads, multiplier):
        for name, g in grads.items():
            self.velocity[name] *= MOMENTUM
            self.velocity[name] += g * np.float32(multiplier)
            self.weights[name] -= np.float32(LEARNING_RATE) * self.velocity[name]


def guarded_step(scaler, optimizer, grads, run):
    report = scaler.measure(grads)  # checks for overflow and measures the norm, if the policy needs it
    events = scaler.update(report)
    multiplier = 1.0
    if events & (Event.SKIPPED | Event.CLIPPED):
        multiplier = scaler.state.guard_multiplier
    if multiplier:
        optimizer.step(grads, multiplier)
    run.multipliers.append(multiplier)
    run.thresholds.append(scaler.state.guard_threshold or np.nan)


def batches(rng, images, labels, poisoned):
    """Yields the images, the labels and the weight of the loss of every step."""
    bad = rng.spawn(1)[0]
    for step in range(STEPS):
        if step % (len(labels) // BATCH) == 0:
            order = iter(rng.permutation(len(labels)).reshape(-1, BATCH))
        batch = next(order)
        weight = WEIGHT if step >= WEIGHT_FROM else 1
        if poisoned and step in POISONED:
            yield 1000 * images[batch], bad.integers(0, 10, BATCH), weight
        else:
            yield images[batch], labels[batch], weight


def train(policy, data, seed, poisoned):
    train_images, test_images, train_labels, test_labels = data
    rng = np.random.default_rng(seed)
    weights = init_weights(rng)
    optimizer, scaler, run = Sgd(weights), Scaler(policy), Run()
    for images, labels, weight in batches(rng, train_images, train_labels, poisoned):
        activations = forward(weights, images)
        grads, _ = backward(weights, activations, loss_gradient(activations[-1], labels, weight))
        run.norms.append(float(np.sqrt(sum(np.vdot(g, g) for g in grads.values()))))
        guarded_step(scaler, optimizer, grads, run)
        if len(run.norms) % 10 == 0:
            predicted = forward(weights, test_images)[-1].argmax(axis=1)
            run.accuracy.append(float(np.mean(predicted == test_labels)))
    return run


def train_all(name, policy, data, seeds):
    print(f"{name:<38}", end=" ", flush=True)
    runs = []
    for seed in range(seeds):
        runs.append(train(policy, data, seed, poisoned=name != "clean data, no guard"))
        print(".", end="", flush=True)
    worst, final, skipped, clipped, *_ = texts(runs)
    print(f" worst {worst}, final {final}, {skipped} steps skipped, {clipped} clipped")
    return runs


def summary(runs):
    """Returns the median, the least and the most of every fact."""
    facts = {name: [run.facts()[name] for run in runs] for name in runs[0].facts()}
    return {name: (statistics.median_low(values), min(values), max(values)) for name, values in facts.items()}


def texts(runs):
    for name, values in summary(runs).items():
        median, least, most = (f"{v:.1%}" if "accuracy" in name else f"{v}" for v in values)
        yield median if least == most else f"{median} ({least} to {most})"


def draw(path, results):
    """Draws the median and the range of the accuracy; the medians are also in the description of the SVG."""
    steps, medians = range(9, STEPS, 10), {}
    with mpl.rc_context({"font.size": 14}):
        figure = Figure(figsize=(10, 5), layout="constrained")
        ax = figure.subplots()
        for name, colour, style, width, label, *where in CURVES:
            accuracy = np.array([run.accuracy for run in results[name]])
            medians[name] = np.median(accuracy, axis=0).round(4).tolist()
            ax.fill_between(steps, accuracy.min(axis=0), accuracy.max(axis=0), color=colour, alpha=0.2, lw=0)
            ax.plot(steps, medians[name], color=colour, ls=style, lw=width)
            ax.text(*where, label, color=colour, weight="bold")
        for step, colour in [*((step, POISON) for step in POISONED), (WEIGHT_FROM, "#808080")]:
            ax.plot([step, step], [0, 0.04], color=colour, lw=2.5)
        ax.text(POISONED[0], 0.05, "poisoned batches", color=POISON)
        ax.text(WEIGHT_FROM, 0.05, "loss x 4", color="#808080", ha="center")
        ax.set(xlabel="step", ylabel=f"accuracy on other digits ({len(results['no guard'])} seeds)")
        ax.set(xlim=(0, STEPS), ylim=(0, 1.1), yticks=np.arange(0, 1.1, 0.2))
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.spines[["top", "right"]].set_visible(False)
    save(figure, path, json.dumps(medians))


def table(results):
    heads = "rule", *results["no guard"][0].facts()
    rows = [(name, *texts(runs)) for name, runs in results.items()]
    rows[0] = *rows[0][:3], *"----"  # clean data has no batches to stop
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def broken_promises(results):
    """Judges every seed. Without a guard the final accuracy is not judged: rounding in matrix products decides it."""
    clean, none, threshold, guard, _, zclip, shut = ([run.facts() for run in runs] for runs in results.values())
    if max(run["worst accuracy"] for run in none) > 0.5:
        yield "without a guard the accuracy stays above 50%"
    for name, runs in (("threshold", threshold), ("guard", guard), ("zclip", zclip)):
        if min(run["worst accuracy"] for run in runs) < 0.8:
            yield f"{name}: the accuracy falls below 80%"
        if any(run["final accuracy"] < c["final accuracy"] - 0.05 for run, c in zip(runs, clean, strict=True)):
            yield f"{name}: the final accuracy is more than 5 points below clean data"
        if any(run["poisoned let through"] for run in runs):
            yield f"{name}: a poisoned batch is let through"
    for name, runs in (("threshold", threshold), ("guard", guard)):
        if max(run["clean skipped or clipped"] for run in runs) > 20:
            yield f"{name}: more than 20 clean batches are skipped"
    if min(run["clean skipped or clipped"] for run in shut) < 100:
        yield "axlearn: fewer than 100 clean batches are locked out"


def moved_curves(results, picture):
    """Compares every seed with the medians that a picture shows, from step 150 on, when the accuracy is steady."""
    described = re.search(r"<dc:description>(.*?)</dc:description>", picture.read_text())
    medians = json.loads(html.unescape(described[1]))
    for name in "clean data, no guard", "10 times the mean: `guard`":
        if any(abs(run.accuracy[i] - medians[name][i]) > 0.05 for run in results[name] for i in range(15, STEPS // 10)):
            yield f"{picture.name} shows another training: {name} differs by more than 5 points"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default="build/demo", metavar="DIR")
    parser.add_argument("--guide", action="store_true", help=f"write the picture and the table of {GUIDE.name}")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="trainings by each rule (%(default)s)")
    arguments = parser.parse_args()
    data = load_data()
    results = {name: train_all(name, policy, data, arguments.seeds) for name, policy in RULES.items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "guard.svg"
    orders = "median", "least", "most"
    facts = [
        {"name": name} | {fact: dict(zip(orders, values, strict=True)) for fact, values in summary(runs).items()}
        for name, runs in results.items()
    ]
    (arguments.out / "guard.json").write_text(json.dumps(facts, indent=2) + "\n")
    draw(picture, results)
    print(f"Picture and figures: {picture}, {picture.with_suffix('.json')}")
    if arguments.guide:
        shutil.copy(picture, GUIDE.with_suffix(".svg"))
        marked = r"(?<=<!-- written by bindings/python/examples/guard.py --guide -->\n)(\|.*\n)*"
        GUIDE.write_text(re.sub(marked, lambda _: table(results), GUIDE.read_text()))
    if broken := [*broken_promises(results), *moved_curves(results, GUIDE.with_suffix(".svg"))]:
        sys.exit("The demo failed: " + "; ".join(broken) + ".")


if __name__ == "__main__":
    main()
