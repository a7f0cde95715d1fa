# SPDX-License-Identifier: MIT
"""A long training stays alive: no leaks, no lock held, no array freed too early, no surprise after fork.

Each error path is walked as often as the good one.
"""

import ast
import contextlib
import copy
import gc
import os
import pickle
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
from support import F32, REFUSALS, array_that_calls, folded, in_a_forked_child, run_python, scaler_of

import gradscaler
from gradscaler import Arrays, Factor, Policy, Report, Scaler, State, Want
from gradscaler import _gradscaler as c


def refused(function, *arguments, **keywords):
    with pytest.raises(REFUSALS):
        function(*arguments, **keywords)


GOOD = {name: np.full(10, 3, F32) for name in "abc"}
INTEGERS = np.ones(3, np.int32)
STRUCTS = Policy("torch"), State(), Report.of_flag(False)
LAST_BAD = {**GOOD, "bad": 3.0}
BAD_ARRAYS = LAST_BAD, {"bad": 3.0, **GOOD}, {**GOOD, "bad": INTEGERS}
OTHERS = {name: np.zeros(10, F32) for name in "abc"}
OTHER_SHAPE = {**GOOD, "c": np.zeros(11, F32)}
SCALER = Scaler("torch")
HELD = Arrays(OTHERS)
SAVED = SCALER.state_dict("torch")
BAD_CHECKPOINTS = {**SAVED, "scale": -1}, {"preset": "torch", "saved": "00"}
BAD_OPTIONS = {"dtype": np.int32}, {"factor": Factor()}, {"out": OTHER_SHAPE}
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
    "held bad report": lambda: refused(c.gsc_unscale, None, None, HELD.groups[0][1], None, bytes(3)),
    "options": lambda: SCALER.measure(GOOD, want=sum(Want), histogram=True, per_tensor=True).per_tensor,
    "bad options": lambda: refused(c.gsc_measure, None, None, [GOOD["a"]], {"policy": SCALER.policy, "x": 1}, Report()),
    "merge": lambda: Report.merge([Report.of_flag(True), Report.of_flag(True)], addends=True, policy=SCALER.policy),
    "bytes": lambda: pickle.loads(pickle.dumps(Report.from_bytes(bytes(Report.failed())))),
    "nested": lambda: SCALER.unscale({"a": [GOOD["a"], None], "b": GOOD["b"]}, dtype=np.float64).grads,
    "memory": lambda: memoryview(c.gsc_memory_create(None, 0, 1000)),
    "in memory": lambda: c.gsc_measure(None, None, [GOOD["a"]], None, (c.gsc_memory_create(None, 1, 999), 8)),
    "overflow": lambda: SCALER.measure([np.array([np.inf])]),
    "update": lambda: SCALER.update([Report(overflow=1), Report.of_flag(False)]) and SCALER.set_scale(8.0),
    "factors": lambda: SCALER.clip_factor(Report(kind=1, measured=1, sum_squares=4.0), 1.0),
    "save and load": lambda: SCALER.load_state_dict(SCALER.state_dict()),
    "another's checkpoint": lambda: SCALER.load_state_dict({"scaler": [SAVED, None, "x"]}),
    "settings": lambda: Policy.from_settings("deepspeed", {"hysteresis": 3, "x": None}),
    "new": lambda: (Scaler("jmp", growth_interval=5), repr(SCALER), gradscaler.presets(), gradscaler.info()),
    "bad settings": lambda: (refused(Policy.from_settings, "torch", {"init_scale": "x"}), refused(Policy, "x")),
    "bad numbers": lambda: (refused(Policy, init_scale=-1), refused(SCALER.set_scale, -1), refused(SCALER.scale, "x")),
    "bad arrays": lambda: [refused(SCALER.measure, bad) for bad in BAD_ARRAYS],
    "bad options of a call": lambda: [refused(SCALER.unscale, GOOD, **bad) for bad in BAD_OPTIONS],
    "another shape held": lambda: refused(Arrays, GOOD, OTHER_SHAPE),
    "overlapping": lambda: refused(SCALER.unscale, [GOOD["a"], GOOD["a"][3:]]),
    "added to themselves": lambda: refused(SCALER.unscale_accumulate, GOOD, GOOD),
    "bad checkpoint": lambda: [refused(SCALER.load_state_dict, bad) for bad in BAD_CHECKPOINTS],
    "bad memory": lambda: (refused(c.gsc_memory_create, None, 9, 1000), refused(c.gsc_workspace_size, None, 3, None)),
    "bad report": lambda: refused(c.gsc_measure, None, None, [GOOD["a"]], None, bytes(3)),
    "bad context": lambda: refused(c.gsc_measure, SCALER, None, [GOOD["a"]], None, Report()),
    "no tuple": lambda: refused(c.gsc_scale, None, SCALER.factor, [GOOD["a"]], None, None),
    "bad struct": lambda: refused(c.gsc_state_update, None, *STRUCTS, bytes(STRUCTS[1])),
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
def test_a_call_leaks_no_memory_and_no_reference(call):
    """A leak grows each time; the names of attributes that NumPy makes do not: CPython's cache keeps some.

    A buffer that is held is a reference.
    """
    watched = [*GOOD.values(), GOOD, LAST_BAD, INTEGERS, *OTHERS.values(), OTHER_SHAPE["c"], np.dtype(F32), SCALER]
    watched += [*STRUCTS, SCALER.policy, SCALER.state, Report, Factor, None]
    repeat(call, 20)
    references = [sys.getrefcount(thing) for thing in watched]
    tracemalloc.start()
    try:
        for _ in range(10):
            before = tracemalloc.get_traced_memory()[0]
            repeat(call, 200)
            grown = tracemalloc.get_traced_memory()[0] - before
            if grown < 200 * sys.getsizeof(object()):
                break
    finally:
        tracemalloc.stop()
    assert grown < 200 * sys.getsizeof(object())
    after = [sys.getrefcount(thing) for thing in watched]
    assert [abs(b - a) < 50 for a, b in zip(references, after, strict=True)] == [True] * len(watched)


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


STUB = ast.parse(Path(c.__file__).with_name("_gradscaler.pyi").read_text())
SIGNATURES = {node.name: len(node.args.posonlyargs) for node in STUB.body if isinstance(node, ast.FunctionDef)}


def test_the_stub_lists_the_functions_and_constants_of_the_module():
    functions = {name for name, thing in vars(c).items() if callable(thing) and not isinstance(thing, type)}
    assert set(SIGNATURES) == functions
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


LARGE = {
    "scale": lambda a: SCALER.scale(a),
    "measure": lambda a: SCALER.measure([a]),
    "unscale": lambda a: SCALER.unscale([a]),
    "clip_value": lambda a: SCALER.unscale([a], clip_value=1.0),
    "unscale_accumulate": lambda a: SCALER.unscale_accumulate([a], [np.empty_like(a)]),
    "threads": lambda a: THREADED.unscale([a]),
    "held": lambda a: SCALER.unscale(Arrays([a])),
}


@pytest.mark.parametrize(("elements", "calls", "released"), [(1 << 22, 500, True), (1 << 10, 10_000, False)])
@pytest.mark.parametrize("call", LARGE.values(), ids=LARGE)
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


@pytest.mark.parametrize("hold", [False, True])
def test_arrays_that_another_thread_drops_live_until_the_call_returns(hold):
    def attempt():
        grads = [np.full(1 << 19, 8, F32) for _ in range(4)]
        out = [np.empty(1 << 19, F32) for _ in range(4)]
        results, alive, started = list(out), [weakref.ref(array) for array in grads], []
        lists = [c.hold(grads, out, -1, None) if hold else (grads, out)]
        with beside(lambda: started and (grads.clear(), out.clear(), lists.clear())):
            started.append(True)
            c.gsc_unscale(None, scaler_of(8.0).factor, lists[0], None, Report())
            dropped = not lists
        return dropped, [ref() for ref in alive], {float(value) for result in results for value in result[::1000]}

    for _ in range(200):
        dropped, alive, values = attempt()
        if dropped:
            break
    assert (dropped, alive, values) == (True, [None] * 4, {1.0})


def test_an_update_during_a_call_does_not_change_what_gradients_are_divided_by():
    scaler, gradient = scaler_of(8.0), np.full(3, 8, F32)
    # as another thread may, before the call has begun to divide
    report = scaler.unscale({"w": array_that_calls(lambda: scaler.set_scale(2.0), gradient)})
    assert (report.scale, gradient.tolist()) == (8.0, [1, 1, 1])


THREADED = Scaler("static", init_scale=8.0, threads=3)


def threads():
    return set(os.listdir("/proc/self/task"))


def threads_become(before, more):
    """Returns whether this process soon has so many threads more: the system lists an ended one a moment longer."""
    deadline = time.monotonic() + 10
    while len(threads() - before) != more and time.monotonic() < deadline:
        time.sleep(0.001)
    return len(threads() - before) == more


def large():
    """8 MiB of gradients: enough to be shared."""
    rng, sizes = np.random.default_rng(0), {1 << 20: F32, 7: F32, 1 << 21: np.float16}
    return [rng.normal(size=size).astype(dtype) for size, dtype in sizes.items()]


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
    scaler, gradient = Scaler("static", init_scale=8.0, threads=2), np.full(1 << 21, 8, F32)
    scaler.unscale([array_that_calls(lambda: setattr(scaler, "threads", 1), gradient)])
    assert (set(gradient.tolist()), scaler.threads) == ({1.0}, 1)


def train(seed):
    """Twenty steps of a scaler of its own: the bytes of every result, and the last state."""
    rng, scaler, results = np.random.default_rng(seed), Scaler("torch", init_scale=1024.0, growth_interval=4), []
    for _ in range(20):
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
    expected = work()
    assert in_a_forked_child(work) == expected


Named = type("Named", (np.ndarray,), {"dtype": "float32"})
Without = type("Without", (np.ndarray,), {"dtype": property()})


def values(dtype=F32):
    return np.array([8, 16], dtype)


ODD = {
    "array of f": (array("f", [8, 16]), [1, 2]),
    "array of d": (array("d", [8, 16]), [1, 2]),
    "cast": (memoryview(bytearray(values())).cast("f"), [1, 2]),
    "float16": (memoryview(values(np.float16)), [1, 2]),
    "complex64": (memoryview(np.array([8 + 16j], np.complex64)), [1 + 2j]),
    "complex128": (memoryview(np.array([8 + 16j])), [1 + 2j]),
    "cb16": (memoryview(np.array([0x5A00], np.uint16).view(gradscaler.cb16)), [(0x5400,)]),
    "dtype by its name": (values().view(Named), [1, 2]),
    "dtype of its buffer": (values().view(Without), [1, 2]),
    "matrix": (values().view(np.matrix), [[1, 2]]),
    "recarray": (values().view(np.recarray), [1, 2]),
}
for stride in 0, 12345, -4:  # of a dimension of one
    ODD[f"stride {stride}"] = (np.lib.stride_tricks.as_strided(values(), (1, 2), (stride, 4)), [[1, 2]])


@pytest.mark.parametrize(("gradient", "expected"), ODD.values(), ids=ODD)
def test_an_array_that_is_odd_is_unscaled_in_place_and_into_another(gradient, expected):
    data, out = np.asarray(memoryview(gradient)), array("d", [0, 0])
    if expected == [1, 2]:
        scaler_of(4.0).unscale([gradient], out=[out])
        assert out.tolist() == [2, 4]
    assert scaler_of(8.0).unscale([gradient]).elements == data.size
    assert data.tolist() == expected


def test_a_list_that_is_emptied_while_it_is_read_is_read_to_its_end():
    grads, report = [], Report()
    grads += [array_that_calls(grads.clear, np.full(3, 8, F32)) for _ in range(100)]
    c.gsc_measure(None, None, grads, None, report)
    assert (report.elements, grads) == (300, [])


def test_ten_thousand_arrays_are_one_call():
    storage = np.full(10_000, 8, F32)
    grads = {f"p{i}": storage[i : i + 1] for i in range(len(storage))}
    storage[[5, 9999]] = np.nan
    report = scaler_of(8.0).unscale(grads)
    assert (report.bad, report.elements) == ({"p5": 1, "p9999": 1}, 10_000)
    assert set(np.delete(storage, [5, 9999])) == {1.0}


PROGRAMS = {
    "threads that cannot be made are refused": (
        "import resource, gradscaler\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))\n"
        "try: gradscaler.Scaler(threads=1024)\n"
        "except gradscaler.Error as error: print(error.status, error)",
        f"{c.GSC_ERROR_MEMORY} out of memory or threads: 1024 were asked for\n",
    ),
    "NumPy is not needed": (
        "import sys; sys.modules['numpy'] = None\n"
        "import array, gradscaler\n"
        "scaler, gradient = gradscaler.Scaler('static', init_scale=8.0), array.array('f', [8, 16])\n"
        "print(scaler.scale(2.0), scaler.unscale([gradient]).overflow, gradient.tolist())",
        "16.0 False [1.0, 2.0]\n",
    ),
    "only what is meant to be used is exported": (
        "import gradscaler; print({name for name in dir(gradscaler) if name[0] != '_'} == set(gradscaler.__all__))",
        "True\n",
    ),
    "an error is caught after the module was imported again": (
        "import sys, gradscaler as first\n"
        "for name in [name for name in sys.modules if name.startswith('gradscaler')]: del sys.modules[name]\n"
        "import gradscaler as second\n"
        "for module in (first, second):\n"
        "    try: module.Policy('x')\n"
        "    except module.Error: print('caught')",
        "caught\ncaught\n",
    ),
}


@pytest.mark.parametrize(("program", "printed"), PROGRAMS.values(), ids=PROGRAMS)
def test_in_a_process_of_its_own(program, printed):
    done = run_python("-c", program)
    assert (folded(done.stdout), done.stderr) == (folded(printed), "")


def test_a_module_that_is_only_called_torch_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert len(Arrays(np.ones(3))) == 1
