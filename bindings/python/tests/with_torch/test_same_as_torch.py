# SPDX-License-Identifier: MIT
"""Random sequences of calls give the same with torch's class and with ours, and unscaled gradients the same bits.

A sequence is made once and run twice, each time in a world of its own: parameters, optimizers and a scaler. After each
call what it returned or raised, the scaler's state, and the parameters and gradients that it may have changed must be
equal, to the bit. What may differ is in `deviations`, and a sequence ends there.
"""

import copy
import inspect
import io
import math
import pickle
import random
import warnings
from collections import namedtuple
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from conftest import begun, gradients, parameters, sgd

import gradscaler.torch

THEIRS, OURS = torch.amp.GradScaler, gradscaler.torch.GradScaler
torch.set_warn_always(True)  # else a warning is only in the world that comes first


# ---- a world ----


class Passes(torch.optim.Optimizer):
    """An optimizer with a step that tells what it was given, and raises if asked to."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, *args, raises=None, **kwargs):
        if raises:
            raise raises
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.sub_(p.grad.to_dense().to(p.dtype) if p.grad.is_sparse else p.grad, alpha=0.125)
        return "stepped", args, sorted(kwargs)


class Amp(Passes):
    """One that takes scale and overflow from its attributes, as the fused ones do, and shows what it got."""

    _step_supports_amp_scaling = True

    def step(self, *args):
        return self.grad_scale, self.found_inf, args


class OldAmp(Passes):
    """One with the contract before that: it is passed the scaler."""

    _step_supports_amp_scaling = True

    def step(self, grad_scaler=None):
        found = grad_scaler._check_inf_per_device(self)
        return grad_scaler.get_scale(), list(found.values())


def dense():
    return [torch.nn.Parameter(torch.linspace(-1, 1, math.prod(shape)).reshape(shape)) for shape in ((2, 3), (), (5,))]


# Fused SGD has no momentum here: where its first step is skipped torch leaves the momentum as the memory was.
OPTIMIZERS = {
    "SGD": lambda: torch.optim.SGD(dense(), lr=0.125),
    "SGD foreach": lambda: torch.optim.SGD(dense(), lr=0.125, momentum=0.5, foreach=True),
    "SGD fused": lambda: torch.optim.SGD(dense(), lr=0.125, fused=True),
    "AdamW": lambda: torch.optim.AdamW(dense(), lr=0.125, foreach=False),
    "AdamW foreach": lambda: torch.optim.AdamW(dense(), lr=0.125, foreach=True),
    "AdamW fused": lambda: torch.optim.AdamW(dense(), lr=0.125, fused=True),
    "Adagrad fused": lambda: torch.optim.Adagrad(dense(), lr=0.125, fused=True),
    "groups": lambda: torch.optim.SGD([{"params": dense(), "lr": 0.5}, {"params": dense()}], lr=0.125),
    "float16": lambda: Passes([torch.nn.Parameter(torch.ones(4, dtype=torch.float16)), *dense()]),
    "dtypes": lambda: Passes([torch.nn.Parameter(torch.ones(5, dtype=t)) for t in (torch.bfloat16, torch.float64)]),
    "complex": lambda: Passes([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))]),
    "embedding": lambda: torch.optim.SGD([torch.nn.Parameter(torch.ones(6, 2)), *dense()], lr=0.125),
    "returns": lambda: Passes(dense()),
    "amp": lambda: Amp(dense()),
    "old amp": lambda: OldAmp(dense()),
    "strided": lambda: Passes([torch.nn.Parameter(torch.ones(4, 3, 2, 2)), torch.nn.Parameter(torch.ones(8))]),
    "empty": lambda: Passes([torch.nn.Parameter(torch.ones(0)), torch.nn.Parameter(torch.ones(2))]),
}
ODD = {"one nan": math.nan, "one inf": math.inf, "minus inf": -math.inf, "huge": 3e38, "tiny": 1e-44}  # elements
GRADIENTS = ("good", "good", "good", *ODD, "none", "some none", "zero", "aliased", "graph")
SPARSE = ("sparse", "sparse twice", "sparse inf")
MINE = ValueError("mine")
Point = namedtuple("Point", "x y")


class World:
    """Everything that the calls of a sequence work on."""

    def __init__(self, cls, names):
        self.cls, self.scaler, self.copied = cls, None, None
        # Round trips go through the other class, but in torch's own world, which is what ours is held to.
        self.other = THEIRS if cls is THEIRS else random.Random(len(names)).choice((THEIRS, OURS))
        self.optimizers = [OPTIMIZERS[name]() for name in names]
        self.failed = set()  # fused ones, in which torch has left the scale

    def do(self, call):
        """Returns the outcome of a call: ("returned", value) or ("raised", type, message)."""
        name, *args = call
        method = getattr(self, name)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                value = method(*args)
            return "returned", plain(value), sorted({w.category.__name__ for w in caught})
        except Exception as error:
            if name == "step" and hasattr(self.optimizers[args[0]], "grad_scale"):
                self.failed.add(args[0])
            return "raised", type(error).__name__, str(error)

    def see(self, *indices):
        """All that a caller could see: the scaler, and parameters and gradients of these optimizers, as bits."""
        s = self.scaler
        seen = [(plain(p), plain(p.grad)) for i in indices for p in parameters(self.optimizers[i])]
        if s is None:
            return seen
        assert self.copied is None or plain(self.copied[0].state_dict()) == self.copied[1]
        state = plain(s.state_dict()), s.is_enabled()
        if not s.is_enabled():
            return seen, state
        stages = [
            (s._per_optimizer_states[i]["stage"].name, plain(s._per_optimizer_states[i]["found_inf_per_device"]))
            for i in map(id, self.optimizers)
            if i in s._per_optimizer_states
        ]
        return seen, state, plain(s._scale), plain(s._growth_tracker), stages

    # ---- the calls ----

    def construct(self, form, args, kwargs):
        cls = self.cls
        if form == "old cuda" and cls is THEIRS:
            cls = torch.cuda.amp.GradScaler
            warnings.simplefilter("ignore", FutureWarning)  # that its name is old
        self.scaler = cls(*args, **kwargs)

    def gradients(self, i, kind, seed):
        """Sets gradients as a backward pass leaves them; float16 parameters have float16 gradients."""
        draw, ps = torch.Generator().manual_seed(seed), parameters(self.optimizers[i])
        for p in ps:
            g = torch.normal(0.0, 4096.0, p.shape, generator=draw)
            g = (g * (1 + 1j) if p.is_complex() else g).to(p.dtype)
            if p.dim() == 4:
                g = g.to(memory_format=torch.channels_last)
            if p.shape == (8,):  # a view with gaps
                g = torch.stack([g, g], 1)[:, 0]
            p.grad = g
        last = ps[-1].grad
        if kind == "graph":
            ps[0].grad = ps[0].grad.requires_grad_() * 1
        elif kind == "aliased":  # the second of two that are alike shares its gradient with the first
            first = next((p for p in ps[:-1] if (p.shape, p.dtype) == (ps[-1].shape, ps[-1].dtype)), ps[-1])
            first.grad = last
        elif kind == "none" or (kind == "some none" and len(ps) > 1):
            for p in ps[:1] if kind == "some none" else ps:
                p.grad = None
        elif last.numel() and kind in ODD:
            last.view(-1)[seed % last.numel()] = ODD[kind]
        elif kind == "zero":
            last.zero_()
        elif kind in SPARSE:
            if ps[0].dim() != 2:
                return
            values = torch.normal(0.0, 4096.0, (3, 2), generator=draw)
            if kind == "sparse inf":
                values[1, 0] = float("inf")
            at = [[0, 2, 2 if kind == "sparse twice" else 3]]
            g = torch.sparse_coo_tensor(at, values, ps[0].shape)
            ps[0].grad = g if kind == "sparse twice" else g.coalesce()

    def backward(self, i, x):
        """Runs the backward pass of a scaled loss of the first parameters."""
        ps = [p for p in parameters(self.optimizers[i]) if p.dtype is torch.float32]
        self.scaler.scale(sum((p * p).sum() * x for p in ps)).backward()

    def zero_grad(self, i, set_to_none):
        self.optimizers[i].zero_grad(set_to_none=set_to_none)

    def scale(self, make):
        return self.scaler.scale(TREES[make]())

    def unscale_(self, i):
        return self.scaler.unscale_(self.optimizers[i])

    def clip(self, i, max_norm):
        return torch.nn.utils.clip_grad_norm_([p for p in parameters(self.optimizers[i]) if not p.is_sparse], max_norm)

    def step(self, i, args, kwargs):
        return self.scaler.step(self.optimizers[i], *args, **kwargs)

    def update(self, *args):
        return self.scaler.update(*(TENSORS[a]() if isinstance(a, str) else a for a in args))

    def get(self, name, *value):
        return getattr(self.scaler, name)(*value)

    set = get

    def load(self, changes, missing=()):
        state = {**self.scaler.state_dict(), **changes}
        return self.scaler.load_state_dict({key: state[key] for key in state if key not in missing})

    def resume(self, file):
        """Through a state dict into a scaler of the other class, and back into a new one of this."""
        state = self.scaler.state_dict()
        state = through_a_file(state, True) if file else state
        other = self.other("cpu", 3.0, enabled=self.scaler.is_enabled())
        other.load_state_dict(state)
        other.scale(torch.ones(()))
        self.scaler = self.cls("cpu", 5.0, enabled=self.scaler.is_enabled())
        self.scaler.load_state_dict(other.state_dict())
        return state

    def pickle(self, how):
        """The copy goes on; the scaler that it is of does not change with it."""
        before, self.scaler = self.scaler, COPIES[how](self.scaler)
        self.copied = before, plain(before.state_dict())

    def write(self, how, value):
        """Into torch's tensors from outside, as some frameworks do."""
        if self.scaler._scale is None:
            return
        if how == "replace":
            self.scaler._scale = torch.tensor(value)
        elif how == "one element":
            self.scaler._scale = torch.full((1,), value)
        elif how == "count":
            self.scaler._growth_tracker.fill_(2)
        elif how == "replace count":
            self.scaler._growth_tracker = torch.tensor(1, dtype=torch.int32)
        else:
            self.scaler._scale.data.fill_(value)

    def check(self, i):
        return list(self.scaler._check_inf_per_device(self.optimizers[i]).values())

    def found(self, i):
        return list(self.scaler._found_inf_per_device(self.optimizers[i]).values())


def through_a_file(thing, weights_only):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=weights_only)


COPIES = {
    "pickle": lambda scaler: pickle.loads(pickle.dumps(scaler)),
    "fork": lambda scaler: pickle.loads(ForkingPickler.dumps(scaler)),  # as multiprocessing passes it on
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch.save": lambda scaler: through_a_file(scaler, False),
}


def plain(value):
    """Values that compare equal only if every bit is."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            return "sparse", value.is_coalesced(), plain(value._indices()), plain(value._values())
        data = value.detach()
        data = data.view(torch.int16) if data.dtype is torch.bfloat16 else data  # which NumPy lacks
        return value.dtype, value.shape, value.requires_grad, data.numpy().tobytes()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value).hex()
    if isinstance(value, dict):
        return "dict", [(plain(key), plain(v)) for key, v in value.items() if key != "gradscaler"]
    if isinstance(value, (list, tuple, set)):
        return type(value).__name__, [plain(v) for v in value]
    if inspect.isgenerator(value) or isinstance(value, map):
        return "iterator", [plain(v) for v in value]
    return value


# ---- arguments ----


class Mine(torch.nn.Parameter):
    pass


TREES = {
    "scalar": lambda: torch.tensor(1.5),
    "requires grad": lambda: torch.full((3,), 1.5, requires_grad=True),
    "float16": lambda: torch.tensor([60000.0, 1e-7], dtype=torch.float16),
    "float64": lambda: torch.tensor(1.1, dtype=torch.float64),
    "int64": lambda: torch.tensor([1, 2]),
    "complex": lambda: torch.tensor([1 + 2j]),
    "inf": lambda: torch.tensor([float("inf"), float("nan"), 1.0]),
    "empty": lambda: torch.zeros(0),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "parameter": lambda: Mine(torch.ones(2)),
    "list": lambda: [torch.ones(2), torch.tensor(3.0, dtype=torch.float64)],
    "nested": lambda: [torch.ones(1), (torch.ones(2), [torch.tensor(0.1)])],
    "generator": lambda: (torch.full((), float(i)) for i in range(3)),
    "dict of names": lambda: {"loss": torch.ones(1)},
    "point": lambda: Point(torch.ones(1), torch.ones(1)),
    "None": lambda: None,
    "list of numbers": lambda: [torch.ones(1), 3.0],
}
TENSORS = {
    "tensor": lambda: torch.tensor(4.0),
    "one element": lambda: torch.tensor([[512.0]]),
    "float64": lambda: torch.tensor(0.1, dtype=torch.float64),
    "int": lambda: torch.tensor(8),
    "two": lambda: torch.tensor([1.0, 2.0]),
    "none": lambda: torch.zeros(0),
    "grad": lambda: torch.tensor(4.0, requires_grad=True),
}
SCALES = (1.0, 2.0, 1024.0, 65536.0, 65536, 3.0, 0.1, 1e-3, 2.0**-14, 2.0**24, 2.0**120)
BAD_SCALES = (0.0, -1.0, math.inf, math.nan)
ENTRIES = ("growth_factor", "growth_interval", "_growth_tracker")
WRITES = ("fill", "replace", "one element", "count", "replace count")
GETTERS = (
    "get_scale", "get_growth_factor", "get_backoff_factor", "get_growth_interval", "is_enabled", "state_dict",
    "_get_growth_tracker", "_get_scale_async",
)  # fmt: skip


def construction(draw):
    kwargs = {
        "init_scale": draw.choice(SCALES),
        "growth_factor": draw.choice((2.0, 2.0, 4.0, 1.5, 1.001, 1.0, 0.5)),
        "backoff_factor": draw.choice((0.5, 0.5, 0.25, 0.9, 0.3, 1.0, 2.0)),
        "growth_interval": draw.choice((1, 1, 2, 3, 2000)),
        "enabled": draw.random() < 0.95,
    }
    if draw.random() < 0.5:  # seldom something that is refused
        kwargs["growth_factor"], kwargs["backoff_factor"] = 2.0, 0.5
    if draw.random() < 0.02:
        kwargs["init_scale"] = draw.choice(BAD_SCALES)
    form, some = draw.random(), {name: value for name, value in kwargs.items() if draw.random() < 0.7}
    if form < 0.05:  # the default device: without CUDA a warning, and disabled
        return ("construct", "default", (), some)
    if form < 0.1:
        count = draw.randrange(1, 6)
        by_name = dict(list(kwargs.items())[count:]) if draw.random() < 0.5 else {}
        return ("construct", "old cuda", tuple(kwargs.values())[:count], by_name)
    if form < 0.15:
        return ("construct", "device", (), {"device": draw.choice(("cuda", "cpu")), **kwargs})
    if form < 0.35:
        return ("construct", "positional", ("cpu", *kwargs.values())[: draw.randrange(1, 7)], {})
    return ("construct", "keywords", ("cpu",), some)


def iteration(draw, optimizers):
    """A step as it should be: several optimizers, some unscaled and clipped, a bad gradient now and then."""
    calls = [("scale", draw.choice(("scalar", "requires grad", "list")))]
    used = [i for i in range(optimizers) if draw.random() < 0.8] or [0]
    for i in used:
        kind = draw.choice(GRADIENTS) if draw.random() < 0.5 else "good"
        if draw.random() < 0.2:
            calls.append(("backward", i, draw.choice((1.0, 1e30, 1e38, 0.0))))
        else:
            calls.append(("gradients", i, kind, draw.randrange(1000)))
        if draw.random() < 0.2:
            calls.append(("gradients", i, draw.choice(SPARSE), draw.randrange(1000)))
        if draw.random() < 0.3:
            calls += [("unscale_", i)] + [("clip", i, draw.choice((1.0, 1e9)))] * (draw.random() < 0.5)
    calls += [("step", i, (), {}) for i in used]
    return [*calls, ("update",)]


def anything(draw, optimizers):
    """One call, in order or not."""
    i = draw.randrange(optimizers)
    return draw.choice((
        lambda: ("scale", draw.choice(list(TREES))),
        lambda: ("gradients", i, draw.choice((*GRADIENTS, *SPARSE)), draw.randrange(1000)),
        lambda: ("backward", i, draw.choice((1.0, 1e38))),
        lambda: ("zero_grad", i, draw.random() < 0.5),
        lambda: ("unscale_", i),
        lambda: ("unscale_", i),
        lambda: ("step", i, (), {}),
        lambda: ("step", i, (), {}),
        lambda: ("step", i, draw.choice(((None,), (1, 2))), {}),
        lambda: ("step", i, (), draw.choice(({"closure": None}, {"closure": sum}, {"loss": 3}, {"raises": MINE}))),
        lambda: ("update",),
        lambda: ("update", draw.choice((*map(float, SCALES), *TENSORS))),
        lambda: ("update", draw.choice((2, *map(float, SCALES), *BAD_SCALES))),
        lambda: ("get", draw.choice(GETTERS)),
        lambda: ("set", "set_growth_factor", draw.choice((2.0, 1.25, 4.0, 3, 0.5))),
        lambda: ("set", "set_backoff_factor", draw.choice((0.75, 0.1, 0.0, 1.5))),
        lambda: ("set", "set_growth_interval", draw.choice((1, 2, 3, 100, -1))),
        lambda: ("load", draw.choice(({}, {"scale": 7.0}, {"scale": 8, "_growth_tracker": 1}, {"growth_interval": 2}))),
        lambda: ("load", {"scale": 9.0}, [draw.choice(("scale", *ENTRIES))]),
        lambda: ("load", {"scale": draw.choice(BAD_SCALES)}),
        lambda: ("load", {}, ("scale", "backoff_factor", *ENTRIES)),
        lambda: ("resume", draw.random() < 0.3),
        lambda: ("pickle", draw.choice(list(COPIES))),
        lambda: ("write", draw.choice(WRITES), draw.choice((16.0, 2.0**16, 0.75))),
        lambda: ("write", draw.choice(WRITES), draw.choice((16.0, 2.0**16, 0.75))),
        lambda: ("check", i),
        lambda: ("found", i),
    ))()  # fmt: skip


def sequence(draw):
    names = [draw.choice(list(OPTIMIZERS)) for _ in range(draw.choice((1, 1, 2, 3)))]
    calls = [construction(draw)]
    for _ in range(draw.randrange(1, 5)):
        if draw.random() < 0.65:
            calls += iteration(draw, len(names))
            if draw.random() < 0.3:  # disturbed
                del calls[draw.randrange(1, len(calls))]
        else:
            calls += [anything(draw, len(names)) for _ in range(draw.randrange(1, 4))]
    return names, calls


# ---- the comparison ----


def same(theirs, ours):
    """Returns are equal; an exception is of the same type and says what torch says, perhaps more."""
    if theirs[0] == ours[0] == "raised" and theirs[1] == ours[1]:
        return ours[2].startswith(theirs[2].rstrip(".")) or from_a_kernel(theirs)
    return theirs == ours


def overflow_by_unscaling(call, worlds):
    """Returns whether a gradient is finite, as torch found, but not after unscaling."""
    scale, grads = worlds[1].scaler.get_scale(), gradients(worlds[1].optimizers[call[1]])
    return scale < 1 and any(
        (g.abs() / scale > torch.finfo(g.dtype).max).any() for g in grads if g is not None and not g.is_sparse
    )


def shares_a_gradient(call, worlds):
    """Returns whether two parameters of the optimizer have one gradient."""
    known = [id(g) for g in gradients(worlds[1].optimizers[call[1]]) if g is not None]
    return len(set(known)) < len(known)


def numbers_of(call):
    """All numbers among the arguments of a call."""
    parts = [call]
    for part in parts:
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, tuple) else ()
    return [part for part in parts if isinstance(part, (int, float))]


def deviations(call, theirs, ours, worlds):
    """Returns whether a call is a case of each title in the module's documentation, which says why ours differs."""
    name, checks = call[0], call[0] in ("unscale_", "step", "check")
    answers, refuses = (theirs[0], ours[0]) == ("raised", "returned"), ours[1] in ("ValueError", "Error")
    return {
        "a disabled scaler answers its getters": answers and name == "get" and theirs[1] == "AttributeError",
        "complex gradients are unscaled": answers and "for 'ComplexFloat'" in theirs[2],
        "infinities that unscaling makes are overflows": checks and overflow_by_unscaling(call, worlds),
        "a gradient that two parameters share is unscaled once": (
            checks and name != "check" and shares_a_gradient(call, worlds)
        ),
        "an infinite or NaN scale is refused, as are 0 and less": (
            refuses and any(bad in BAD_SCALES for bad in numbers_of(call))
        ),
        "rules that no scale can follow are refused": refuses and name == "set" and call[2] in (0.5, -1, 0.0, 1.5),
        "a scale of 0 stops with StallError": ours[1] == "StallError",
        "what is refused changes nothing": name == "load" and ours[1] == "KeyError",
        "a fused optimizer can step again after its step failed": checks and call[1] in worlds[0].failed,
        "new_scale can have any shape of one element, and can be an int": (
            answers and name == "update" and call[1:] in (("one element",), (2,))
        ),
    }


def from_a_kernel(outcome):
    """Messages of torch's dispatcher name its own operators."""
    return "not implemented for" in outcome[2] or "Could not run 'aten" in outcome[2]


def first_difference(names, calls):
    """(index, theirs, ours) of the first call after which the worlds differ, or None."""
    worlds = World(THEIRS, names), World(OURS, names)
    for index, call in enumerate(calls):
        gave = [world.do(call) for world in worlds]
        if call[0] == "construct" and gave[0][0] == "raised" and same(*gave):
            return None
        last = index == len(calls) - 1
        touched = range(len(names)) if last else [call[1]] if call[0] in ("unscale_", "step", "clip", "check") else []
        seen = [world.see(*touched) for world in worlds]
        if not same(*gave) or seen[0] != seen[1]:
            listed = deviations(call, *gave, worlds)
            return None if any(listed.values()) else (index, *(seen if same(*gave) else gave))
    return None


def test_random_call_sequences(request):
    count, calls_made = 500_000 if request.config.getoption("--long") else 4_000, 0
    for number in range(count):
        names, calls = sequence(random.Random(f"0 {number}"))
        calls_made += len(calls)
        if found := first_difference(names, calls):
            index, theirs, ours = found
            made = "".join(f"    {call}\n" for call in calls[: index + 1])
            raise AssertionError(f"sequence {number}, optimizers {names}:\n{made}torch: {theirs}\n ours: {ours}")
    assert calls_made > 10 * count


@pytest.mark.parametrize("title", deviations(("none",), ("", "", ""), ("", "", ""), None))
def test_a_deviation_is_documented(title):
    assert title in " ".join(gradscaler.torch.__doc__.split())


# ---- every number of 16 bits, and many of 32 and 64, by scales of all kinds ----

DIVISORS = (1.0, 2.0, 2.0**16, 2.0**24, 2.0**-14, 2.0**120, 2.0**-120, 3.0, 0.1, 65535.0, 1.0 + 2.0**-23, 1e30, 1e-30)


def patterns(dtype):
    """All bit patterns, or a sample: every exponent with both signs, Inf, NaN, subnormals among them."""
    if dtype.itemsize == 2:
        return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    return torch.frombuffer(bytearray(random.Random(0).randbytes(100_000 * dtype.itemsize)), dtype=dtype)


class AllowsFloat16(THEIRS):
    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


def unscaled(scaler, values):
    """Returns what unscale_ makes of these gradients, with one NaN for all, and whether it found an overflow."""
    optimizer = sgd(values.clone())
    begun(scaler).unscale_(optimizer)
    (found,), (made,) = scaler._found_inf_per_device(optimizer).values(), gradients(optimizer)
    return made.masked_fill(made.isnan(), torch.nan), bool(found)


@pytest.mark.parametrize("scale", DIVISORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", [None, "torch"])
def test_gradients_divided_by_the_scale_have_torchs_bits(backend, dtype, scale):
    values = patterns(dtype)
    for part in values, values[values.isfinite()]:
        theirs, their_found = unscaled(AllowsFloat16("cpu", scale), part)
        ours, found = unscaled(OURS("cpu", scale, allow_fp16=True, backend=backend), part)
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        assert found == (their_found or not theirs.isfinite().all())
