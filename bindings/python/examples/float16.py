# SPDX-License-Identifier: MIT
"""Shows why float16 needs loss scaling, on real data: a small network learns to read handwritten digits.

It trains three times from the same start: in float32; with float16 weights, activations and
gradients; and in float16 with gradscaler. The loss is weighted 1e-4, as for an auxiliary head, so
most gradients are too small for float16, which rounds them to zero. gradscaler multiplies the loss
by a large factor, the scale, and divides the gradients by it again in float32. When a gradient
overflows, the step is skipped and the scale backs off; after enough good steps in a row it grows.
A fourth run, float16 with weight 1, shows that only the small loss needs scaling.

    python float16.py [--out DIR]      writes float16*.png and float16.json to DIR (build/demo)

The exit status is 1 if float16 does not fail without scaling or does not match float32 with it.
For your own training loop, read `gradients` and `scaled_step`; the rest is network and report.
"""

import argparse
import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gradscaler
from gradscaler import Event

SEED = 0
LAYERS = (64, 64, 64, 10)  # 8x8 pixels, two hidden layers, ten digits
EPOCHS, BATCH, LEARNING_RATE = 80, 256, 0.01
LOSS_WEIGHT = 1e-4

# The start is too high on purpose and the interval short (2000 is usual), so that a few hundred
# steps show the scale back off and grow many times.
INIT_SCALE, GROWTH_INTERVAL = 2.0**40, 25

# The range of float16 in powers of two: up to FLUSHED values round to zero, below SUBNORMAL they
# have fewer than 11 significant bits, from OVERFLOW on (65520 rounds up to it) they become inf.
FLUSHED, SUBNORMAL, OVERFLOW = -25, -14, 16
OCTAVES = np.arange(-52, 23)


@dataclass
class Run:
    """The history of one training; the lists stay empty without a scaler."""

    name: str
    accuracy: float = math.nan
    final_scale: float = 1.0
    elements: int = 0
    zeros: int = 0
    octaves: np.ndarray = field(default_factory=lambda: np.zeros(len(OCTAVES) - 1))
    scales: list = field(default_factory=list)  # the scale of each step
    events: list = field(default_factory=list)  # the events of each step
    overflowed: Counter = field(default_factory=Counter)  # the number of steps, by parameter name

    def observe(self, gradients):
        """Counts the zeros and sorts the magnitudes of the gradients before unscaling."""
        values = np.concatenate([g.ravel() for g in gradients]).astype(np.float32)
        magnitudes = np.abs(values[np.isfinite(values) & (values != 0)])
        self.elements += values.size
        self.zeros += np.count_nonzero(values == 0)
        self.octaves += np.histogram(np.log2(magnitudes), OCTAVES)[0]

    def steps(self, event):
        return [step for step, events in enumerate(self.events) if event in events]

    def facts(self):
        """Returns the row of the table and of float16.json."""
        counted = {"skipped": Event.SKIPPED, "backoffs": Event.BACKED_OFF, "growths": Event.GREW}
        return {
            "name": self.name,
            "accuracy": self.accuracy,
            "zero_share": self.zeros / self.elements,
            **{k: len(self.steps(e)) for k, e in counted.items()},
            "final_scale": self.final_scale,
        }


class Adam:
    """Adam; changes the float32 master weights in place."""

    def __init__(self, master, weight, learning_rate=LEARNING_RATE):
        # Adam divides gradients by their size, so the loss weight cancels out. With epsilon times
        # the weight, float16's rounding is the only difference between the runs.
        self.master, self.epsilon, self.count = master, 1e-8 * weight, 0
        self.learning_rate = learning_rate
        self.mean = {name: np.zeros_like(w) for name, w in master.items()}
        self.square = {name: np.zeros_like(w) for name, w in master.items()}

    def step(self, grads):
        self.count += 1
        for name, g in grads.items():
            mean, square = self.mean[name], self.square[name]
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            root = np.sqrt(square / (1 - 0.999**self.count)) + self.epsilon
            self.master[name] -= self.learning_rate * mean / (1 - 0.9**self.count) / root


def cast(arrays, dtype):
    return {name: array.astype(dtype) for name, array in arrays.items()}


def matmul(a, b):
    """Sums in float32 and rounds the result, as the matrix units of accelerators do."""
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype)


def init_weights(rng):
    weights = {}
    for i, (fan_in, fan_out) in enumerate(pairwise(LAYERS), start=1):
        limit = math.sqrt(6 / (fan_in + fan_out))
        weights[f"weight{i}"] = rng.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32)
        weights[f"bias{i}"] = np.zeros(fan_out, np.float32)
    return weights


def forward(weights, images):
    """Returns the activations of every layer: the images first, the logits last."""
    activations = [images]
    for i in range(1, len(LAYERS)):
        z = matmul(activations[-1], weights[f"weight{i}"]) + weights[f"bias{i}"]
        last = i == len(LAYERS) - 1
        # The sigmoid as a tanh: exp(-z) would overflow float16 from z = -11.1 on.
        activations.append(z if last else (np.tanh(z / 2) + 1) / 2)
    return activations


def backward(weights, activations, delta):
    """Returns the gradients of the parameters, and of the layers' outputs for each image.

    `delta` is the one of the last layer, d loss / d logits.
    """
    grads, deltas = {}, [delta]
    for i in range(len(LAYERS) - 1, 0, -1):
        inputs = activations[i - 1]
        grads[f"weight{i}"] = matmul(inputs.T, delta)
        grads[f"bias{i}"] = delta.sum(axis=0, dtype=np.float32).astype(delta.dtype)
        if i > 1:
            delta = matmul(delta, weights[f"weight{i}"].T) * inputs * (1 - inputs)
            deltas.append(delta)
    return grads, deltas


def loss_gradient(logits, labels, weight):
    """Returns d loss / d logits in float32, for loss = weight * mean cross-entropy."""
    logits = logits.astype(np.float32)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return p * np.float32(weight / len(labels))


def gradients(weights, images, labels, weight, scaler):
    activations = forward(weights, images)
    delta = loss_gradient(activations[-1], labels, weight)
    # An overflow to inf is intended here: it tells the scaler that the scale is too high.
    with np.errstate(over="ignore", invalid="ignore"):
        if scaler:
            delta = scaler.scale(delta, dtype=images.dtype)
        return backward(weights, activations, delta.astype(images.dtype, copy=False))


def scaled_step(scaler, optimizer, grads, unscaled, run):
    run.scales.append(scaler.loss_scale)
    report = scaler.unscale(grads, out=unscaled)
    run.events.append(scaler.update(report))
    run.overflowed.update(report.bad.keys())
    if not scaler.skip:
        optimizer.step(unscaled)


def train(name, dtype, data, scaler=None, weight=LOSS_WEIGHT):
    print(f"{name:<20}", end=" ", flush=True)
    start = time.perf_counter()
    train_images, test_images, train_labels, test_labels = data
    rng = np.random.default_rng(SEED)
    master = init_weights(rng)
    optimizer = Adam(master, weight)
    unscaled = {name: np.empty_like(w) for name, w in master.items()}
    run = Run(name)
    for epoch in range(EPOCHS):
        for batch in rng.permutation(len(train_labels)).reshape(-1, BATCH):
            images, labels = train_images[batch].astype(dtype), train_labels[batch]
            grads, deltas = gradients(cast(master, dtype), images, labels, weight, scaler)
            run.observe([*grads.values(), *deltas])
            if scaler:
                scaled_step(scaler, optimizer, grads, unscaled, run)
            else:
                optimizer.step(cast(grads, np.float32))
        if epoch % 4 == 3:
            print(".", end="", flush=True)
    predicted = forward(cast(master, dtype), test_images.astype(dtype))[-1].argmax(axis=1)
    run.accuracy = float(np.mean(predicted == test_labels))
    if scaler:
        run.final_scale = scaler.loss_scale
    print(f" {run.accuracy:6.1%} in {time.perf_counter() - start:.1f} s")
    return run


def load_data():
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    return train_test_split(images, digits.target, train_size=5 * BATCH, random_state=SEED)


def print_table(runs):
    heads = "run", "accuracy", "zero gradients", "skipped", "backoffs", "growths", "final scale"
    line = "{:<20}{:>10}{:>16}{:>9}{:>10}{:>9}{:>13}".format
    print("", line(*heads), sep="\n")
    for run in runs:
        name, accuracy, zero_share, *counts, scale = run.facts().values()
        counts = [*counts, f"2^{math.log2(scale):g}"] if run.scales else ["-"] * 4
        print(line(name, f"{accuracy:.1%}", f"{zero_share:.1%}", *counts))


def explain(float32, scaled, control):
    blank = float32.zeros / float32.elements
    flushed = float32.octaves[OCTAVES[:-1] < FLUSHED].sum() / float32.elements
    overflowed = ", ".join(f"{name} {steps}" for name, steps in scaled.overflowed.most_common(3))
    print(f"""
Zero gradients: the share of all gradient elements that backpropagation computed, of layers and
parameters, that are exactly 0 ({blank:.1%} in float32: weights of pixels blank in a whole batch).

What made the difference: {flushed:.0%} of the gradient elements of the float32 run are below 2^-25,
where float16 rounds to zero. Multiplied by the scale they fit; apart from the skipped steps
nothing else differs.
The loss weight of {LOSS_WEIGHT:g} was chosen to show this effect: with weight 1 this small network
trains in float16 without scaling ({control.accuracy:.1%}, the last run above).

Most frequent overflows, in steps: {overflowed}.""")


def draw_scale(ax, run, colours):
    exponents = np.log2(run.scales)
    ax.step(range(len(exponents)), exponents, where="post", color=colours["text"], lw=2)
    for event, marker, colour, text in (
        (Event.BACKED_OFF, "v", "bad", "overflow: step skipped, scale halved"),
        (Event.GREW, "^", "good", f"{GROWTH_INTERVAL} good steps: scale doubled"),
    ):
        steps = run.steps(event)
        ax.plot(steps, exponents[steps], marker, ms=9, color=colours[colour], label=f"{text} ({len(steps)} times)")
    ax.annotate("starts too high, on purpose", (10, exponents[0]), va="center")
    ax.set_title("The scale follows the gradients")
    ax.set(xlabel="training step", ylabel="loss scale")
    ax.yaxis.set_major_locator(MultipleLocator(2))
    ax.legend(loc="upper right", bbox_to_anchor=(1, 0.93), frameon=False, fontsize="small", handletextpad=0.2)


def draw_gradients(ax, float32, scaled, colours):
    edges = OCTAVES[0], FLUSHED, SUBNORMAL, OVERFLOW, OCTAVES[-1]
    texts = "becomes zero", "fewer\ndigits", "full precision", "over-\nflow"
    for i, ((left, right), text) in enumerate(zip(pairwise(edges), texts, strict=True)):
        ax.axvspan(left, right, color=colours["text"], alpha=(0.16, 0.08, 0, 0.16)[i], lw=0)
        middle = (left + right) / 2, 0.93
        ax.annotate(text, middle, xycoords=("data", "axes fraction"), ha="center", va="center", size="small")
    for run, colour, text, at in (
        (float32, "bad", "not scaled", -31),
        (scaled, "good", "scaled", 3.5),
    ):
        share = 100 * run.octaves / run.octaves.sum()
        ax.stairs(share, OCTAVES, fill=True, color=colours[colour])
        ax.annotate(text, (at, share.max() / 4), color=colours["ground"], weight="bold", ha="center")
    ax.set_title("Where the gradients lie in the range of float16")
    ax.set(xlabel="magnitude of a gradient element", ylabel="share of elements (%)")
    ax.set(xlim=(OCTAVES[0], OCTAVES[-1]), xticks=(-45, -35, FLUSHED, SUBNORMAL, -5, 5, OVERFLOW))
    ax.margins(y=0.3)  # room for the names of the ranges


# Okabe and Ito's colours, which the colour-blind tell apart.
COLOURS = {
    "": {"ground": "white", "text": "0.2", "bad": "#d55e00", "good": "#0072b2"},
    "-dark": {"ground": "#0d1117", "text": "0.85", "bad": "#e69f00", "good": "#56b4e9"},
}


def style(colours, phone):
    """Returns matplotlib's settings of a picture."""
    names = "text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor"
    settings = dict.fromkeys(names, colours["text"])
    settings |= dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), colours["ground"])
    return settings | {"font.size": 14 if phone else 17, "axes.titlesize": "large"}


def draw(path, colours, phone, float32, float16, scaled):
    """Draws 1600 x 900 pixels, or 700 x 1200 for a phone."""
    with rc_context(style(colours, phone)):
        figure = Figure(figsize=(7, 12) if phone else (16, 9))
        gap, title_size, size = ("\n", 22, 34) if phone else (" ", 30, 50)
        title = f"In float16 small gradients become zero,{gap}unless the loss is scaled"
        figure.suptitle(title, size=title_size, y=0.97)
        for x, run, words, colour in (
            (0.2, float32, "float32", "text"),
            (0.5, float16, "float16", "bad"),
            (0.8, scaled, f"float16{gap}with gradscaler", "good"),
        ):
            figure.text(x, 0.82, f"{run.accuracy:.1%}", size=size, weight="bold", color=colours[colour], ha="center")
            figure.text(x, 0.81, f"{words}\ntest accuracy", size="large", ha="center", va="top")
        margins = {"top": 0.7, "left": 0.12, "hspace": 0.3} if phone else {"top": 0.64, "left": 0.06}
        grid = {"bottom": 0.07 if phone else 0.1, "right": 0.98, **margins}
        left, right = figure.subplots(*((2, 1) if phone else (1, 2)), gridspec_kw=grid)
        draw_gradients(left, float32, scaled, colours)
        draw_scale(right, scaled, colours)
        left.xaxis.set_major_formatter("$2^{{{x:.0f}}}$")
        right.yaxis.set_major_formatter("$2^{{{x:.0f}}}$")
        figure.savefig(path, dpi=100)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # a third of the bytes


def broken_promises(float32, float16, scaled, control):
    if float16.accuracy > float32.accuracy - 0.10:
        yield "float16 without scaling is not 10 points below float32"
    # Rounding moves one or two of the 517 test images, 0.2 points each.
    if abs(scaled.accuracy - float32.accuracy) > 0.02:
        yield "float16 with gradscaler is not within 2 points of float32"
    if control.accuracy < float32.accuracy - 0.02:
        yield "float16 with loss weight 1 is more than 2 points below float32"
    if min(len(scaled.steps(e)) for e in (Event.BACKED_OFF, Event.GREW)) < 3:
        yield "the scale did not back off and grow at least three times each"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default="build/demo", metavar="DIR")
    out = parser.parse_args().out

    data = load_data()
    scaler = gradscaler.Scaler("torch", init_scale=INIT_SCALE, growth_interval=GROWTH_INTERVAL)
    runs = (
        train("float32", np.float32, data),
        train("float16", np.float16, data),
        train("float16+gradscaler", np.float16, data, scaler),
    )
    control = train("float16, weight 1", np.float16, data, weight=1)
    print_table(runs)
    explain(runs[0], runs[2], control)
    out.mkdir(parents=True, exist_ok=True)
    facts = {"runs": [run.facts() for run in (*runs, control)]}
    (out / "float16.json").write_text(json.dumps(facts, indent=2) + "\n")
    for name, colours in COLOURS.items():
        draw(out / f"float16{name}.png", colours, False, *runs)
        draw(out / f"float16-phone{name}.png", colours, True, *runs)
    print(f"Picture and figures: {out / 'float16.png'}, {out / 'float16.json'}")
    if broken := list(broken_promises(*runs, control)):
        sys.exit("The demo failed: " + "; ".join(broken) + ".")


if __name__ == "__main__":
    main()
