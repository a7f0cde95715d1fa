#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The report of a GPU is written whatever torch does beside it: tests/bench/gpu.py with a torch that fails."""

import contextlib
import json
import sys
import tempfile
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import gpu

ROW = {"calls_ms": 1.0, "graph_ms": 1.0, "of_copy_bandwidth": 0.5}
OURS = {
    "device": "A Device",
    "driver": "12.4",
    "gradscaler": "0.1.0",
    "compared": 1,
    "bench": [{"name": f"GPT-2 {dtype}, unscale + check", **ROW} for dtype in ("f32", "bf16")],
}


def report_with(milliseconds):
    """The report after torch measured with this function, which may end the program; as JSON and as text."""
    torch = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_available=lambda: True), float32=0, float16=1, bfloat16=2, __version__="9"
    )
    torch.empty = lambda n, dtype, device: dtype
    sys.modules["torch"] = torch
    gpu.torch_milliseconds = milliseconds
    gpu.run = lambda *command: json.dumps(OURS) if "--json" in command else "all recordings\n"
    with tempfile.TemporaryDirectory() as folder:
        gpu.RESULTS = Path(folder)
        with contextlib.suppress(SystemExit):
            gpu.main("program")
        return json.loads((gpu.RESULTS / "a-device.json").read_text()), (gpu.RESULTS / "a-device.txt").read_text()


def no_bfloat16(torch, grads, norm):
    if grads[0] == torch.bfloat16:
        raise RuntimeError("no kernel for BFloat16\nand a trace")
    return 2.0


report, text = report_with(no_bfloat16)
assert report["torch"]["milliseconds"]["GPT-2 f16, unscale + check + norm"] == 2.0
assert "GPT-2 bf16, unscale + check" not in report["torch"]["milliseconds"]
assert "GPT-2 bf16, unscale + check: no kernel for BFloat16; " in text and "trace" not in text

report, text = report_with(lambda *_: sys.exit(1))
assert [row["name"] for row in report["bench"]] == [row["name"] for row in OURS["bench"]]
assert report["torch"]["version"] is None and "torch: it ended the measurement" in text
