"""The Python client of the parity test; tests/parity/README.md says what is read and printed."""

import hashlib
import struct
import sys

import numpy as np
from ml_dtypes import bfloat16

from gradscaler import Scaler, Want

DTYPES = {1: np.float32, 2: np.float64, 3: np.float16, 4: bfloat16}
WANT = Want.COUNTS | Want.FIRST_BAD | Want.NORM | Want.AMAX | Want.UNDERFLOW | Want.HISTOGRAM


def number(text):
    return float.fromhex(text) if "x" in text else int(text)


def read(file, layout):
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def main():
    with open(sys.argv[1], "rb") as file:
        preset, settings = file.readline().decode().split()
        fields = dict(item.split("=") for item in settings.split(","))
        scaler = Scaler(preset, **{name: number(text) for name, text in fields.items()})
        steps, tensors = read(file, "<II")
        table = [read(file, "<IIQ") for _ in range(tensors)]
        digest = hashlib.sha256()
        for step in range(steps):
            grads = [
                np.frombuffer(file.read(count * np.dtype(DTYPES[dtype]).itemsize), DTYPES[dtype])
                for dtype, _, count in table
            ]
            report = scaler.unscale(grads, dtype=np.float32, want=WANT)
            again = scaler.scale(report.grads[0], dtype=grads[0].dtype)
            scaler.update(report)
            for part in (*report.grads, again, report, scaler.state):
                digest.update(part)
            if step + 1 == steps // 2:
                state = scaler.state_dict()
                digest.update(bytes.fromhex(state["saved"]))
                scaler = Scaler()
                scaler.load_state_dict(state)
    print(digest.hexdigest(), scaler.skipped, repr(scaler.loss_scale))


if __name__ == "__main__":
    main()
