#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The model of the GPU's hot loops: it reproduces the shares that it was fitted to, and sees what waits for a load."""

import gpu_model

# Loops of the kernels of 0.3.0 on sm_90: bytes, cycles of the busiest pipe, cycles, instructions and exposed latencies
# of a round; the model's shares of an H200's copy bandwidth at 900 ns and at 650 ns; those that were read from the
# machine code by hand. No number of the model changes but by what a device measured, and then with those shares.
LOOPS = [
    ((128, 233, 549, 233, 2), (0.923, 0.933), (0.88, 0.95)),  # f32, store
    ((128, 281, 801, 281, 2), (0.920, 0.930), (0.85, 0.92)),  # f32, store + norm
    ((64, 338, 562, 338, 3), (0.617, 0.756), (0.65, 0.80)),  # f16, store
    ((64, 386, 638, 386, 3), (0.604, 0.736), (0.60, 0.72)),  # f16, store + norm
    ((32, 360, 589, 360, 3), (0.317, 0.403), (0.30, 0.40)),  # f16, check + norm
    ((64, 394, 497, 372, 3), (0.612, 0.745), (0.60, 0.75)),  # bf16, store
    ((32, 620, 619, 520, 3), (0.280, 0.323), (0.25, 0.33)),  # f8_e4m3fn and f8_e5m2, store
    ((32, 105, 91, 105, 1), (0.839, 0.899), None),  # f64, check + norm
    ((96, 754, 1631, 679, 4), (0.589, 0.688), None),  # cb16, add
    ((64, 483, 1545, 483, 4), (0.433, 0.539), None),  # f16 unaligned, store + norm
    ((160, 335, 766, 335, 4), (0.883, 0.915), None),  # bf16 into f32, unaligned, add
]
# torch._foreach_copy_ between lists of 512 x 512 on an RTX 6000 Ada: tensors, bytes of an element read and written, and
# microseconds (pytorch pull request 121717, f32 and f16 to each other). A launch has 64 tensors and a block of 512
# threads 65,536 elements (ATen's MultiTensorApply.cuh): here two blocks. Its copies reach 850 GB/s, as the first row
# says; of the others the model knows nothing.
FOREACH = [(1024, 8, 2768.0), (256, 8, 688.0), (1024, 6, 2053.3), (256, 6, 510.3), (1024, 6, 1991.9), (256, 6, 497.6)]
FOREACH += [(1024, 4, 1392.0), (256, 4, 344.3)]
ADA = (89, 2.5, 850, 142, (500, 700), 100, 1536)


def line(address, text, stall=1, result=7, waits=0):
    """As nvdisasm prints an instruction, with the bits that say when its warp goes on."""
    control = (stall | result << 5 | 7 << 8 | waits << 11) << 41
    return f"        /*{address:04x}*/  {text} ;  /* 0x{0:016x} */\n  /* 0x{control:016x} */\n"


def exposed(*body):
    """The latencies that a round of four loads exposes, of a loop of these instructions."""
    text = "\t.section .text.gsc_cuda_chunks\n$gsc_cuda_chunks$quick_f32_f32:\n.L_x_1:\n"
    for n, instruction in enumerate([*body, ("IADD3 R2, R2, 0x10, RZ",), ("@P0 BRA `(.L_x_1)",)]):
        text += line(16 * n, *instruction)
    row, *_ = gpu_model.rows_of(text, 90, 1.98)
    assert (row["loads"], row["elements"], row["instructions"]) == (4, 16, len(body) + 2)
    return row


def load(n):
    return f"LDG.E.128 R{8 + 4 * n}, [R2+{n}]", 1, n


def use(n):
    return f"FMUL R{8 + 4 * n}, R{8 + 4 * n}, R0", 4, 7, 1 << n


def store(n):
    return f"STG.E.128 [R4+{n}], R{8 + 4 * n}"


STORES = [(store(n),) for n in range(4)] + [("IADD3 R4, R4, 0x10, RZ",)]
together = exposed(*map(load, range(4)), *map(use, range(4)), *STORES)
assert together["exposed"] == 1 and not gpu_model.one_by_one([together])
after = exposed(*(step for n in range(4) for step in (load(n), use(n))), *STORES)
assert after["exposed"] == 4 and len(gpu_model.one_by_one([together, after])) == 1

gpu_model.DEVICES["Ada"] = ADA
for tensors, size, published in FOREACH:
    copy = {"bytes": 4 * size, "busiest_cycles": 40, "cycles": 60, "instructions": 40, "exposed": 1}
    for latency, launch in zip(ADA[4], gpu_model.LAUNCH, strict=True):
        time = gpu_model.blocks_time(copy, "Ada", latency, 6, [[gpu_model.CHUNK // 2 * size]] * 512, 5 * latency)
        predicted = tensors / 64 * (launch + time) / 1000
        assert 0.98 < predicted / published < 1.06, f"{predicted:.0f} us, published {published}: {tensors}, {size}"

for counts, expected, by_hand in LOOPS:
    row = dict(zip(("bytes", "busiest_cycles", "cycles", "instructions", "exposed"), counts, strict=True))
    held = tuple(round(gpu_model.share(row, "H200", latency, 8), 3) for latency in (900, 650))
    assert held == expected, f"the model has changed: {held} instead of {expected}: {row}"
    assert max(abs(a - b) for a, b in zip(held, by_hand or held, strict=True)) < 0.075, f"by hand {by_hand}: {row}"
