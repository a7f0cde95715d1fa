# SPDX-License-Identifier: MIT
"""Trains in float16 in JAX, on real data: a small network learns to read handwritten digits.

    python digits.py FILE

FILE is as in ../digits.py. The network trains three times from the same start: in float32; with float16 weights,
activations and gradients; and in float16 with a scaler, which lax.scan carries from batch to batch. The loss is
weighted 1e-4, as for an auxiliary head, so most gradients are too small for float16, which rounds them to zero.

The exit status is 1 if float16 does not fail without scaling, or does not match float32 with it.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradscaler.jax
from gradscaler.jax import Scaler, select_tree

LAYERS = (64, 64, 64, 10)
EPOCHS, BATCH, LEARNING_RATE = 80, 256, 0.01
DIGITS, TRAINING_SET = 1797, 5 * BATCH
LOSS_WEIGHT = 1e-4

# Adam divides gradients by their size. With epsilon times the loss's weight, float16's rounding is the only difference
# between the runs.
optimizer = optax.adam(LEARNING_RATE, eps=1e-8 * LOSS_WEIGHT)


def forward(params, images):
    for weight, bias in params[:-1]:
        images = jax.nn.sigmoid(images @ weight + bias)
    weight, bias = params[-1]
    return images @ weight + bias


def loss(params, images, labels):
    logits = forward(params, images).astype(jnp.float32)  # the loss itself needs float32
    return LOSS_WEIGHT * optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def train_epoch(dtype, carry, batches):
    """Trains one epoch, as one program that is compiled once."""

    def step(carry, batch):
        scaler, params, state = carry
        images, labels = batch
        narrow = jax.tree.map(lambda p: p.astype(dtype), params)
        grads = jax.grad(lambda p: scaler.scale(loss(p, images.astype(dtype), labels)))(narrow)

        # All gradients in one call: check, divide by the scale, convert to float32.
        grads, report = scaler.unscale(grads, dtype=jnp.float32)
        scaler = scaler.update(report)
        updates, new_state = optimizer.update(grads, state)
        new = optax.apply_updates(params, updates), new_state
        params, state = select_tree(scaler.skip, (params, state), new)
        return (scaler, params, state), scaler.skip

    return jax.lax.scan(step, carry, batches)[0]


def train(name, dtype, scaler, images, labels):
    """Trains in `dtype` and returns the accuracy on the test digits."""
    rng = np.random.default_rng(1)
    params = initial_parameters(rng)
    carry = scaler, params, optimizer.init(params)
    for _ in range(EPOCHS):
        order = rng.permutation(TRAINING_SET).reshape(-1, BATCH)
        carry = train_epoch(dtype, carry, (images[order], labels[order]))
    scaler, params, _ = carry
    narrow = jax.tree.map(lambda p: p.astype(dtype), params)
    logits = forward(narrow, images[TRAINING_SET:].astype(dtype))
    accuracy = float(np.mean(np.asarray(logits).argmax(axis=1) == labels[TRAINING_SET:]))
    print(
        f"{name:<16} {accuracy:>8.1%} {scaler.total_overflows:>9} {scaler.total_growths:>9} {scaler.loss_scale:>13.0f}"
    )
    return accuracy


def initial_parameters(rng):
    """Returns (weight, bias) of each layer."""
    parameters = []
    for inputs, outputs in zip(LAYERS[:-1], LAYERS[1:], strict=True):
        limit = (6 / (inputs + outputs)) ** 0.5
        weight = rng.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)
        parameters.append((jnp.array(weight), jnp.zeros(outputs)))
    return parameters


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python digits.py FILE")
    data = np.fromfile(sys.argv[1], np.uint8)
    if data.size != DIGITS * (LAYERS[0] + 1):
        sys.exit(f"{sys.argv[1]} is not 1,797 records of {LAYERS[0] + 1} bytes")
    data = data.reshape(DIGITS, -1)
    digits = (data[:, :-1] / 16).astype(np.float32), data[:, -1].astype(np.int32)

    print(f"the work is done by: {gradscaler.jax.backend()!r}")
    # The start is too high on purpose and the interval short, to show the scale move.
    scaler = Scaler("torch", init_scale=2.0**40, growth_interval=25)
    print(f"{'training':<16} {'accuracy':>8} {'skipped':>9} {'growths':>9} {'final scale':>13}")
    float32 = train("float32", jnp.float32, Scaler("none"), *digits)
    float16 = train("float16", jnp.float16, Scaler("none"), *digits)
    scaled = train("float16, scaled", jnp.float16, scaler, *digits)
    if train_epoch._cache_size() != 3:
        sys.exit("one program for each of the three trainings, not one for each scale")
    if float16 > float32 - 0.10 or abs(scaled - float32) > 0.02:
        sys.exit("float16 should fail without a scaler and match float32 with it")


if __name__ == "__main__":
    main()
