#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Predicts without a device which share of its copy bandwidth each hot loop of the CUDA kernels reaches.

    gpu_model.py TOOLS [--json FILE] [--check] [--before FILE]    TOOLS: a folder with ptxas and nvdisasm

The method: ptxas assembles the PTX of the library for sm_75, sm_80 and sm_90; nvdisasm prints the code with each
instruction's stall count and scoreboards, which say when its warp goes on. In each function the loop that loads the
most is the hot one, and the operation is the cheapest way around it with all stores (or none: check) and all double
additions (norm; or none). One warp is stepped along that way: a load answers after the memory's latency, everything
else of variable length after SHORT cycles. Its time per round is cycles + exposed * latency: loads that are issued
before the first wait expose one latency, a prefetch that is moved within its row one each, as the move waits for it.
A processor is a closed queue (mean value analysis, Schweitzer): its warps pass that time, and wait for the issue slots
or the busiest pipe of their scheduler, one of four, and for the processor's part of the bandwidth, CEILING of copy's.
So a share is the least of Little's law, issue and memory, rounded where they meet: of a list without an end. Of a list
of tensors, all processors hold blocks, each of which runs chunk after chunk, and they share what so many reach. A block
waits for the factor first; the last chunks run with fewer beside them; the launch and the reports take their time. The
numbers of H200 and CEILING reproduce the shares in gpu_model_test.py; numbers of the other devices are the vendor's, at
four fifths of the bandwidth and with a guessed latency. None has been measured.
"""

import argparse
import heapq
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda"))
import models
import ptxas

# For each processor: GHz, GB/s of a copy by all (bytes read and written), processors, latency in ns from and to, KiB of
# shared memory, threads.
DEVICES = {
    "T4": (75, 1.59, 256, 40, (500, 700), 64, 1024),
    "A100": (80, 1.41, 1244, 108, (550, 750), 164, 2048),
    "H100": (90, 1.98, 2680, 132, (650, 900), 228, 2048),
    "H200": (90, 1.98, 4300, 132, (650, 900), 228, 2048),
}
CEILING = 0.95  # of copy, of a kernel of loads and stores alone
PORT = 64  # bytes of a cycle that a processor gets at most, by the vendor: a bound if few have work
SHORT = 25  # cycles
SCHEDULERS, WARP, BLOCK = 4, 32, 256
# ns of a launch after another, with a kernel that does next to nothing. On a GB200 a copy of 3,846,148 bytes, which is
# two operations, takes 1,182 ns longer in a graph than one of 3,846,144, and 1,796 ns in a stream (pytorch issue
# 191284). On a V100 it is 500 and 900 ns beside the kernel's own 2.9 us (NVIDIA, "Getting Started with CUDA Graphs").
LAUNCH = 1182, 1796
# ns of what the second-level cache has: a hit takes 222 to 339 cycles on an idle L40 (arXiv 2606.22588).
CACHE = 200, 300
# Cycles of a block for the results of a chunk and the search of the next, and of the last block for the reports. What
# that one waits for, in hits of the cache: fences, its ticket, the report; and for each of its passes over so many
# chunks, which then are in the first-level cache, and in which a thread adds so many at a time.
CHUNK_CYCLES, END_CYCLES, END_HITS = 2000, 3000, 6
PASS, RUN, STEP, STEP_CYCLES = 2048, 64, 4, 80
CHUNK, HELD = 65536, 4  # elements; GSC_CUDA_BLOCKS_PER_PROCESSOR
LISTS = {"GPT-2": models.counts_of_gpt(*models.GPT2), "1M": [1 << 20]}  # elements of tensors
SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "cb16": 2, "f8_e4m3fn": 1, "f8_e5m2": 1}

# Cycles for which an instruction of a warp keeps a pipe of its scheduler, by architecture: 32 lanes over the lanes of
# the pipe ("throughput of native arithmetic instructions" in the CUDA programming guide, a quarter of a processor's).
PIPES = {
    "integer": (
        {75: 2, 80: 2, 90: 2},
        r"LOP3|I(ADD3|SETP|MNMX)|V(IADD|IMNMX3?)|SEL|SHF|SGXT|PRMT|LEA|PLOP3|[FU]?MNMX|F(SEL|SETP|MNMX)",
    ),
    "float": ({75: 2, 80: 2, 90: 1}, r"F(ADD|MUL|FMA)|HADD2|HMUL2|HFMA2"),
    "multiply": ({75: 2, 80: 2, 90: 2}, r"IMAD"),
    "convert": ({75: 8, 80: 8, 90: 8}, r"F2F|F2I|I2F|MUFU"),
    "double": ({75: 64, 80: 4, 90: 2}, r"D(ADD|MUL|FMA|SETP)"),
}


# ---- the code ----


@dataclass(eq=False)
class Instruction:
    address: int
    guard: str  # the predicate that it is executed under: "P0", "!P0", "" for always
    opcode: str
    operands: str
    stall: int  # cycles until the same warp's next
    sets: list  # scoreboards that it holds until it has written, until it has read
    waits: list  # scoreboards that it waits for
    target: int = None  # of a branch

    @cached_property
    def name(self):
        return self.opcode.split(".")[0]

    @cached_property
    def bytes(self):
        """That a load or store moves for one thread."""
        for name, size in {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}.items():
            if name in self.opcode.split("."):
                return size
        return 4

    @cached_property
    def pointer(self):
        """The register that global memory is addressed by, or ""."""
        found = self.name in ("LD", "LDG", "ST", "STG") and re.search(r"(?<!desc)\[(R\d+)", self.operands)
        return found[1] if found else ""

    @cached_property
    def result(self):
        """Returns whether its first operand is its result."""
        return not self.name.startswith(("ST", "RED"))

    @cached_property
    def leaves(self):
        return self.name in ("BRA", "EXIT", "RET", "BRX", "JMX")

    @cached_property
    def always(self):
        return not self.guard and not re.match(r"!?U?P\d", self.operands)


FIRST = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;?\s*/\* 0x\w{16} \*/")
SECOND = re.compile(r"\s*/\* 0x(\w{16}) \*/")


def functions(text):
    """The code that `nvdisasm -c -hex` prints: lists of instructions by kernel and function."""
    found, labels, branches, waiting = {}, {}, [], []
    kernel = function = first = None
    for line in text.splitlines():
        if m := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            kernel = function = m[1]
        elif m := re.match(r"(\.L_x_\d+|\$[\w$]+):", line):
            waiting.append(m[1])
            if m[1].startswith("$"):
                function = m[1].split("$")[-1]
        elif m := FIRST.match(line):
            first = m
        elif first and (m := SECOND.match(line)):
            # Bits 105 to 121: stall, yield, the scoreboards of its results and of its operands, those it waits for.
            control = int(m[1], 16) >> 41
            instruction = Instruction(
                int(first[1], 16),
                first[2] or "",
                first[3],
                re.sub(r"\(\*.*?\*\)", "", first[4]).strip(" ;"),
                max(control & 15, 1),
                [control >> 5 & 7, control >> 8 & 7],
                [s for s in range(6) if control >> 11 & 1 << s],
            )
            labels.update({(kernel, label): instruction.address for label in waiting})
            if instruction.name == "BRA" and (label := re.search(r"`\((\.L_x_\d+)\)", instruction.operands)):
                branches.append((kernel, label[1], instruction))
            found.setdefault((kernel, function), []).append(instruction)
            first, waiting = None, []
    for kernel, label, instruction in branches:
        instruction.target = labels[kernel, label]
    return found


@dataclass
class Loop:
    code: list  # of the function
    start: int  # index of its first instruction
    loads: set  # of the input
    olds: set  # of the output, for what is added to it
    stores: set


def moving_pointers(body):
    """The accesses to global memory by pointers that move with the loop of these instructions, and what each pointer is
    made of: registers as they were before the body, places on the stack, and what was read from elsewhere."""
    made = {}  # of a register or place on the stack, by the predicate under which it was written: what it is made of
    pointers, results, states = {}, set(), {}  # states: of `made`, at the targets of branches

    def of(register, guard):
        ways = made.get(register, {"": {register}})
        return ways[guard] if guard in ways else set().union(*ways.values())

    for i in body:
        for other in states.pop(i.address, []):
            before = made or other
            made = {}
            for register in before.keys() | other.keys():
                a, b = before.get(register, {"": {register}}), other.get(register, {"": {register}})
                made[register] = {guard: a.get(guard, set()) | b.get(guard, set()) for guard in a.keys() | b.keys()}
        if i.pointer:
            pointers[i] = of(i.pointer, i.guard)
        if i.target and i.target > i.address:
            states.setdefault(i.target, []).append(dict(made))
        if i.leaves and i.always:
            made = {}
        places = re.findall(r"\[.*?\]" if i.name in ("LDL", "STL") else r"\bU?R\d+\b", i.operands)
        result = i.result and re.match(r"U?R\d+", i.operands)
        if i.name == "STL":
            written, parts = places[0], of(re.findall(r"\w+", i.operands.removesuffix(".reuse"))[-1], i.guard)
        elif not result:
            continue
        elif i.name.startswith("LD") and i.name != "LDL":
            written, parts = result[0], {i.operands[result.end() :]}
        else:
            sources = places if i.name == "LDL" else places[1:]
            written, parts = result[0], set().union(*(of(source, i.guard) for source in sources))
        results.add(written)
        made[written] = (made.get(written, {"": {written}}) if i.guard else {}) | {i.guard: parts}
    return {i: parts for i, parts in pointers.items() if parts & results}


def hot_loop(code):
    """The loop that loads the most by pointers that move with it, or None."""
    where = {i.address: n for n, i in enumerate(code)}
    loops = []
    for end, branch in enumerate(code):
        start = where.get(branch.target, end + 1)
        if start > end:
            continue
        body = code[start : end + 1]
        data = moving_pointers(body)
        stores = {i for i in data if i.name.startswith("ST")}
        loads = data.keys() - stores
        # Input and output are made of something of their own, beside the row that both are counted by.
        shared = set.intersection(*data.values()) if data else set()
        to = set().union(*(data[i] for i in stores)) - shared
        olds = {i for i in loads if data[i] & to}
        if loads:
            loops.append(Loop(code, start, loads - olds or loads, olds if loads - olds else set(), stores))
    return max(loops, key=lambda loop: sum(i.bytes for i in loop.loads), default=None)


def way_around(loop, cost):
    """The instructions from the loop's first back to it for which the sum of `cost`, a tuple each, is the least."""
    code, where = loop.code, {i.address: n for n, i in enumerate(loop.code)}
    best, last = {loop.start: (None, None)}, None
    for n in range(loop.start, len(code)):
        if n not in best:
            continue
        i, before = code[n], best[n][0]
        spent = cost(i) if before is None else tuple(a + b for a, b in zip(before, cost(i), strict=True))
        following = [where[i.target]] if i.target in where else []
        if not (i.leaves and i.always):
            following.append(n + 1)
        for m in following:
            if m == loop.start:
                last = min(last or (spent, n), (spent, n))
            elif n < m < len(code) and (m not in best or spent < best[m][0]):
                best[m] = spent, n
    way, n = [], last and last[1]
    while n is not None:
        way.append(code[n])
        n = best[n][1]
    return way[::-1]


def as_often(loop, way, written, times):
    """The way around with the loop within, of the rows that were loaded together, as often as it goes around."""
    first, last = loop.code[loop.start].address, max(i.address for i in way)
    inner = [
        (i.target, i.address)
        for i in loop.code
        if i.target and first < i.target < i.address <= last and i.target <= written[0].address <= i.address
    ]
    if times == 1 or not inner:
        return way
    start, end = max(inner, key=lambda at: at[1] - at[0])
    body = [n for n, i in enumerate(way) if start <= i.address <= end]
    return way[: body[0]] + way[body[0] : body[-1] + 1] * times + way[body[-1] + 1 :]


def as_vectors(accesses, vectors=True):
    """Returns the accesses to vectors, or those that are made instead if only elements are aligned."""
    widest = max((i.bytes for i in accesses), default=0)
    return {i for i in accesses if (i.bytes == widest) == vectors} or set(accesses)


def of_size(accesses, size):
    """Returns the accesses to elements of a size, or to vectors of four: two accesses side by side are elements."""

    def place(i):
        register, offset = re.findall(r"\[(R\d+)[^]+]*(?:\+(-?0x\w+))?\]", i.operands)[-1]
        return i.guard, register, int(offset or "0", 16), i.bytes

    def is_element(guard, register, offset, n):
        return bool({(guard, register, offset + n, n), (guard, register, offset - n, n)} & places)

    places = set(map(place, accesses))
    return {i for i in accesses if i.bytes == (size if is_element(*place(i)) else min(4 * size, 16))}


def once(accesses):
    """Without what is made instead, at the same place, under the opposite predicate."""
    places = [(i.guard, re.findall(r"\[R\d+.*?\]", i.operands)) for i in accesses]
    return [i for i, (guard, place) in zip(accesses, places, strict=True) if (f"!{guard}", place) not in places]


# ---- one warp, and many ----


def round_time(way, slow, latency):
    """Cycles that a warp alone takes for a round, once it goes on and on; `slow` are answered after `latency`."""
    ready, now, ends = [0] * 8, 0, []
    for _ in range(5):
        for i in way:
            now = max([now, *(ready[s] for s in i.waits)])
            result, operands = i.sets
            ready[result] = max(ready[result], now + (latency if i in slow else SHORT))
            ready[operands] = max(ready[operands], now + SHORT)
            now += i.stall
        ends.append(now)
    return (ends[-1] - ends[1]) / 3


def busiest(way, architecture):
    """Returns what limits a scheduler, and the cycles that it needs for a round of a warp."""
    cycles = Counter({"issue": len(way)})
    for pipe, (each, names) in PIPES.items():
        cycles[pipe] = each[architecture] * sum(bool(re.fullmatch(names, i.name)) for i in way)
    if architecture == 75:  # to and from double on the double pipe
        cycles["double"] += 64 * sum("F64" in i.opcode for i in way if i.name == "F2F")
    return cycles.most_common(1)[0]


def share(row, device, latency, warps, processors=None):
    """Returns the share of copy bandwidth, by a row's counts; `warps` of a scheduler, `latency` in ns."""
    _, clock, copy, all_processors, *_ = DEVICES[device]
    processors = processors or all_processors
    part = min(copy * CEILING / processors, PORT * clock)
    memory = WARP * row["bytes"] / part  # ns of a round: of a processor's part of the memory,
    issue = row["busiest_cycles"] / clock  # of its scheduler,
    alone = (row["cycles"] - row["instructions"]) / clock + row["exposed"] * latency  # and of the warp itself
    at_issue = at_memory = 1.0
    for _ in range(400):
        in_issue = issue * (1 + at_issue * (1 - 1 / warps))
        in_memory = memory * (1 + at_memory * (SCHEDULERS * warps - 1) / warps)
        rounds = warps / (alone + in_issue + in_memory)
        at_issue, at_memory = (at_issue + rounds * in_issue) / 2, (at_memory + rounds * in_memory) / 2
    return rounds * SCHEDULERS * WARP * row["bytes"] * processors / copy


def blocks_time(row, device, latency, held, blocks, start, between=0):
    """ns of a launch of blocks. Each is a list of the bytes that its chunks move; a processor holds so many blocks at
    once. A block waits `start` ns before its first chunk, and `between` ns before each other one."""
    _, _, copy, processors, *_ = DEVICES[device]

    @cache
    def speed(running):  # bytes per ns of each
        used = min(running, processors)
        return share(row, device, latency, running / used * BLOCK / WARP / SCHEDULERS, used) * copy / running

    waiting, starting, running = deque(map(deque, blocks)), [], []  # running: by what each has moved at its chunk's end
    now = moved = 0.0
    while waiting or starting or running:
        while waiting and len(starting) + len(running) < held * processors:
            heapq.heappush(starting, (now + start, waiting.popleft()))
        each = speed(-(-len(running) // 16) * 16) if running else 0
        end = (running[0][0] - moved) / each if running else math.inf
        begin = starting[0][0] - now if starting else math.inf
        now += min(begin, end)
        moved += min(begin, end) * each
        if end > begin:
            _, chunks = heapq.heappop(starting)
            heapq.heappush(running, (moved + chunks.popleft(), chunks))
        else:
            _, chunks = heapq.heappop(running)
            if chunks:
                heapq.heappush(starting, (now + between, chunks))
    return now


def list_share(row, device, latency, hit, launch, tensors):
    """Returns the share of copy bandwidth for a call on a list of tensors: unscale, with a report."""
    _, clock, copy, processors, *_ = DEVICES[device]
    per_element = row["bytes"] / row["elements"]
    chunks = [min(CHUNK, n - i) * per_element for n in tensors for i in range(0, n, CHUNK)]
    blocks = min(len(chunks), HELD * processors)
    start, between = latency + CHUNK_CYCLES / clock, CHUNK_CYCLES / clock
    if blocks <= processors:  # each loads its chunk into the cache ahead
        start, latency = start + latency, hit
    time = blocks_time(row, device, latency, HELD, [chunks[i::blocks] for i in range(blocks)], start, between)
    longest = -(-max(tensors) // CHUNK)
    steps, passes = -(-min(longest, RUN) // STEP), -(-len(chunks) // PASS)
    hits = END_HITS + passes + -(-longest // (RUN * STEP))
    end = hits * hit + (END_CYCLES + passes * steps * STEP_CYCLES) / clock
    return sum(chunks) / (launch + time + end) / copy


# ---- rows ----

# Instructions that only the rounding to a dtype has, in a function that decides the dtype at run time.
ROUNDING = {
    "f16": r"F2FP?\..*F16",
    "bf16": r"IADD3 .*\b0x7fff\b",
    "cb16": r"V?IADD3? .*\b0x7000000\b",
    "f8_e4m3fn": r"V?IADD3? .*\b0xa000000\b",
    "f8_e5m2": r"V?IADD3? .*\b0xa800000\b",
}
# The dtypes of a function for "narrow" ones, which decides at run time which it is; of one that adds also f16 and bf16.
NARROW = ("cb16", "f8_e5m2", "f8_e4m3fn")
OPERATIONS = {"store": "store", "check": "check", "clip": "clip", "clamp": "clip", "add": "add", "accumulate": "add"}


def ways(loop, named, out=None, dtype=None):
    """By operation: the way around, that without loads, if those are of several rounds, the loads and the stores.
    `named`: the operation that the function's name tells; `out`: the output's dtype, if the function decides it, and
    `dtype`: then the input's."""

    def roundings(dtype):
        pattern = re.compile(ROUNDING.get(dtype, "$"))
        return {i for i in loop.code if pattern.match(f"{i.opcode} {i.operands}")}

    own = roundings(out) if out else set()
    foreign = set().union(*map(roundings, ROUNDING)) - own if out else set()

    def double(i):
        return i.name == "DFMA"

    def no_double(i):
        return -double(i)

    def clips(i):  # compares |x| with the clamp; 0.3.0 counted in `found` instead
        compares = i.name in ("FSETP", "DSETP") and re.search(r"\|R\d+\|, U?R\d", i.operands)
        return bool(compares) or (i.name == "ST" and i not in stores and "+0x48]" in i.operands)

    def no_clip(i):
        return -clips(i)

    def no_end(i):
        return -1

    def cheapest(costs):
        return way_around(loop, lambda i: tuple(cost(i) for cost in costs))

    loads, olds, stores = loop.loads, loop.olds, loop.stores
    if out:
        of_out = of_size(olds | stores, SIZES[out])
        foreign |= {i for i in (olds | stores) - of_out if i.always}
        olds, stores = olds & of_out, stores & of_out
        of_in = of_size(loads, SIZES[dtype])
        foreign |= {i for i in loads - of_in if i.always}
        loads = loads & of_in
    if named not in (None, "add"):
        loads, olds = loads | olds, set()
    # Is it added to, is it written, as vectors, and what is wanted of the way most of all: then few instructions.
    plans = {
        "store": (False, True, True, double),
        "store + norm": (False, True, True, no_double),
        "store + norm, unaligned": (False, True, False, no_double),
        "check + norm": (False, False, True, no_double),
        "clip + norm": (False, True, True, no_clip, no_double),
        "add": (True, True, True, double),
        "slowest": (False, True, True, no_end),
    }
    seen = set()
    for operation, (adds, writes, vectors, *wanted) in plans.items():
        kind = re.split(",| ", operation)[0]
        if (named and kind != named) or (adds and not olds) or (writes and not stores):
            continue
        old = as_vectors(olds, vectors) if adds else set()
        reads, writing = as_vectors(loads, vectors) | old, as_vectors(stores, vectors) if writes else set()
        others = (loads | stores) - reads - writing
        costs = [
            lambda i, others=others: (i in others and i.always) + (i in foreign),
            lambda i: -(i in own),
            lambda i, writing=writing: -i.bytes * (i in writing),
            *([] if kind in ("clip", "slowest") else [clips]),
            *wanted,
            lambda i, old=old: -i.bytes * (i in old),
            lambda i: 1,
        ]
        # If a round can do without loads, they serve several rounds.
        again = cheapest([costs[0], lambda i: i in loads, *costs[1:]])
        if loads & set(again):
            again, way = [], cheapest(costs)
        else:
            way = cheapest([costs[0], lambda i, reads=reads: -i.bytes * (i in reads), *costs[1:]])
        # An access that is always made is part of both ways: compilers share what is alike.
        read = once([i for i in way if i in reads or (i in loads | old and i.always)])
        written = once([i for i in way if i in writing or (writes and i in stores and i.always)])
        if (
            not read
            or ("norm" in operation and not any(map(double, way)))
            or (kind == "clip" and not any(map(clips, way)))
        ):
            continue
        key = tuple(i.address for i in way), tuple(i.address for i in read + written)
        if key not in seen:
            seen.add(key)
            yield operation, way, again, read, written


def pairs(dtypes, named):
    """The dtypes of the input and the output: two; or one, float to each, and others to themselves and float."""
    first, last = dtypes[0], dtypes[-1]
    if first == "narrow":
        if last == "narrow":
            return [(d, d) for d in NARROW]
        return [(d, last) for d in SIZES if d in NARROW or (named == "add" and SIZES[d] == 2)]
    if last == "narrow":
        return [(first, out) for out in NARROW]
    if len(dtypes) > 1 or first == "f64":
        return [(first, last)]
    return [(first, out) for out in SIZES if out in (first, "f32") or (first == "f32" and out != "f64")]


def rows_of(text, architecture, clock):
    """The counts of every hot loop of a module, printed by nvdisasm."""
    code = functions(text)
    names = "\n".join(name for _, name in code)
    plain = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = []
    for ((kernel, _), body), name in zip(code.items(), plain, strict=True):
        name = name.split("(")[0].rpartition(" ")[2] if "<" not in name else re.search(r"\w+<[^(]*>", name)[0]
        dtypes = re.findall(f"(?<![a-z0-9])({'|'.join(SIZES)}|narrow)(?![a-z0-9])", name)
        loop = hot_loop(body)
        if not dtypes or not loop:
            continue
        words = re.findall("|".join(OPERATIONS), name.lower())
        named = OPERATIONS[words[0]] if words else None
        times, stores = 1, []  # that a loop within goes around: its stores are a row's, where the loads are of all
        several = (
            (dtype, out, way)
            for dtype, out in pairs(dtypes, named)
            for way in ways(loop, named, out if len(pairs(dtypes, named)) > 1 else None, dtype)
        )
        for dtype, out, (operation, way, again, read, written) in several:
            if operation == "slowest" and "quick" in name:  # it leaves the loop for other content
                continue
            label = f"{name.split('<')[0]}<{dtype}, {out}>"
            loaded = sum(i.bytes for i in read if i in loop.loads)
            elements = loaded // SIZES[dtype]
            stored = sum(i.bytes for i in written)
            if written:
                times, stores = elements * SIZES[out] // stored, written
            if not elements or (written and stored * times != elements * SIZES[out]):
                what = f"sm_{architecture} {label} {operation}"
                print(f"not understood: {what}: {elements} elements, {stored} bytes written")
                continue
            way = way + again * (times - 1) if again else as_often(loop, way, stores, times)
            loaded += (sum(i.bytes for i in read) - loaded) * (times if again else 1)
            near, far = (round_time(way, read, ns * clock) for ns in (600, 1200))
            exposed = (far - near) / (600 * clock)
            pipe, cycles = busiest(way, architecture)
            rows.append(
                {
                    "architecture": architecture,
                    "kernel": kernel.removeprefix("gsc_cuda_"),
                    "function": label,
                    "in": dtype,
                    "out": out,
                    "operation": operation,
                    "elements": elements,
                    "bytes": loaded + stored * times,
                    "loads": len(read),
                    "load_bytes": loaded,
                    "instructions": len(way),
                    "busiest": pipe,
                    "busiest_cycles": cycles,
                    "cycles": round(near - exposed * 600 * clock),
                    "exposed": round(exposed, 2),
                }
            )
    return rows


def assemble(tools, architecture, ptx):
    """Returns what ptxas says about the kernels, and what nvdisasm prints."""
    with tempfile.TemporaryDirectory() as folder:
        cubin, start = Path(folder, "k.cubin"), time.perf_counter()
        kernels = ptxas.assemble(tools / "ptxas", f"sm_{architecture}", ptx, cubin)
        seconds, size = time.perf_counter() - start, cubin.stat().st_size
        command = [tools / "nvdisasm", "-c", "-hex", cubin]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {"kernels": kernels, "seconds": round(seconds, 2), "cubin_bytes": size}, text


def blocks(device, kernel):
    """Returns how many a processor holds: by threads, by registers, by shared memory. Each block takes 1 KiB more of it
    from sm_80 on."""
    architecture, *_, kib, threads = DEVICES[device]
    registers = -(-kernel["registers"] // 8) * 8 * BLOCK
    shared = kernel["shared"] + (1024 if architecture >= 80 else 0)
    return min(threads // BLOCK, 65536 // registers, kib * 1024 // shared if shared else 99)


def model_of(architecture, tools, ptx):
    """Returns what an architecture needs, and its rows with the shares on the devices that have it."""
    assembled, text = assemble(tools, architecture, ptx)
    devices = {name: d for name, d in DEVICES.items() if d[0] == architecture}
    for kernel in assembled["kernels"].values():
        kernel["blocks"] = {name: blocks(name, kernel) for name in devices}
    rows = rows_of(text, architecture, next(iter(devices.values()))[1])
    for row in rows:
        row["shares"] = {}
        for name, device in devices.items():
            held = assembled["kernels"][row["kernel"]]["blocks"][name]
            ends = list(zip(device[4][::-1], CACHE[::-1], LAUNCH[::-1], strict=True))
            warps = held * BLOCK // WARP / SCHEDULERS
            row["shares"][name] = [round(share(row, name, latency, warps), 3) for latency, *_ in ends]
            if name == "H200":
                row["lists"] = {
                    tensors: [round(list_share(row, name, *end, LISTS[tensors]), 3) for end in ends]
                    for tensors in LISTS
                }
    # full is not called for pairs of dtypes that quick does, which checks narrow ones as if to float.
    quick = {(r["in"], r["out"], r["operation"]) for r in rows if r["function"].startswith("quick")}
    quick |= {(dtype, dtype, "check + norm") for dtype in NARROW}
    full = [r for r in rows if r["function"].startswith("full") and (r["in"], r["out"], r["operation"]) in quick]
    return assembled, [row for row in rows if row not in full]


def model(tools, ptx):
    architectures = sorted({d[0] for d in DEVICES.values()})
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(model_of, tools=tools, ptx=ptx), architectures))
    return {
        "ptx_lines": ptx.count("\n"),
        "assembled": {f"sm_{a}": assembled for a, (assembled, _) in zip(architectures, found, strict=True)},
        "rows": [row for _, rows in found for row in rows],
    }


def one_by_one(rows):
    """A line for each quick loop that exposes more than one latency of memory in a round, or two where it adds."""
    lines = {}
    for r in rows:
        if r["architecture"] == 75:  # a T4's memory is busy with one load of each thread
            continue
        if r["exposed"] > (2.05 if r["operation"] == "add" else 1.05) and "quick" in r["function"]:
            lines.setdefault(f"sm_{r['architecture']} {r['function']}", []).append(
                f"{r['operation']} {r['exposed']:.0f}"
            )
    return [f"{function}: latencies exposed in a round: {', '.join(found)}" for function, found in lines.items()]


def key(row):
    return row["in"], row["out"], row["operation"]


LEGEND = """
Of sm_90, a round of a thread: elements, instructions for 16 of them and for a byte, what keeps its scheduler for the
most cycles, for 16, loads, the latencies that they expose, bytes on their way on average, and in KiB all bytes of a
processor of an H200 at 650 ns (it needs 11, or 21 where nothing is written). Then the share of copy bandwidth at the
longest and the shortest latency, of a list without an end and, on an H200, of calls on GPT-2's gradients and on 1 Mi
elements, with the launch. "slowest" is the longest way that stays in the loop: NaN, clip and all counts at once.
"""


def show(result, before):
    print(f"{result['ptx_lines']} lines of PTX\n")
    print(f"{'kernel':<20}{'registers':>10}{'spilled':>9}{'stack':>7}{'shared':>8}   blocks a processor")
    for architecture, assembled in result["assembled"].items():
        for name, k in assembled["kernels"].items():
            needs = f"{k['registers']:>10}{k['spilled']:>9}{k['stack']:>7}{k['shared']:>8}"
            print(f"{architecture} {name:<14}{needs}   {', '.join(f'{d} {n}' for d, n in k['blocks'].items())}")
        print(f"{architecture}: ptxas takes {assembled['seconds']} s, cubin {assembled['cubin_bytes'] / 1024:.0f} KiB")
    rows = [row for row in result["rows"] if row["architecture"] == 90]
    shares = {}
    for row in result["rows"]:
        for device, (least, most) in row["shares"].items():
            shares[row["function"], row["operation"], device] = f"{least:.2f}-{most:.2f}"
    wide = max(len(f"{row['function']} {row['operation']}") for row in rows)
    print(LEGEND)
    print(
        f"{'':<{wide}}{'el.':>5}{'ins/16':>8}{'ins/B':>7}{'busiest':>14}{'loads':>7}{'exposed':>9}{'B':>5}{'KiB':>5}"
        + "".join(f"{device:>11}" for device in DEVICES)
        + "".join(f"{name:>11}" for name in LISTS)
        + ("  H200 before" if before else "")
    )
    _, clock, _, _, (latency, _), *_ = DEVICES["H200"]
    for row in rows:
        n = row["elements"]
        flight = row["load_bytes"] * min(1, latency / (row["cycles"] / clock + row["exposed"] * latency))
        threads = result["assembled"]["sm_90"]["kernels"][row["kernel"]]["blocks"]["H200"] * BLOCK
        print(
            f"{row['function'] + ' ' + row['operation']:<{wide}}{n:>5}"
            f"{16 * row['instructions'] / n:>8.0f}{row['instructions'] / row['bytes']:>7.1f}"
            f"{row['busiest']:>9}{16 * row['busiest_cycles'] / n:>5.0f}"
            f"{row['loads']:>7}{row['exposed']:>9.2f}{flight:>5.0f}{flight * threads / 1024:>5.0f}"
            + "".join(f"{shares.get((row['function'], row['operation'], device), ''):>11}" for device in DEVICES)
            + "".join(f"{'{:.2f}-{:.2f}'.format(*row['lists'][name]):>11}" for name in LISTS)
            + (f"{before.get(key(row), ''):>13}" if before else "")
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tools", type=Path, help="a folder with ptxas and nvdisasm")
    parser.add_argument("--json", type=Path, help="write all of it there")
    parser.add_argument("--before", type=Path, help="what --json wrote of other code: its shares stand beside")
    parser.add_argument("--check", action="store_true", help="fail where a hot loop waits for its loads one by one")
    args = parser.parse_args()
    result = model(args.tools, ptxas.modules()[0])
    before = json.loads(args.before.read_text())["rows"] if args.before else []
    show(result, {key(r): "{:.2f}-{:.2f}".format(*r["shares"]["H200"]) for r in before if "H200" in r["shares"]})
    if args.json:
        code = json.dumps({k: v for k, v in result.items() if k != "rows"})
        rows = ",\n".join(map(json.dumps, result["rows"]))
        args.json.write_text(f'{{"code": {code},\n"rows": [\n{rows}\n]}}\n')
    if args.check and not any("quick" in row["function"] for row in result["rows"]):
        sys.exit("no quick loop was found: has it another name?")
    if args.check and (lines := one_by_one(result["rows"])):
        sys.exit("\n".join(["hot loops wait for loads one by one: issue all of a round before any is used", *lines]))


if __name__ == "__main__":
    main()
