# SPDX-License-Identifier: MIT
"""Trains in float16, on real data: a small network learns to read handwritten digits.

    python digits.py FILE

FILE holds the 1,797 digits of scikit-learn's load_digits: for each, 64 bytes of pixels (0 to 16) and one byte, its
label. The network trains three times from the same start: in float32; with float16 weights, activations and gradients;
and in float16 with a scaler. The loss is weighted 1e-4, as for an auxiliary head, so most gradients are too small for
float16, which rounds them to zero.

For your own training loop, read `train`; the rest is network and data. The exit status is 1 if float16 does not
fail without scaling, or does not match float32 with it. float16.py shows the same in pictures.
"""

import sys
from itertools import pairwise

import numpy as np

from gradscaler import Scaler

SEED = 1
LAYERS = (64, 64, 64, 10)  # 8x8 pixels, two hidden layers, ten digits
EPOCHS, BATCH, LEARNING_RATE = 80, 256, 0.01
DIGITS, TRAINING_SET = 1797, 5 * BATCH
LOSS_WEIGHT = 1e-4


def train(name, dtype, scaler, images, labels):
    """Trains in `dtype` and returns the accuracy on the test digits."""
    rng = np.random.default_rng(SEED)
    master = initial_parameters(rng)
    adam = Adam(master)
    for _ in range(EPOCHS):
        for batch in rng.permutation(TRAINING_SET).reshape(-1, BATCH):
            # Forward and backward in dtype, from the loss's gradient times the scale.
            parameters = [p.astype(dtype) for p in master]
            activations = forward(parameters, images[batch].astype(dtype))
            delta = scaler.scale(loss_gradient(activations[-1], labels[batch]), dtype=dtype)
            gradients = backward(parameters, activations, delta)

            # All gradients in one call: check, divide by the scale, convert to float32.
            report = scaler.unscale(gradients, dtype=np.float32)
            scaler.update(report)
            if not scaler.skip:
                adam.step(report.grads)
    logits = forward([p.astype(dtype) for p in master], images[TRAINING_SET:].astype(dtype))[-1]
    accuracy = np.mean(logits.argmax(axis=1) == labels[TRAINING_SET:])
    print(
        f"{name:<16} {accuracy:>8.1%} {scaler.total_overflows:>9} {scaler.total_growths:>9} {scaler.loss_scale:>13.0f}"
    )
    return accuracy


def initial_parameters(rng):
    """Weight, bias, weight, bias, ..."""
    parameters = []
    for inputs, outputs in pairwise(LAYERS):
        limit = (6 / (inputs + outputs)) ** 0.5
        parameters.append(rng.uniform(-limit, limit, (inputs, outputs)).astype(np.float32))
        parameters.append(np.zeros(outputs, np.float32))
    return parameters


def matmul(a, b):
    """Sums in float32, as the matrix units of accelerators do; the caller rounds."""
    return a.astype(np.float32) @ b.astype(np.float32)


def forward(parameters, images):
    """Returns the activations of every layer: the images first, the logits last."""
    activations = [images]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        z = matmul(activations[-1], weight) + bias
        last = len(activations) == len(LAYERS) - 1
        activations.append((z if last else 0.5 * np.tanh(0.5 * z) + 0.5).astype(images.dtype))  # the sigmoid
    return activations


def loss_gradient(logits, labels):
    """Returns d loss / d logits of the weighted mean cross-entropy, in float32: it is too small for float16."""
    logits = logits.astype(np.float32)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    return p * np.float32(LOSS_WEIGHT / len(labels))


@np.errstate(over="ignore", invalid="ignore")  # an overflow is intended: the scaler finds it
def backward(parameters, activations, delta):
    """Returns the gradients of the parameters; `delta` is the gradient of the logits."""
    gradients, dtype = [], delta.dtype
    for i in reversed(range(len(LAYERS) - 1)):
        inputs = activations[i]
        gradients.append(delta.sum(axis=0, dtype=np.float32).astype(dtype))  # the gradient of the bias
        gradients.append(matmul(inputs.T, delta).astype(dtype))
        if i > 0:  # the images have no gradient
            delta = (matmul(delta, parameters[2 * i].T) * inputs * (1 - inputs)).astype(dtype)
    return gradients[::-1]


class Adam:
    """Adam; changes the float32 master weights in place."""

    def __init__(self, master):
        self.master, self.count = master, 0
        self.mean = [np.zeros_like(p) for p in master]
        self.square = [np.zeros_like(p) for p in master]

    def step(self, gradients):
        self.count += 1
        # Adam divides gradients by their size. With epsilon times the loss's weight, float16's rounding is the only
        # difference between the runs.
        epsilon = 1e-8 * LOSS_WEIGHT
        for weights, g, mean, square in zip(self.master, gradients, self.mean, self.square, strict=True):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            root = np.sqrt(square / (1 - 0.999**self.count)) + epsilon
            weights -= LEARNING_RATE * mean / (1 - 0.9**self.count) / root


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python digits.py FILE")
    data = np.fromfile(sys.argv[1], np.uint8)
    if data.size != DIGITS * (LAYERS[0] + 1):
        sys.exit(f"{sys.argv[1]} is not 1,797 records of {LAYERS[0] + 1} bytes")
    data = data.reshape(DIGITS, -1)
    digits = (data[:, :-1] / 16).astype(np.float32), data[:, -1]

    # The start is too high on purpose and the interval short, to show the scale move.
    scaler = Scaler("torch", init_scale=2.0**40, growth_interval=25)
    print(f"{'training':<16} {'accuracy':>8} {'skipped':>9} {'growths':>9} {'final scale':>13}")
    float32 = train("float32", np.float32, Scaler("none"), *digits)
    float16 = train("float16", np.float16, Scaler("none"), *digits)
    scaled = train("float16, scaled", np.float16, scaler, *digits)
    if float16 > float32 - 0.10 or abs(scaled - float32) > 0.02:
        sys.exit("float16 should fail without a scaler and match float32 with it")


if __name__ == "__main__":
    main()
