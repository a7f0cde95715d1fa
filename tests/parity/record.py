#!/usr/bin/env python3
"""Records scaled gradients of the demo's training for the parity test: record.py FILE (README.md has the format)."""

import importlib.util
import struct
import sys
from pathlib import Path

import numpy as np

import gradscaler

STEPS = 200
F32, F16, BF16 = 1, 3, 4
DTYPES = {"weight1": F16, "bias1": F32, "weight2": BF16, "bias2": F16, "weight3": F32, "bias3": BF16}
FIELDS = {"init_scale": 2.0**40, "growth_interval": 25}


def load_demo():
    path = Path(__file__).resolve().parents[2] / "bindings/python/examples/demo.py"
    spec = importlib.util.spec_from_file_location("demo", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    return module


def stored(grad, dtype):
    """The bytes of a float16 gradient in another dtype; bfloat16 is rounded to nearest even."""
    if dtype == F16:
        return grad.tobytes()
    wide = grad.astype(np.float32)
    if dtype == F32:
        return wide.tobytes()
    bits = wide.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(wide), bits >> 16 | 0x40, rounded).astype("<u2").tobytes()


class Recorder(gradscaler.Scaler):
    """A scaler that keeps what it is asked to unscale."""

    steps, counts = [], {}

    def unscale(self, grads, out):
        if len(self.steps) < STEPS:
            self.counts = {name: grads[name].size for name in DTYPES}
            self.steps.append(b"".join(stored(grads[name], dtype) for name, dtype in DTYPES.items()))
        return super().unscale(grads, out)


def main():
    demo = load_demo()
    demo.EPOCHS = STEPS // 5
    recorder = Recorder("torch", **FIELDS)
    demo.train("recording", np.float16, demo.load_data(), recorder)
    settings = ",".join(
        f"{name}={value.hex() if isinstance(value, float) else value}" for name, value in FIELDS.items()
    )
    with open(sys.argv[1], "wb") as file:
        file.write(f"torch {settings}\n".encode())
        file.write(struct.pack("<II", len(recorder.steps), len(DTYPES)))
        for name, dtype in DTYPES.items():
            file.write(struct.pack("<IIQ", dtype, 0, recorder.counts[name]))
        file.write(b"".join(recorder.steps))
    print(f"{len(recorder.steps)} steps, {recorder.total_overflows} with an overflow: {sys.argv[1]}")


if __name__ == "__main__":
    main()
