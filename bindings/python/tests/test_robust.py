# SPDX-License-Identifier: MIT
"""What keeps a long training alive: no leaks, no lock held, no array freed too early, no surprise after fork.

Each error path is walked as often as the good one.
"""

import ast
import contextlib
import copy
import gc
import mmap
import os
import pickle
import signal
import sys
import threading
import time
import tracemalloc
import types
import weakref
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support import F32, REFUSALS, run_python, scaler_of

import gradscaler
from gradscaler import Arrays, Factor, Policy, Report, Scaler, State, Want
from gradscaler import _gradscaler as c


def refused(function, *arguments, **keywords):
    with pytest.raises(REFUSALS):
        function(*arguments, **keywords)


# ---- leaks ----

GOOD = {name: np.full(10, 3, F32) for name in "abc"}
LAST_BAD = {**GOOD, "bad": 3.0}
OTHERS = {name: np.zeros(10, F32) for name in "abc"}
OTHER_SHAPE = {**GOOD, "c": np.zeros(11, F32)}
SCALER = Scaler("torch")
HELD = Arrays(OTHERS)
SAVED = SCALER.state_dict("torch")
CALLS = {
    "scale": lambda: SCALER.scale(GOOD["a"]),
    "measure": lambda: SCALER.measure(GOOD, want=Want.NORM),
    "unscale": lambda: SCALER.unscale(GOOD, dtype=np.float64),
    "clip": lambda: SCALER.unscale(GOOD, dtype="cb16", clip_value=1.0),
    "unscale_accumulate": lambda: SCALER.unscale_accumulate(GOOD, OTHERS, histogram=True).histogram,
    "accumulate an overflow": lambda: SCALER.unscale_accumulate([np.array([np.inf])], [np.zeros(1)]),
    "threads": lambda: setattr(SCALER, "threads", 3 - SCALER.threads),
    "held": lambda: SCALER.unscale(Arrays(GOOD, OTHERS)),
    "held call": lambda: SCALER.unscale(HELD, want=Want.NORM).norm,
    "held overflow": lambda: SCALER.measure(Arrays(np.array([np.inf]))),
    "not held": lambda: refused(Arrays, GOOD, OTHER_SHAPE),
    "held bad report": lambda: refused(c.gsc_unscale, None, None, HELD.groups[0][1], None, bytes(3)),
    "options": lambda: SCALER.measure(GOOD, want=sum(Want), histogram=True, per_tensor=True).per_tensor,
    "bad options": lambda: refused(c.gsc_measure, None, None, [GOOD["a"]], {"policy": SCALER.policy, "x": 1}, Report()),
    "small each": lambda: refused(
        c.gsc_measure, None, None, [*GOOD.values()], {"per_tensor": bytearray(200)}, Report()
    ),
    "merge": lambda: Report.merge([Report.of_flag(True), Report.of_flag(True)], addends=True, policy=SCALER.policy),
    "bytes": lambda: pickle.loads(pickle.dumps(Report.from_bytes(bytes(Report.failed())))),
    "nested": lambda: SCALER.unscale({"a": [GOOD["a"], None], "b": GOOD["b"]}, dtype=np.float64).grads,
    "memory": lambda: memoryview(c.gsc_memory_create(None, 0, 1000)),
    "in memory": lambda: c.gsc_measure(None, None, [GOOD["a"]], None, (c.gsc_memory_create(None, 1, 999), 8)),
    "bad memory": lambda: refused(c.gsc_memory_create, None, 9, 1000),
    "overlapping": lambda: refused(SCALER.unscale, [GOOD["a"], GOOD["a"][3:]]),
    "loss": lambda: refused(SCALER.scale, "x"),
    "overflow": lambda: SCALER.measure([np.array([np.inf])]),
    "update": lambda: (
        SCALER.update([Report(overflow=1), Report.of_flag(False)]) and SCALER.set_scale(8.0, good_steps=0)
    ),
    "factors": lambda: SCALER.clip_factor(Report(kind=1, measured=1, sum_squares=4.0), 1.0),
    "save and load": lambda: SCALER.load_state_dict(SCALER.state_dict()),
    "another's checkpoint": lambda: SCALER.load_state_dict({"scaler": [SAVED, None, "x"]}),
    "bad checkpoint": lambda: refused(SCALER.load_state_dict, {**SAVED, "scale": -1}),
    "settings": lambda: Policy.from_settings("deepspeed", {"hysteresis": 3, "x": None}),
    "bad settings": lambda: refused(Policy.from_settings, "torch", {"init_scale": "x"}),
    "new": lambda: (Scaler("jmp", growth_interval=5), repr(SCALER), gradscaler.presets(), gradscaler.info()),
    "unknown preset": lambda: refused(Policy, "x"),
    "unknown field": lambda: refused(Policy, x=1),
    "bad field": lambda: refused(Policy, init_scale=-1),
    "bad array": lambda: refused(SCALER.measure, LAST_BAD),
    "bad dtype": lambda: refused(SCALER.unscale, GOOD, dtype=np.int32),
    "bad out": lambda: refused(SCALER.unscale, GOOD, out={**GOOD, "c": 3.0}),
    "other shape": lambda: refused(SCALER.unscale, GOOD, out=OTHER_SHAPE),
    "overlap": lambda: refused(SCALER.unscale, [GOOD["a"][1:]], out=[GOOD["a"][:-1]]),
    "bad want": lambda: refused(SCALER.measure, GOOD, want=64),
    "large want": lambda: refused(SCALER.measure, GOOD, want=2**32),
    "bad clip_value": lambda: refused(SCALER.unscale, GOOD, clip_value=-1),
    "bad sum": lambda: refused(SCALER.unscale_accumulate, GOOD, GOOD),
    "bad threads": lambda: refused(Scaler, threads=0),
    "bad factor": lambda: refused(SCALER.unscale, GOOD, factor=Factor()),
    "bad report": lambda: refused(c.gsc_measure, None, None, [GOOD["a"]], None, bytes(3)),
    "bad context": lambda: refused(c.gsc_measure, SCALER, None, [GOOD["a"]], None, Report()),
    "bad scale": lambda: refused(SCALER.set_scale, -1),
    "no number": lambda: refused(SCALER.set_scale, "x"),
    "bad max_norm": lambda: refused(SCALER.clip_factor, Report(), None),
    "bad saved": lambda: refused(SCALER.load_state_dict, {"preset": "torch", "saved": "00"}),
    "no tuple": lambda: refused(c.gsc_scale, None, SCALER.factor, [GOOD["a"]], None, None),
    "no list": lambda: refused(c.gsc_workspace_size, None, 3, None),
}


@pytest.fixture(scope="module", autouse=True)
def a_short_collection():
    """Leaves out what other modules have imported: with torch and JAX a collection takes a quarter of a second."""
    gc.freeze()
    yield
    gc.unfreeze()


def repeat(call, times):
    for _ in range(times):
        call()
    gc.collect()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_leaks_no_memory(call):
    """A leak grows each time; the names of attributes that NumPy makes, of which CPython's cache keeps some, do not."""
    tracemalloc.start()
    try:
        repeat(call, 800)
        for _ in range(5):
            before = tracemalloc.get_traced_memory()[0]
            repeat(call, 800)
            grown = tracemalloc.get_traced_memory()[0] - before
            if grown < 800:
                break
    finally:
        tracemalloc.stop()
    assert grown < 800 * sys.getsizeof(object())


def test_no_name_of_an_attribute_is_new(monkeypatch):
    class Watched:
        def __getattr__(self, name):
            names.append(name)
            return getattr(c, name)

    names = []
    refused(SCALER.measure, [Watched()])
    monkeypatch.setattr(gradscaler._scaler, "c", Watched())
    SCALER.measure(GOOD)
    SCALER.unscale(GOOD, dtype=F32, clip_value=1.0)
    assert {"__dlpack__", "dtype", "gsc_measure", "gsc_unscale"} <= set(names)
    assert [name for name in names if name is not sys.intern(name)] == []


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_leaks_no_reference(call):
    watched = [*GOOD.values(), GOOD, LAST_BAD, OTHER_SHAPE["c"], np.dtype(F32), SCALER, Report, Factor, None]
    repeat(call, 5)
    before = [sys.getrefcount(thing) for thing in watched]
    repeat(call, 100)
    after = [sys.getrefcount(thing) for thing in watched]
    assert [abs(b - a) < 50 for a, b in zip(before, after, strict=True)] == [True] * len(watched)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the resident size is read from /proc")
def test_the_process_does_not_grow():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    def step():
        large = np.ones(1 << 18, F32)
        SCALER.unscale([large], dtype=np.float64)
        refused(SCALER.unscale, [large, 3.0])

    repeat(step, 5)
    before = resident()
    repeat(step, 100)
    assert resident() - before < 50 << 20


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: scaler_of().measure([a, b]),
        lambda a, b: scaler_of().unscale([a, b]),
        lambda a, b: scaler_of().unscale([a], out=[b]),
        lambda a, b: scaler_of().unscale_accumulate([a], [b]),
        lambda a, b: scaler_of().unscale([a, b], clip_value=1.0),
        lambda a, b: refused(scaler_of().unscale_accumulate, [a], [a]),
        lambda a, b: refused(scaler_of().measure, [a, b, 3.0]),
        lambda a, b: refused(scaler_of().measure, [3.0, a, b]),
        lambda a, b: scaler_of().measure([None, a, b, None]),
        lambda a, b: refused(scaler_of().unscale, [a, memoryview(a), b]),
        lambda a, b: refused(scaler_of().measure, [a, b, array("i", [1])]),
        lambda a, b: refused(scaler_of().unscale, [a, b, bytes(3)]),
        lambda a, b: refused(scaler_of().unscale, [a, b], out=[b, None]),
        lambda a, b: refused(scaler_of().unscale, [a, b], out=[b]),
        lambda a, b: refused(scaler_of().unscale, [a], out=[array("f", [1])]),
        lambda a, b: refused(scaler_of().measure, [a, b], want=64),
        lambda a, b: refused(scaler_of().measure, [a, b], want=2**32),
        lambda a, b: refused(scaler_of().measure, [a, b], factor=Factor()),
        lambda a, b: scaler_of().unscale(Arrays([a], [b])),
        lambda a, b: refused(scaler_of().unscale_accumulate, Arrays([a, b])),
        lambda a, b: refused(Arrays, [a, b, 3.0]),
        lambda a, b: refused(Arrays, [a], [b, None]),
        lambda a, b: refused(c.gsc_measure, None, None, [a, b], None, None),
        lambda a, b: refused(c.gsc_measure, None, None, [a, b], None, bytes(3)),
        lambda a, b: refused(c.gsc_measure, None, None, [a, b], {"per_tensor": bytearray(3)}, Report()),
    ],
)
def test_no_buffer_is_held_after_a_call(call):
    a, b = array("f", [1, 2]), array("f", [3, 4])
    call(a, b)
    a.append(5)  # BufferError while a buffer is held
    b.append(6)
    assert (len(a), len(b)) == (3, 3)


def test_held_arrays_keep_their_memory_until_they_end():
    a, b = array("f", [8]), np.full(1, 8, F32)
    arrays, alive = Arrays([a, b]), weakref.ref(b)
    del b
    with pytest.raises(BufferError):
        a.append(1)
    kept = alive() is not None
    scaler_of(8.0).unscale(arrays)
    del arrays
    a.append(2)
    assert (kept, alive(), a.tolist()) == (True, None, [1, 2])


@pytest.mark.parametrize(
    "last", [bytearray(State()), bytearray(255), bytes(State()), None], ids=["good", "short", "bytes", "None"]
)
def test_no_struct_is_held_after_a_call(last):
    structs = [bytearray(bytes(each)) for each in (SCALER.policy, SCALER.state, Report.of_flag(False))]
    sizes = [len(struct) for struct in structs]
    with contextlib.suppress(*REFUSALS):
        c.gsc_state_update(None, *structs, last)
    for struct in structs:
        struct.append(0)
    assert [len(struct) for struct in structs] == [size + 1 for size in sizes]


# ---- types ----


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: c.gsc_version(), int),
        (lambda: c.gsc_preset_name(0), str),
        (lambda: c.gsc_preset_name(2**32 - 1), type(None)),
        (lambda: c.gsc_preset_summary(0), str),
        (lambda: c.gsc_status_string(c.GSC_OK), str),
        (lambda: c.gsc_workspace_size(None, [np.ones(3)], None), int),
        (lambda: c.gsc_dtype_size(1), int),
        (lambda: c.gsc_state_save(SCALER.policy, SCALER.state), bytes),
        (lambda: c.gsc_exec_wait(None), type(None)),
        (lambda: c.gsc_memory_create(None, 0, 8), c.Memory),
        (lambda: c.gsc_policy_check(SCALER.policy), type(None)),
        (lambda: c.gsc_report_merge(None, 2 * bytes(Report.of_flag(False)), 0, None, Report()), type(None)),
        (lambda: c.gsc_state_export("torch", None, SCALER.policy, SCALER.state, None, None), tuple),
        (lambda: c.gsc_measure(None, None, [], None, Report()), type(None)),
        (lambda: c.gsc_unscale(None, None, HELD.groups[0][1], None, None), type(None)),
    ],
)
def test_a_function_of_c_returns_a_plain_object(call, expected):
    assert type(call()) is expected


def test_a_status_is_an_int():
    with pytest.raises(gradscaler.Error) as error:
        Policy("x")
    assert (type(error.value.status), error.value.status) == (int, -3)


STUB = ast.parse(Path(c.__file__).with_name("_gradscaler.pyi").read_text())
SIGNATURES = {node.name: len(node.args.posonlyargs) for node in STUB.body if isinstance(node, ast.FunctionDef)}


def test_the_stub_lists_the_functions_of_the_module():
    assert sorted(SIGNATURES) == [
        name for name in dir(c) if callable(getattr(c, name)) and not isinstance(getattr(c, name), type)
    ]


def test_the_stub_lists_constants_of_the_module():
    constants = [node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)]
    assert {type(getattr(c, name)) for name in constants} == {int}


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_takes_as_many_arguments_as_its_stub_says(name):
    def is_a_wrong_count(count):
        try:
            getattr(c, name)(*[object()] * count)
        except TypeError as error:
            return f"{count} given" in str(error) or f"got {count}" in str(error)
        except c.Error:  # of CUDA, which is not here
            pass
        return False

    assert [count for count in range(16) if not is_a_wrong_count(count)] == [SIGNATURES[name]]


# ---- threads ----


@contextlib.contextmanager
def beside(action):
    """Runs `action` again and again in a thread that gets the lock only where the main thread gives it up."""
    interval, done = sys.getswitchinterval(), threading.Event()

    def loop():
        while not done.wait(0.0001):
            action()

    thread = threading.Thread(target=loop)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        yield
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("elements", "calls", "released"),
    [(1 << 22, 500, True), (1 << 10, 10_000, False)],
    ids=["a large list", "no small one"],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda a: SCALER.scale(a),
        lambda a: SCALER.measure([a]),
        lambda a: SCALER.unscale([a]),
        lambda a: SCALER.unscale([a], clip_value=1.0),
        lambda a: SCALER.unscale_accumulate([a], [np.empty_like(a)]),
        lambda a: THREADED.unscale([a]),
        lambda a: SCALER.unscale(Arrays([a])),
    ],
    ids=["scale", "measure", "unscale", "clip_value", "unscale_accumulate", "threads", "held"],
)
def test_the_lock_is_released_for(call, elements, calls, released):
    gradients, turns = np.ones(elements, F32), []
    with beside(lambda: turns.append(1)):
        time.sleep(0.001)  # gives the lock up once: the thread waits for its next turn now
        before = len(turns)
        for _ in range(calls):
            call(gradients)
            if len(turns) > before:
                break
        after = len(turns)
    assert (after > before) == released


def test_arrays_that_another_thread_drops_live_until_the_call_returns():
    def attempt():
        grads = [np.full(1 << 19, 8, F32) for _ in range(4)]
        out = [np.empty(1 << 19, F32) for _ in range(4)]
        results, alive, started = list(out), [weakref.ref(array) for array in grads], []
        with beside(lambda: started and (grads.clear(), out.clear())):
            started.append(True)
            c.gsc_unscale(None, scaler_of(8.0).factor, (grads, out), None, Report())
            dropped = not grads
        return dropped, [ref() for ref in alive], {float(value) for result in results for value in result[::1000]}

    for _ in range(200):
        dropped, alive, values = attempt()
        if dropped:
            break
    assert (dropped, alive, values) == (True, [None] * 4, {1.0})


def test_held_arrays_that_another_thread_drops_live_until_the_call_returns():
    def attempt():
        gradient, held = np.full(1 << 21, 8, F32), []
        out, alive = np.empty(1 << 21, F32), weakref.ref(gradient)
        held.append(c.hold([gradient], [out], -1, None))
        del gradient
        started = []
        with beside(lambda: started and held.clear()):
            started.append(True)
            c.gsc_unscale(None, scaler_of(8.0).factor, held[0], None, Report())
            dropped = not held
        return dropped, alive(), set(out[::1000].tolist())

    for _ in range(200):
        dropped, alive, values = attempt()
        if dropped:
            break
    assert (dropped, alive, values) == (True, None, {1.0})


def test_an_update_during_a_call_does_not_change_what_gradients_are_divided_by():
    class Updating(np.ndarray):
        @property
        def dtype(self):
            scaler.set_scale(2.0)  # as another thread may, before the call has begun to divide
            return np.dtype(F32)

    scaler, gradient = scaler_of(8.0), np.full(3, 8, F32)
    report = scaler.unscale({"w": gradient.view(Updating)})
    assert (report.scale, gradient.tolist()) == (8.0, [1, 1, 1])


# ---- threads of the library's own ----

THREADED = Scaler("static", init_scale=8.0, threads=3)


def threads():
    return set(os.listdir("/proc/self/task"))


def threads_become(before, more):
    """Whether this process soon has so many threads more: the system lists one that has ended a moment longer."""
    deadline = time.monotonic() + 10
    while len(threads() - before) != more and time.monotonic() < deadline:
        time.sleep(0.001)
    return len(threads() - before) == more


def large(last=1.0):
    """8 MiB of gradients: enough to be shared."""
    rng = np.random.default_rng(0)
    grads = [rng.normal(size=size).astype(dtype) for size, dtype in ((1 << 20, F32), (7, F32), (1 << 21, np.float16))]
    grads[-1][-1] = last
    return grads


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_a_scaler_holds_its_threads_as_long_as_it_lives():
    gc.collect()  # the scalers of other tests end now, with their threads
    before, scaler, as_many = threads(), Scaler(threads=4), []
    for count in (4, 2, 1, 3):
        scaler.threads = count
        as_many.append(threads_become(before, count - 1))
    del scaler
    assert (as_many, threads_become(before, 0)) == ([True] * 4, True)


@pytest.mark.parametrize("restore", [copy.copy, copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_a_copy_has_as_many_threads_of_its_own(restore):
    copied = restore(THREADED)
    assert (copied.threads, copied._context is THREADED._context, THREADED._context is None) == (3, False, False)


def test_a_context_that_is_dropped_during_a_call_lives_until_it_returns():
    class Dropping(np.ndarray):
        @property
        def dtype(self):
            scaler.threads = 1
            return np.dtype(F32)

    scaler, gradient = Scaler("static", init_scale=8.0, threads=2), np.full(1 << 21, 8, F32)
    scaler.unscale([gradient.view(Dropping)])
    assert (set(gradient.tolist()), scaler.threads) == ({1.0}, 1)


def train(seed):
    """Fifty steps of a scaler of its own: the bytes of every result, and the last state."""
    rng, scaler, results = np.random.default_rng(seed), Scaler("torch", init_scale=1024.0, growth_interval=4), []
    for _ in range(50):
        grads = [rng.normal(scale=1e4, size=size).astype(np.float16) for size in (3, 50_000, 1000)]
        report = scaler.unscale(grads, dtype=F32, want=Want.NORM)
        scaler.update(report)
        results.append((report.sum_squares, hash(b"".join(array.tobytes() for array in report.grads))))
    return results, bytes(scaler.state)


def test_threads_with_scalers_of_their_own_give_the_bits_of_one_thread():
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(train, range(8))) == [train(seed) for seed in range(8)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("work", [lambda: train(0), lambda: bytes(THREADED.measure(large(), want=Want.NORM))])
def test_a_forked_child_gives_the_bits_of_its_parent(work):
    reading, writing = os.pipe()
    expected = repr(work()).encode()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # rather than wait for threads that stayed in the parent
        os.write(writing, repr(work()).encode()[-1000:])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    assert (os.waitpid(child, 0)[1], answer) == (0, expected[-1000:])


# ---- arrays that behave oddly ----


@pytest.mark.parametrize(
    "make",
    [
        lambda: array("f", [8, 16]),
        lambda: array("d", [8, 16]),
        lambda: memoryview(array("f", [8, 16])),
        lambda: memoryview(bytearray(np.array([8, 16], F32))).cast("f"),
        lambda: memoryview(np.array([8, 16], np.float16)),
        lambda: memoryview(np.array([8, 16], np.float64)),
    ],
    ids=["array of f", "array of d", "memoryview", "cast", "float16", "float64"],
)
def test_what_has_only_a_buffer_is_unscaled_in_place(make):
    gradient = make()
    report = scaler_of(8.0).unscale([gradient])
    assert (np.asarray(gradient).tolist(), report.elements) == ([1, 2], 2)


def test_what_has_only_a_buffer_is_an_output():
    out = array("d", [0, 0])
    scaler_of(8.0).unscale([array("f", [8, 16])], out=[out])
    assert out.tolist() == [1, 2]


def test_a_list_that_is_emptied_while_it_is_read_is_read_to_its_end():
    class Emptying(np.ndarray):
        @property
        def dtype(self):
            grads.clear()
            return np.dtype(F32)

    grads = [np.full(3, 8, F32).view(Emptying) for _ in range(100)]
    report = Report()
    c.gsc_measure(None, None, grads, None, report)
    assert (report.elements, grads) == (300, [])


def test_a_call_inside_the_conversion_of_another_works():
    class Nested(np.ndarray):
        @property
        def dtype(self):
            inner.append(scaler_of().measure([np.ones(5, F32)]).elements)
            return np.dtype(F32)

    inner = []
    report = scaler_of().measure({"w": np.ones(3, F32).view(Nested)})
    assert (report.elements, set(inner)) == (3, {5})


@pytest.mark.parametrize("dtype", [np.dtype(F32), "float32", F32(0).dtype.name])
def test_a_dtype_is_known_by_its_name(dtype):
    class Named(np.ndarray):
        pass

    Named.dtype = property(lambda self: dtype)
    assert scaler_of().measure([np.ones(3, F32).view(Named)]).elements == 3


def test_an_array_without_its_dtype_is_known_by_its_buffer():
    class Without(np.ndarray):
        @property
        def dtype(self):
            raise AttributeError

    gradient = np.full(3, 8, F32).view(Without)
    scaler_of(8.0).unscale([gradient])
    assert gradient.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray, np.recarray])
def test_a_subclass_of_ndarray_is_unscaled_as_its_data(kind):
    data = np.full((2, 2), 8, F32)
    scaler_of(8.0).unscale([data.view(kind)])
    assert data.tolist() == [[1, 1], [1, 1]]


def test_the_masked_elements_of_an_array_count():
    masked = np.ma.masked_array(np.array([1, np.nan], F32), mask=[False, True])
    assert scaler_of().measure([masked]).nan_count == 1


@pytest.mark.parametrize("strides", [(0, 4), (12345, 4), (-4, 4)])
def test_the_stride_of_a_dimension_of_one_does_not_matter(strides):
    gradient = np.lib.stride_tricks.as_strided(np.full(4, 8, F32), (1, 4), strides)
    scaler_of(8.0).unscale([gradient])
    assert gradient.tolist() == [[1, 1, 1, 1]]


def test_a_hundred_thousand_arrays_are_one_call():
    storage = np.full(100_000, 8, F32)
    grads = {f"p{i}": storage[i : i + 1] for i in range(len(storage))}
    storage[[5, 99_999]] = np.nan
    report = scaler_of(8.0).unscale(grads)
    assert (report.bad, report.elements, set(np.delete(storage, [5, 99_999]))) == (
        {"p5": 1, "p99999": 1},
        100_000,
        {1.0},
    )


def test_a_list_that_contains_itself_is_refused():
    grads = []
    grads.append(grads)
    with pytest.raises(ValueError, match=r"grads\[0\]\[0\]\[0\]... is nested without end"):
        scaler_of().measure(grads)


def test_an_iterator_that_is_interrupted_is_not_swallowed():
    def gradients():
        yield np.ones(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scaler_of().measure(gradients())


def test_threads_that_cannot_be_made_are_refused():
    program = (
        "import resource, gradscaler\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "try: gradscaler.Scaler(threads=1024)\n"
        "except gradscaler.Error as error: print(error.status, error)"
    )
    assert run_python("-c", program).stdout == f"{c.GSC_ERROR_MEMORY} out of memory or threads: 1024 were asked for\n"


def test_numpy_is_not_needed():
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "import array, gradscaler\n"
        "scaler, gradient = gradscaler.Scaler('static', init_scale=8.0), array.array('f', [8, 16])\n"
        "print(scaler.scale(2.0), scaler.unscale([gradient]).overflow, gradient.tolist())"
    )
    result = run_python("-c", program)
    assert (result.stdout, result.stderr) == ("16.0 False [1.0, 2.0]\n", "")


def test_an_error_is_caught_after_the_module_was_imported_again():
    program = (
        "import sys, gradscaler as first\n"
        "for name in [name for name in sys.modules if name.startswith('gradscaler')]: del sys.modules[name]\n"
        "import gradscaler as second\n"
        "for module in (first, second):\n"
        "    try: module.Policy('x')\n"
        "    except module.Error: print('caught')"
    )
    result = run_python("-c", program)
    assert (result.stdout, result.stderr) == ("caught\ncaught\n", "")


def test_a_module_that_is_only_called_torch_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert len(Arrays(np.ones(3))) == 1
