# SPDX-License-Identifier: MIT
"""The Python client of the parity test; tests/parity/README.md says what is read and printed."""

import struct
import sys
import zlib

import numpy as np
from ml_dtypes import bfloat16

from gradscaler import Scaler, Want
from gradscaler import _gradscaler as c

DTYPES = {1: np.float32, 2: np.float64, 3: np.float16, 4: bfloat16}
REPORT = "found_inf:f overflow:i status:i measured:I generation:Q amax:d sum_squares:d elements:q nan_count:q "
REPORT += "inf_count:q first_tensor:q first_element:q last_tensor:q underflows_to_zero:q underflows_to_subnormal:q "
REPORT += "clamped:q"
FACTOR = "scale:d inverse:d scale_f32:f inverse_f32:f generation:Q"
STATE = "good_steps:q steps_since_change:q overflows_since_reset:q failed_backoffs:q bad_losses_in_a_row:q "
STATE += "events:I status:i total_updates:q total_overflows:q total_bad_losses:q total_growths:q total_backoffs:q "
STATE += "skip_f32:f"


def number(text):
    return int(text) if text.isdecimal() else float(text)


def read(file, layout):
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def packed(thing, fields):
    """Fields by name, little-endian and without gaps."""
    names, layouts = zip(*(field.split(":") for field in fields.split()), strict=True)
    return struct.pack("<" + "".join(layouts), *(getattr(thing, name) for name in names))


def main():
    with open(sys.argv[1], "rb") as file:
        preset, settings = file.readline().decode().split()
        fields = dict(item.split("=") for item in settings.split(","))
        scaler = Scaler(preset, **{name: number(text) for name, text in fields.items()})
        steps, tensors = read(file, "<II")
        table = [read(file, "<IIQ") for _ in range(tensors)]
        digest = 0
        for step in range(steps):
            loss = np.frombuffer(file.read(4), np.float32)
            dtypes = [(np.dtype(DTYPES[number]), count) for number, _, count in table]
            grads = [np.frombuffer(file.read(count * dtype.itemsize), dtype) for dtype, count in dtypes]
            report = scaler.unscale(grads, dtype=np.float32, want=sum(Want), histogram=True, loss=loss)
            again = scaler.scale(report.grads[0], dtype=grads[0].dtype)
            scaler.update(report)
            parts = [*report.grads, again, packed(report, REPORT)]
            parts += [struct.pack("<17q", *report.histogram, report.histogram_elements)]
            parts += [packed(factor, FACTOR) for factor in (scaler.factor, scaler.next_factor)]
            parts += [packed(scaler.state, STATE)]
            parts += [name.encode() + struct.pack("<d", value) for name, value in scaler.metrics(report).items()]
            parts.append(c.gsc_history_line(scaler.state, report, None, None, None, step + 1, 0, "parity"))
            if step + 1 == steps // 2:
                state = scaler.state_dict()
                scaler = Scaler()
                scaler.load_state_dict(state)
                parts.append(c.gsc_history_start(scaler.policy, None, scaler.state, None, step + 2, 0, 0, "parity"))
            for part in parts:
                digest = zlib.crc32(part, digest)
    print(f"{digest:08x}", scaler.total_overflows + scaler.total_bad_losses, repr(scaler.loss_scale))


if __name__ == "__main__":
    main()
