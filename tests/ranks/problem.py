# SPDX-License-Identifier: MIT
"""A small network to train: a batch in shards, and the start of its parameters."""

import numpy as np

SHARDS, ROUNDS, INPUTS, HIDDEN, OUTPUTS, SAMPLES = 4, 30, 16, 32, 4, 64


def batch():
    random = np.random.default_rng(3)
    images = random.standard_normal((SAMPLES, INPUTS)).astype(np.float32)
    return images, np.sin(images @ random.standard_normal((INPUTS, OUTPUTS)).astype(np.float32))


def start():
    random = np.random.default_rng(4)
    return [
        random.standard_normal((INPUTS, HIDDEN)) / 4,
        np.zeros(HIDDEN),
        random.standard_normal((HIDDEN, OUTPUTS)) / 6,
        np.zeros(OUTPUTS),
    ]
