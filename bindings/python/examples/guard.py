# SPDX-License-Identifier: MIT
"""What a guard against finite spikes does, on real data: a small network reads handwritten digits from a bad shard.

Seven of 600 batches are poisoned: pixels a thousand times too bright, labels at random. Nothing overflows, so no loss
scaler objects. From step 380 on the loss is weighted four times, as when a second term joins it: that is no spike. The
network trains on clean data, without a guard, and with five, the last of which shuts out all that is far from its
mean, for good.

    python guard.py [--out DIR] [--guide]      writes guard.svg and guard.json to DIR (build/demo)

--guide writes the picture and the table of docs/guard.md. The exit status is 1 if the poison does no harm, if a guard
that should help does not, or if the last one does not lock the training out. For a training loop of your own, read
`guarded_step`.
"""

import argparse
import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import numpy as np
from demo import BATCH, SEED, backward, forward, init_weights, load_data, loss_gradient
from matplotlib.figure import Figure

from gradscaler import Event, Policy, Scaler

STEPS, LEARNING_RATE, MOMENTUM = 600, 0.5, 0.9
POISONED = 150, 151, 200, 320, 450, 451, 452
WEIGHT_FROM, WEIGHT = 380, 4
GUARDS = {
    "no guard": Policy("none"),
    "threshold of 2": Policy("none", guard_norm=2),
    "10 times the mean: `guard`": Policy("guard"),
    "6 sigmas: `olmo_like`": Policy("olmo_like"),
    "clipped: `zclip`": Policy("zclip"),
    "3 times the mean, shut out: `axlearn`": Policy("axlearn", guard_ratio=3),
}
GUIDE = Path(__file__).parents[3] / "docs" / "guard.md"


@dataclass
class Run:
    """What happened in one training, step by step."""

    name: str
    norms: list = field(default_factory=list)
    thresholds: list = field(default_factory=list)  # NaN: there is none yet
    multipliers: list = field(default_factory=list)
    accuracy: list = field(default_factory=list)  # after every tenth step

    def facts(self):
        skipped = [step for step, by in enumerate(self.multipliers) if by == 0]
        clipped = [step for step, by in enumerate(self.multipliers) if 0 < by < 1]
        return {
            "name": self.name,
            "accuracy": self.accuracy[-1],
            "skipped": len(skipped),
            "clipped": len(clipped),
            "poisoned let through": sum(self.multipliers[step] == 1 for step in POISONED),
            "clean stopped or clipped": len({*skipped, *clipped} - {*POISONED}),
        }


class Sgd:
    """Momentum on the weights, which it changes in place."""

    def __init__(self, weights):
        self.weights = weights
        self.velocity = {name: np.zeros_like(w) for name, w in weights.items()}

    def step(self, grads, multiplier):
        for name, g in grads.items():
            self.velocity[name] *= MOMENTUM
            self.velocity[name] += g * np.float32(multiplier)
            self.weights[name] -= np.float32(LEARNING_RATE) * self.velocity[name]


def guarded_step(scaler, optimizer, grads, run):
    report = scaler.check(grads)  # looks for overflows, and measures the norm where the policy judges by it
    events = scaler.update(report)
    multiplier = 1.0
    if events & (Event.SKIPPED | Event.CLIPPED):
        multiplier = scaler.state.guard_multiplier
    if multiplier:
        optimizer.step(grads, multiplier)
    run.multipliers.append(multiplier)
    run.thresholds.append(scaler.state.guard_threshold or np.nan)


def batches(rng, images, labels, poisoned):
    """STEPS of (images, labels, weight of the loss), of which POISONED are as they say."""
    bad = np.random.default_rng(SEED + 1)
    for step in range(STEPS):
        if step % (len(labels) // BATCH) == 0:
            order = iter(rng.permutation(len(labels)).reshape(-1, BATCH))
        batch = next(order)
        weight = WEIGHT if step >= WEIGHT_FROM else 1
        if poisoned and step in POISONED:
            yield 1000 * images[batch], bad.integers(0, 10, BATCH), weight
        else:
            yield images[batch], labels[batch], weight


def train(name, policy, data, poisoned=True):
    print(f"{name:<38}", end=" ", flush=True)
    train_images, test_images, train_labels, test_labels = data
    rng = np.random.default_rng(SEED)
    weights = init_weights(rng)
    optimizer, scaler, run = Sgd(weights), Scaler(policy), Run(name.replace("`", ""))
    for images, labels, weight in batches(rng, train_images, train_labels, poisoned):
        activations = forward(weights, images)
        grads, _ = backward(weights, activations, loss_gradient(activations[-1], labels, weight))
        run.norms.append(float(np.sqrt(sum(np.vdot(g, g) for g in grads.values()))))
        guarded_step(scaler, optimizer, grads, run)
        if len(run.norms) % 10 == 0:
            predicted = forward(weights, test_images)[-1].argmax(axis=1)
            run.accuracy.append(float(np.mean(predicted == test_labels)))
    print(f"{run.accuracy[-1]:6.1%}, {run.facts()['skipped']} steps skipped, {run.facts()['clipped']} clipped")
    return run


def draw(path, clean, runs):
    mpl.rcParams |= {"svg.hashsalt": "gradscaler", "svg.fonttype": "none", "path.simplify_threshold": 1}
    figure = Figure(figsize=(9, 7), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True)
    top.semilogy(runs[0].norms, color="0.8", lw=0.8, label="norm, without a guard")
    steps = range(9, STEPS, 10)
    for run, colour in zip(runs, ("0.3", "C0", "C2", "C1", "C4", "C3"), strict=True):
        if np.isfinite(run.thresholds).any():
            top.semilogy(run.thresholds, color=colour, lw=1.2)
        bottom.plot(steps, run.accuracy, color=colour, label=f"{run.name} ({run.accuracy[-1]:.0%})")
    bottom.plot(steps, clean.accuracy, "k:", label=f"clean data ({clean.accuracy[-1]:.0%})")
    for ax in (top, bottom):
        for step in POISONED:
            ax.axvline(step, color="tab:red", alpha=0.25, lw=1)
        ax.axvline(WEIGHT_FROM, color="0.5", ls="--", lw=1)
    top.set(ylabel="norm; the thresholds of the guards")
    top.set_title("Red: poisoned batches. Dashed: from here on the loss has four times the weight")
    bottom.set(xlabel="step", ylabel="accuracy on other digits", ylim=(0, 1))
    bottom.legend(loc="lower left", fontsize="small", ncols=2)
    figure.savefig(path, metadata={"Date": None})


def table(clean, runs):
    heads = "rule", "accuracy", "skipped", "clipped", "poisoned let through", "clean stopped or clipped"
    rows = [("clean data, no guard", f"{clean.accuracy[-1]:.1%}", *"----")]
    for name, run in zip(GUARDS, runs, strict=True):
        _, accuracy, *counts = run.facts().values()
        rows.append((name, f"{accuracy:.1%}", *map(str, counts)))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * 6, *rows))


def broken_promises(clean, runs):
    none, threshold, guard, _, zclip, shut = runs
    if none.accuracy[-1] > clean.accuracy[-1] - 0.05:
        yield "the poison does no harm"
    for run in (threshold, guard, zclip):
        if run.accuracy[-1] < clean.accuracy[-1] - 0.02:
            yield f"{run.name} is more than 2 points below clean data"
    if shut.multipliers[WEIGHT_FROM:].count(0) < 100:
        yield "the rule without a limit does not lock out"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default="build/demo", metavar="DIR")
    parser.add_argument("--guide", action="store_true", help=f"write the picture and the table of {GUIDE.name}")
    arguments = parser.parse_args()
    data = load_data()
    clean = train("clean data, no guard", Policy("none"), data, poisoned=False)
    runs = [train(name, policy, data) for name, policy in GUARDS.items()]
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / "guard.svg"
    (arguments.out / "guard.json").write_text(json.dumps([run.facts() for run in (clean, *runs)], indent=2) + "\n")
    draw(picture, clean, runs)
    print(f"Picture and figures: {picture}, {picture.with_suffix('.json')}")
    if arguments.guide:
        shutil.copy(picture, GUIDE.with_suffix(".svg"))
        marked = r"(?<=<!-- written by bindings/python/examples/guard.py --guide -->\n)(\|.*\n)*"
        GUIDE.write_text(re.sub(marked, lambda _: table(clean, runs), GUIDE.read_text()))
    if broken := list(broken_promises(clean, runs)):
        sys.exit("The demo failed: " + "; ".join(broken) + ".")


if __name__ == "__main__":
    main()
