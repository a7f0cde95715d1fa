# SPDX-License-Identifier: MIT
"""Devices for which the core has no kernels: torch's own operations, on the CPU and on a device without hardware."""

import itertools
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import begun, gradients, make_step, parameters, scaler, sgd
from torch._subclasses.fake_tensor import FakeTensorMode

import gradscaler
from gradscaler import Guard, Policy, Want
from gradscaler.torch import GradScaler

SHAPES = (3, 4), (), (7,), (2, 2, 5)
OPTIMIZERS = {
    "SGD": lambda pairs: torch.optim.SGD(pairs, lr=0.125, momentum=0.5),
    "AdamW": lambda pairs: torch.optim.AdamW(pairs, lr=0.125),
    "AdamW fused": lambda pairs: torch.optim.AdamW(pairs, lr=0.125, fused=True),
}
POLICIES = {
    "torch": Policy("torch", growth_interval=5, init_scale=2.0**10),
    "held": Policy("recommended", growth_interval=5),
    "guard": Policy("guard", guard_ratio=4.0, guard_warmup=3, init_scale=2.0**10),
    "clip": Policy("guard", guard_ratio=4.0, guard_warmup=3, guard_flags=Guard.CLIP),
}
ALL = Want.NORM | Want.AMAX | Want.UNDERFLOW


def series(seed, count=40):
    """Yields the gradients of steps, some of them with an overflow or with outliers."""
    made, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    for _ in range(count):
        size = rng.choice([1.0] * 8 + [50.0, 1e-3])
        tensors = [size * torch.randn(shape, generator=made) for shape in SHAPES]
        for bad in rng.choices([(), (math.inf,), (-math.inf, math.nan), (math.nan,)], [7, 1, 1, 1])[0]:
            at = rng.choice(tensors).reshape(-1)
            at[rng.randrange(at.numel())] = bad
        yield tensors


def train(kind, optimizer, steps, max_norm=None, **options):
    """Returns what the scaler said after each step, and the parameters."""
    pairs = [(f"p{i}", torch.nn.Parameter(torch.ones(shape))) for i, shape in enumerate(SHAPES)]
    one, made, said = OPTIMIZERS[optimizer](pairs), begun(kind("cpu", **options)), []
    for tensors in steps:
        for (_, p), tensor in zip(pairs, tensors, strict=True):
            p.grad = tensor * made.get_scale()
        if max_norm and kind is GradScaler:
            made.unscale_(one, max_norm=max_norm)
        make_step(made, one)
        row = [made.get_scale(), made._get_growth_tracker()]
        if kind is GradScaler:
            report = made.report
            row += [made.step_was_skipped, report.bad, report.first_overflow, report.nan_count, report.inf_count]
            row += [
                re.sub(r"[\d.]+(e[-+]\d+)?%?", "x", made.reason),
                {k: v for k, v in made.metrics().items() if type(v) is not float},
            ]
        said.append(row)
    return said, [p.detach() for _, p in pairs]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("max_norm", [None, 2.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_scales_decisions_counts_and_names_are_those_of_the_kernels(optimizer, max_norm, policy):
    options = {"policy": POLICIES[policy], "max_norm": max_norm}
    theirs, kept = train(GradScaler, optimizer, series(1), **options)
    ours, moved = train(GradScaler, optimizer, series(1), backend="torch", **options)
    assert ours == theirs
    for one, other in zip(moved, kept, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-7 if max_norm or policy == "clip" else 0, atol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_have_the_bits_of_torchs_class(optimizer):
    numbers = {"init_scale": 2.0**10, "growth_interval": 5}
    ours, moved = train(GradScaler, optimizer, series(2), backend="torch", **numbers)
    theirs, kept = train(torch.amp.GradScaler, optimizer, series(2), **numbers)
    assert [row[:2] for row in ours] == theirs
    assert all(map(torch.equal, moved, kept))


def values(dtype):
    largest = min(torch.finfo(dtype).max, 1e30)
    made = torch.tensor([[1.0, -0.5, math.nan, largest], [0.0, torch.finfo(dtype).tiny, 2.0, 3.0]], dtype=torch.float64)
    if not dtype.is_complex and dtype not in (torch.float8_e4m3fn,):
        made[1, 3] = -math.inf
    return made.to(dtype)


DTYPES = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64


# float8_e4m3fn has no infinity: an overflow that unscaling makes is a NaN there, which the kernels count as Inf.
@pytest.mark.parametrize(
    ("dtype", "scale"), [*itertools.product(DTYPES, [4.0, 0.25]), (torch.float8_e4m3fn, 4.0)], ids=str
)
def test_each_dtype_is_measured_as_by_the_kernels(dtype, scale):
    reports, results = [], []
    for backend in None, "torch":
        one = scaler(scale, policy="torch", allow_fp16=True, want=ALL, backend=backend)
        optimizer = sgd(values(dtype), values(dtype)[:, :2].clone().t(), torch.ones(0), values(torch.float32))
        one.unscale_(optimizer)
        reports.append(one.report)
        results.append(
            [each.to(torch.complex128 if dtype.is_complex else torch.float64) for each in gradients(optimizer)]
        )
    for name in "overflow", "nan_count", "inf_count", "first_overflow", "last_overflow", "bad", "elements":
        assert getattr(reports[0], name) == getattr(reports[1], name), name
    for name in "underflows_to_zero", "underflows_to_subnormal":
        assert getattr(reports[0], name) == getattr(reports[1], name), name
    for name in "norm", "amax":
        assert getattr(reports[1], name) == pytest.approx(getattr(reports[0], name), rel=1e-3), name
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fused", [False, True])
def test_infinities_that_unscaling_makes_are_an_overflow(fused):
    one, optimizer = scaler(2.0**-20, backend="torch"), sgd([1.0], [3e37], fused=fused)
    make_step(one, optimizer)
    assert one.step_was_skipped
    assert one.report.inf_count == 1
    assert not parameters(optimizer)[0].any()


def test_squares_that_float32_cannot_hold_are_measured():
    one, optimizer = scaler(1.0, want=Want.NORM, backend="torch"), sgd([3e30, 4e30], [0.0])
    one.unscale_(optimizer)
    assert (one.report.overflow, one.report.norm) == (False, pytest.approx(5e30))


def test_tensors_that_share_memory_are_refused_or_unscaled_once():
    whole = torch.ones(4)
    twice = sgd(whole, whole)
    scaler(4.0, backend="torch").unscale_(twice)
    assert whole.tolist() == [0.25] * 4
    part = torch.ones(4)
    with pytest.raises(
        ValueError, match="parameter 1, shape .2,. shares memory with the gradient of group 0, parameter 0"
    ):
        scaler(4.0, backend="torch").unscale_(sgd(part, part[2:]))
    assert part.tolist() == [1.0] * 4


def test_tensors_with_objects_for_addresses_are_apart_unless_they_share_a_storage(monkeypatch):
    objects: dict[int, int] = {}

    def address(tensor):  # of a small object that stands for the storage, as on mps
        base = objects.setdefault(tensor.untyped_storage().data_ptr(), 4096 + 16 * len(objects))
        return base + tensor.storage_offset() * tensor.element_size()

    monkeypatch.setattr(gradscaler.torch._device, "_WITH_ADDRESSES", ())
    monkeypatch.setattr(torch.Tensor, "data_ptr", address)
    optimizer = sgd(torch.ones(100), torch.ones(100), torch.ones(()))
    scaler(4.0, backend="torch").unscale_(optimizer)
    assert all(each.eq(0.25).all() for each in gradients(optimizer))
    part = torch.ones(4)
    with pytest.raises(ValueError, match="shares memory with the gradient of"):
        scaler(4.0, backend="torch").unscale_(sgd(torch.ones(100), part, part[2:]))


def test_a_scale_that_other_code_writes_counts_also_if_torch_does_not_know_of_it():
    for write in (lambda t: t.fill_(8.0), lambda t: t.data.fill_(8.0)):
        one, optimizer = scaler(2.0, backend="torch"), sgd([8.0])
        write(one._scale)
        one.unscale_(optimizer)
        assert gradients(optimizer)[0].tolist() == [1.0]
        one.step(optimizer)
        one.update()
        assert one.report.overflow is False
        assert (one.get_scale(), one.metrics()["loss_scale"]) == (8.0, 8.0)


def test_a_count_that_float32_cannot_hold_goes_on():
    one = scaler(1.0, backend="torch", growth_interval=2**25)
    one._growth_tracker.fill_(2**24)
    for step in 1, 2, 3:
        make_step(one, sgd([1.0]))
        assert one._get_growth_tracker() == 2**24 + step


def test_models_without_memory_run_a_step():
    with FakeTensorMode():
        for fused in False, True:
            p = torch.nn.Parameter(torch.ones(3))
            optimizer, one = torch.optim.SGD([p], lr=0.5, fused=fused), GradScaler("cpu")
            one.scale(p.sum()).backward()
            make_step(one, optimizer)
    p = torch.nn.Parameter(torch.ones(3, device="meta"))
    optimizer, one = torch.optim.SGD([p], lr=0.5), GradScaler("cpu")
    p.grad = torch.ones_like(p)
    one._lazy_init_scale_growth_tracker("meta")
    make_step(one, optimizer)
    assert one.report.overflow is False


def test_a_graph_cannot_capture_what_the_host_decides(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        p = torch.nn.Parameter(torch.ones(3, device="cuda"))
        p.grad = torch.ones_like(p)
        one = GradScaler("cuda", backend="torch") if torch.cuda.is_available() else GradScaler("cpu", backend="torch")
        one._lazy_init_scale_growth_tracker(torch.device("cuda", 0))
        with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
            one.unscale_(torch.optim.SGD([p], lr=0.5))


def test_a_device_whose_kernels_cannot_run_is_said_once_and_goes_on(monkeypatch):
    from gradscaler.torch import _device

    def missing(_):
        raise gradscaler.Error("the driver is too old")

    monkeypatch.delenv("GSC_TORCH_PATH", raising=False)
    monkeypatch.setattr(_device._cuda, "device", missing)
    monkeypatch.setattr(_device, "ordinal", lambda device: 0 if device.type == "cuda" else None)
    _device.uses_torch.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"cannot run on cuda:0 \(the driver is too old\): torch's operations"):
            assert _device.uses_torch(torch.device("cuda", 0))
        assert _device.uses_torch(torch.device("cuda", 0))
    finally:
        _device.uses_torch.cache_clear()


def test_a_device_without_hardware_is_trained_on_as_torchs_class_does_on_the_cpu():
    here = Path(__file__).parent
    run = subprocess.run([sys.executable, here / "on_fake_device.py"], capture_output=True, text=True, timeout=300)
    if run.returncode == 77:
        pytest.skip(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
