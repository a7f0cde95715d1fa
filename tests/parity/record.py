#!/usr/bin/env python3
"""Records the losses and scaled gradients of a training for the parity test: record.py FILE (README.md: the format)."""

import struct
import sys
from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

import gradscaler

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bindings/python/examples"))
import float16  # noqa: E402

STEPS = 200
F32, F16, BF16 = 1, 3, 4
TYPES = {F32: np.float32, F16: np.float16, BF16: bfloat16}
DTYPES = {"weight1": F16, "bias1": F32, "weight2": BF16, "bias2": F16, "weight3": F32, "bias3": BF16}
FIELDS = {"init_scale": 2.0**40, "growth_interval": 25, "bad_loss_rule": 1, "max_failed_backoffs": 10}
BAD_LOSSES = 60, 61, 130  # steps with a NaN in the data


class Recorder(gradscaler.Scaler):
    """A scaler that keeps what it is asked to unscale."""

    steps, counts = [], {}

    def unscale(self, grads, out):
        self.counts = {name: grads[name].size for name in DTYPES}
        loss = np.float32(np.nan if len(self.steps) in BAD_LOSSES else 1)
        grads = {name: grads[name] * loss.astype(np.float16) for name in DTYPES}
        tensors = [grads[name].astype(TYPES[dtype]).tobytes() for name, dtype in DTYPES.items()]
        self.steps.append(loss.tobytes() + b"".join(tensors))
        return super().unscale(grads, out, loss=loss)


def main():
    float16.EPOCHS = STEPS // 5
    recorder = Recorder("torch", **FIELDS)
    float16.train("recording", np.float16, float16.load_data(), recorder)
    settings = ",".join(f"{name}={value}" for name, value in FIELDS.items())
    with open(sys.argv[1], "wb") as file:
        file.write(f"torch {settings}\n".encode())
        file.write(struct.pack("<II", len(recorder.steps), len(DTYPES)))
        for name, dtype in DTYPES.items():
            file.write(struct.pack("<IIQ", dtype, 0, recorder.counts[name]))
        file.write(b"".join(recorder.steps))
    print(
        f"{len(recorder.steps)} steps, {recorder.total_overflows} with an overflow, "
        f"{recorder.total_bad_losses} with a bad loss: {sys.argv[1]}"
    )


if __name__ == "__main__":
    main()
