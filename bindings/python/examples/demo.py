# SPDX-License-Identifier: MIT
"""Shows a training that goes bad, on real data: 2 % of the batches hold a NaN.

A small network with float16 weights, activations and gradients learns to read handwritten digits, twice, from the same
start and from the same batches. By torch's rules each NaN halves the scale, until all gradients round to zero and the
network learns nothing more. The preset `recommended` knows that the loss was not finite before it was scaled: it skips
the step, keeps the scale and says why. Then three faults are planted into one step each, to show what a user reads.

    python demo.py [--out DIR]      writes demo*.png and demo.json to DIR (build/demo)

The exit status is 1 if torch's rules do not lose the training, or if `recommended` does. The preset `torch` decides as
torch.amp.GradScaler does, by recordings of it. For your own training loop, read `scaled_step`; float16.py has the
network, and shows why float16 needs loss scaling.
"""

import argparse
import json
import math
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from float16 import (
    COLOURS,
    LOSS_WEIGHT,
    SEED,
    Adam,
    backward,
    cast,
    forward,
    init_weights,
    load_data,
    loss_gradient,
    style,
)
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from gradscaler import Policy, Scaler

STEPS, BATCH, LEARNING_RATE, BAD_SHARE = 6000, 64, 1.5e-4, 0.02
EVERY = 50  # steps between two measurements of the accuracy


@dataclass
class Run:
    """The history of one training."""

    name: str
    scales: list = field(default_factory=list)  # the scale after each step
    accuracy: list = field(default_factory=list)  # after every fiftieth step
    reasons: list = field(default_factory=list)  # the sentences about skipped steps
    diagnosis: list = field(default_factory=list)

    def facts(self):
        return {
            "name": self.name,
            "accuracy": self.accuracy[-1],
            "skipped": len(self.reasons),
            "final_scale": self.scales[-1],
            "reason": self.reasons[0],
            "diagnosis": [str(note) for note in self.diagnosis],
        }


def mean_loss(logits, labels):
    logits = logits.astype(np.float32)
    largest = logits.max(axis=1)
    sums = np.exp(logits - largest[:, None]).sum(axis=1)
    return LOSS_WEIGHT * float(np.mean(np.log(sums) + largest - logits[np.arange(len(labels)), labels]))


def scaled_gradients(scaler, weights, images, labels):
    """Returns the loss and the float16 gradients of the scaled loss."""
    activations = forward(weights, images)
    delta = scaler.scale(loss_gradient(activations[-1], labels, LOSS_WEIGHT), dtype=np.float16)
    grads, _ = backward(weights, activations, delta)
    return mean_loss(activations[-1], labels), {name: grads[name] for name in weights}


def scaled_step(scaler, optimizer, loss, grads, unscaled, run):
    report = scaler.unscale(grads, out=unscaled, loss=loss)
    scaler.update(report)
    if scaler.skip:
        run.reasons.append(str(scaler.reason))
    else:
        optimizer.step(unscaled)


def batches(rng, images, labels):
    """Yields float16 images and labels. Some batches hold one NaN."""
    bad = rng.spawn(1)[0]
    for step in range(STEPS):
        if step % (len(labels) // BATCH) == 0:
            order = iter(rng.permutation(len(labels)).reshape(-1, BATCH))
        batch = next(order)
        pixels = images[batch].astype(np.float16)
        if bad.random() < BAD_SHARE:
            pixels[0, 0] = np.nan
        yield pixels, labels[batch]


def train(name, policy, data):
    """Returns the history of a training, and the weights."""
    print(f"{name:<36}", end=" ", flush=True)
    train_images, test_images, train_labels, test_labels = data
    rng = np.random.default_rng(SEED)
    master = init_weights(rng)
    optimizer, scaler, run = Adam(master, LOSS_WEIGHT, LEARNING_RATE), Scaler(policy), Run(name)
    unscaled = {name: np.empty_like(w) for name, w in master.items()}
    tests = test_images.astype(np.float16)
    for images, labels in batches(rng, train_images, train_labels):
        loss, grads = scaled_gradients(scaler, cast(master, np.float16), images, labels)
        scaled_step(scaler, optimizer, loss, grads, unscaled, run)
        run.scales.append(scaler.loss_scale)
        if len(run.scales) % EVERY == 0:
            predicted = forward(cast(master, np.float16), tests)[-1].argmax(axis=1)
            run.accuracy.append(float(np.mean(predicted == test_labels)))
        if len(run.scales) % (STEPS // 20) == 0:
            print(".", end="", flush=True)
    run.diagnosis = scaler.diagnose()
    power = math.log2(run.scales[-1])
    print(f" {run.accuracy[-1]:.1%}, {len(run.reasons)} steps skipped, the scale ends at 2^{power:.0f}")
    return run, master


def planted_faults(weights, images, labels):
    """Yields the name of a fault, and the sentence about the step that has it."""
    weights, images = cast(weights, np.float16), images[:BATCH].astype(np.float16)

    def reason(policy, images, change=None):
        scaler = Scaler(policy)
        loss, grads = scaled_gradients(scaler, weights, images, labels[:BATCH])
        if change:
            change(grads)
        scaler.update(scaler.unscale(grads, loss=loss))
        return str(scaler.reason)

    def overflow(grads):  # as if a block's backward pass exceeded float16: its gradients, and all before it
        for name in ("weight1", "bias1", "weight2", "bias2"):
            grads[name][..., ::7] = np.inf

    def spike(grads):
        for grad in grads.values():
            grad *= np.float16(100)

    with_nan = images.copy()
    with_nan[0, 0] = np.nan
    yield "a NaN in the data", reason("recommended", with_nan)
    yield "an overflow in layer 2", reason("recommended", images, overflow)
    yield "a spike of the gradients", reason(Policy("recommended", guard_norm=0.001), images, spike)


def draw(path, colours, phone, runs, faults):
    """Draws 1600 x 900 pixels, or 700 x 1200 for a phone."""
    with rc_context(style(colours, phone)):
        figure = Figure(figsize=(7, 12) if phone else (16, 9))
        title_size, size = (24, 34) if phone else (30, 50)
        figure.suptitle(f"{BAD_SHARE:.0%} of the batches hold a NaN", size=title_size, y=0.98)
        margins = {"top": 0.76, "bottom": 0.28, "left": 0.14} if phone else {"top": 0.66, "bottom": 0.3, "left": 0.07}
        grid = {"right": 0.96, "hspace": 0.5, "wspace": 0.17, **margins}
        left, right = figure.subplots(*((2, 1) if phone else (1, 2)), gridspec_kw=grid)
        top = 0.87 if phone else 0.83
        for run, x, colour in zip(runs, (0.27, 0.75), (colours["bad"], colours["good"]), strict=True):
            figure.text(x, top, f"{run.accuracy[-1]:.1%}", size=size, weight="bold", color=colour, ha="center")
            figure.text(x, top - 0.01, run.name.replace(" (", "\n("), size="large", ha="center", va="top")
            left.plot(range(EVERY, STEPS + 1, EVERY), run.accuracy, color=colour, lw=3)
            right.step(range(STEPS), np.log2(run.scales), where="post", color=colour, lw=3)
        left.set(title="accuracy on other digits", ylim=(0, 1), xlim=(0, STEPS))
        left.yaxis.set_major_formatter("{x:.0%}")
        right.set(title="loss scale", xlabel="step", xlim=(0, STEPS))
        right.yaxis.set_major_formatter("$2^{{{x:.0f}}}$")
        if not phone:
            left.set_xlabel("step")
        for row, (fault, sentence) in enumerate(faults):
            y = (0.19 if phone else 0.18) - row * (0.065 if phone else 0.06)
            figure.text(0.04 if phone else 0.07, y, fault, size="small", weight="bold", va="top")
            words = textwrap.fill(sentence, 62) if phone else sentence
            x, y = (0.04, y - 0.019) if phone else (0.25, y)
            figure.text(x, y, words, va="top", family="monospace", size=12 if phone else 14)
        figure.savefig(path, dpi=100)
    Image.open(path).convert("RGB").quantize(128).save(path, optimize=True)  # a third of the bytes


def broken_promises(torch, recommended):
    if torch.accuracy[-1] > 0.8:
        yield "by torch's rules the training is not lost"
    if recommended.accuracy[-1] < 0.9:
        yield "with `recommended` the accuracy is below 90 %"
    if torch.scales[-1] > 2**-24:
        yield "by torch's rules the scale does not vanish"
    if min(recommended.scales) < 2**16:
        yield "with `recommended` a bad loss lowers the scale"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default="build/demo", metavar="DIR")
    out = parser.parse_args().out

    data = load_data()
    lost, _ = train("torch's rules (recorded)", Policy("torch"), data)
    kept, weights = train('gradscaler (policy="recommended")', Policy("recommended"), data)
    print("\ngradscaler's diagnosis of that run:")
    for note in kept.diagnosis:
        print(f"  {note}")
    print("\nThree faults, and what gradscaler says of the step:")
    faults = list(planted_faults(weights, data[0], data[2]))
    for fault, sentence in faults:
        print(f"  {fault}\n    {sentence}")
    out.mkdir(parents=True, exist_ok=True)
    facts = {"runs": [run.facts() for run in (lost, kept)]}
    (out / "demo.json").write_text(json.dumps(facts, indent=2) + "\n")
    for name, colours in COLOURS.items():
        draw(out / f"demo{name}.png", colours, False, (lost, kept), faults)
        draw(out / f"demo-phone{name}.png", colours, True, (lost, kept), faults)
    print(f"\nPicture: {out / 'demo.png'}")
    if broken := list(broken_promises(lost, kept)):
        sys.exit("The demo failed: " + "; ".join(broken) + ".")


if __name__ == "__main__":
    main()
