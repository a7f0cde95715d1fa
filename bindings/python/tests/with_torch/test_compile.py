# SPDX-License-Identifier: MIT
"""A training step in one graph, compiled once, whatever the scale does."""

import copy
import math
import pickle
from functools import partial

import pytest
import torch
from conftest import Operations, begun, make_step
from saved_by_0_9 import SAVED as SAVED_BY_0_9
from support import OBSERVED
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from gradscaler import Error, Policy, Report, Scaler, Status, Want, _lines
from gradscaler.torch import GradScaler, StallError, TensorScaler

NAN = math.nan
CAN_TRACE_BACKWARD = hasattr(torch._dynamo.config, "trace_autograd_ops")  # from torch 2.11 on


@pytest.fixture(autouse=True)
def traced_backward():
    torch._dynamo.reset()
    with torch._dynamo.config.patch({"trace_autograd_ops": True} if CAN_TRACE_BACKWARD else {}):
        yield


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def batches():
    xs = torch.randn(12, 16, 5, generator=torch.Generator().manual_seed(1))
    xs[4, 0, 0] = math.inf
    return xs


def step_of(scaler, model, backward=False):
    """A whole step: scale, backward, unscale, clip, SGD or not, update."""
    parameters = list(model.parameters())

    def step(x):
        loss = model(x).square().mean()
        if backward:
            scaler.scale(loss).backward()
            gradients = [parameter.grad for parameter in parameters]
        else:
            gradients = torch.autograd.grad(scaler.scale(loss), parameters)
        found_inf, norm = scaler.unscale_(gradients, max_norm=0.5)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.copy_(torch.where(found_inf == 0, torch.add(parameter, gradient, alpha=-0.1), parameter))
                parameter.grad = None
        scaler.update()
        return loss.detach(), found_inf, norm

    return step


def step_on(scaler, value):
    scaler.unscale_([torch.tensor([value])])
    scaler.update()


@pytest.mark.skipif(not CAN_TRACE_BACKWARD, reason="this torch traces no backward")
@pytest.mark.parametrize("backend, backward", [("aot_eager", False), ("inductor", True)])
def test_a_whole_step_is_one_graph_compiled_once_over_growths_and_overflows(backend, backward):
    (model, scaler), (other, plain) = (
        (network(), TensorScaler("torch", init_scale=8.0, growth_interval=2)) for _ in range(2)
    )
    count, scales = CompileCounterWithBackend(backend), set()
    compiled = torch.compile(step_of(scaler, model, backward), fullgraph=True, backend=count)
    eager = step_of(plain, other, backward)
    for x in batches():
        for a, b in zip(compiled(x), eager(x), strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
        assert scaler.loss_scale == plain.loss_scale and torch.equal(scaler.state, plain.state)
        scales.add(scaler.loss_scale.item())
    assert count.frame_count == 1 and len(scales) == 5
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_its_bits_are_those_of_gradscaler():
    model, other = network(), network()
    scaler, reference = TensorScaler("torch", growth_interval=2), GradScaler("cpu", growth_interval=2)
    step, optimizer = step_of(scaler, model), torch.optim.SGD(other.parameters(), lr=0.1)
    for x in batches():
        _, found_inf, norm = step(x)
        optimizer.zero_grad()
        reference.scale(other(x).square().mean()).backward()
        assert torch.equal(norm, reference.unscale_(optimizer, max_norm=0.5))
        reference.step(optimizer)
        reference.update()
        assert bool(found_inf) == reference.step_was_skipped == scaler.report.overflow
        assert scaler.loss_scale.item() == reference.get_scale()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_operators_keep_their_contract():
    scaler = TensorScaler("torch", init_scale=4.0)
    gradients = [torch.ones(3), torch.ones(2, 2, dtype=torch.bfloat16)]
    for loss_finite in None, torch.tensor(False):
        arguments = (gradients, scaler.state, scaler.report_tensor, scaler.pending, scaler._saved, 0, 1.0, loss_finite)
        torch.library.opcheck(torch.ops.gradscaler.unscale_.default, arguments)
    arguments = (scaler.state, scaler.loss_scale, scaler.report_tensor, scaler.pending, scaler._saved)
    torch.library.opcheck(torch.ops.gradscaler.update_.default, arguments)


def test_gradients_that_it_cannot_take_are_named_also_when_the_step_is_traced():
    scaler, half = TensorScaler("torch", init_scale=4.0), [torch.ones(3), torch.ones(3, dtype=torch.float16)]
    with pytest.raises(ValueError, match=r"gradients\[1\] is in float16"):
        scaler.unscale_(half)
    assert half[0].tolist() == [1, 1, 1]
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match=r"gradients\[1\] is in float16"):
        scaler.unscale_([torch.ones(3), torch.ones(3, dtype=torch.float16)])
    for max_norm in (0.0, -1.0, math.inf, NAN):
        with pytest.raises(ValueError, match="max_norm"):
            scaler.unscale_([torch.ones(3)], max_norm=max_norm)
    for wrong in torch.ones(3), torch.optim.SGD([torch.zeros(1)]), None, torch.nn.Linear(1, 1):
        with pytest.raises(TypeError, match=rf"of type {type(wrong).__name__}: expected a sequence of tensors"):
            scaler.unscale_(wrong)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_overflow_counts_once_and_is_not_lost_by_another_call_before_update(compiled):
    scaler = TensorScaler("torch", init_scale=8.0)

    def step(first, second, third):
        verdicts = [scaler.unscale_([None, gradient, None], max_norm=1e9) for gradient in (first, second)]
        scaler.update()
        scaler.update()  # without a report: nothing changes
        return [*verdicts, scaler.unscale_([third])]

    step = torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step
    bad, good = torch.tensor([1.0, NAN, 2.0]), torch.tensor([24.0, 32.0, 0.0])
    seen = step(bad, good, torch.tensor([4.0]))
    assert seen == [(1, math.inf), (1, 5), (0, 1)] and scaler.loss_scale == 4
    assert not scaler.report.overflow
    scaler.update()
    state = scaler.state.clone()
    for _ in range(2):
        scaler.update()
    assert torch.equal(scaler.state, state) and scaler.loss_scale == 4
    scaler.unscale_([bad])
    scaler.unscale_([good])
    assert scaler.report.nan_count == 1 and scaler.report.elements == 6
    scaler.load_state_dict(TensorScaler("torch", init_scale=8.0).state_dict())  # lets go of what came before it
    scaler.update()
    assert scaler.loss_scale == 8 and not scaler.report.overflow


def test_a_scale_of_0_raises_stallerror_and_stopped_tells_when_the_policy_gave_up():
    scaler, gradient = TensorScaler("torch", init_scale=2.0**-149), torch.ones(3)
    step_on(scaler, NAN)
    assert scaler.loss_scale == 0 and not scaler.stopped
    with pytest.raises(StallError, match=r"loss scale is 0.*min_scale") as caught:
        scaler.unscale_([gradient])
    assert caught.value.report.nan_count == 1 and gradient.tolist() == [1, 1, 1]
    guard = TensorScaler(Policy("guard", max_failed_backoffs=2))
    for stopped in False, True:
        step_on(guard, NAN)
        assert guard.stopped == stopped


def test_what_0_9_saved_is_refused_by_one_sentence():
    scaler = TensorScaler("torch")
    old, saved = copy.deepcopy(scaler), {"preset": "torch", "saved": SAVED_BY_0_9["bytes"].hex()}
    old.state = torch.frombuffer(bytearray(SAVED_BY_0_9["state"]), dtype=torch.uint8)
    old.pending.fill_(True)
    reads = [lambda: copy.deepcopy(old), lambda: pickle.loads(pickle.dumps(old)), old.update]
    for read in [*reads, lambda: scaler.load_state_dict(saved)]:
        with pytest.raises(Error, match=r"cannot be read by this version \(.*\): 0.9 or an earlier") as refused:
            read()
        assert refused.value.status == Status.ERROR_VERSION


def test_scale_of_gradscaler_is_traced_and_compiled_once():
    model, scaler = network(), begun(GradScaler("cpu", init_scale=8.0, growth_interval=1))
    optimizer, count = torch.optim.SGD(model.parameters(), lr=0.1), CompileCounterWithBackend("aot_eager")
    scaled_loss = torch.compile(lambda x: scaler.scale(model(x).square().mean()), fullgraph=True, backend=count)
    for i, x in enumerate(batches()[:4]):
        assert scaled_loss(x) == model(x).square().mean() * 8 * 2**i
        scaled_loss(x).backward()
        make_step(scaler, optimizer)
        optimizer.zero_grad()
    assert count.frame_count == 1


def test_on_a_device_all_of_a_step_stays_there_and_nothing_waits_for_a_value():
    """With tensors that have a device but no memory: what a graph captures, as far as can be said without a device."""
    scaler = TensorScaler("torch")
    with FakeTensorMode(allow_non_fake_inputs=True):
        for name in ("state", "report_tensor", "loss_scale", "pending"):
            tensor = getattr(scaler, name)
            setattr(scaler, name, torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda"))
        gradients = [torch.empty(4, 4, device="cuda"), torch.empty(4, device="cuda", dtype=torch.bfloat16)]
        with Operations() as operations:
            scaler.scale(torch.empty((), device="cuda"))
            found_inf, norm = scaler.unscale_(gradients, max_norm=1.0)
            scaler.update()
        with pytest.raises(ValueError, match=r"gradients\[0\] is on cpu, the scaler on cuda:0"):
            scaler.unscale_([torch.empty(3)])
    assert found_inf.device.type == norm.device.type == "cuda"
    assert operations.devices == {"cuda"}
    assert not any("local_scalar_dense" in name or "aten.item" in name for name in operations.names)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.5),
    "foreach": lambda p: torch.optim.SGD(p, 0.5, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}
PARTS = {  # of a step: what is compiled, and the calls
    **dict.fromkeys(("unscale_", "update", "scale"), [["backward"], ["unscale_"], ["step"], ["update"]]),
    "unscale_ and step": [["backward"], ["unscale_", "step"], ["update"]],
    "step": [["backward"], ["step"], ["update"]],
    "all": [["backward", "unscale_", "clip", "step", "update"]],
}


def trained(kind, optimizer, what, starts=True):
    """Returns parameters and scale after four steps; the third overflows."""
    torch._dynamo.reset()
    model = network()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    scaler = kind("cpu", init_scale=1024.0, growth_interval=2)
    if starts:  # the scale, which is lazy, is made before anything is compiled
        begun(scaler)
    compiled = partial(torch.compile, backend="aot_eager")

    def loss(x):
        return scaler.scale(model(x).square().mean())

    loss = compiled(loss) if what == "scale" else loss
    parts = {
        "backward": lambda x: loss(x).backward(),
        "unscale_": lambda x: scaler.unscale_(optimizer),
        "clip": lambda x: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "step": lambda x: scaler.step(optimizer),
        "update": lambda x: scaler.update(),
    }

    def run(names, x):
        for name in names:
            parts[name](x)

    for x in batches()[2:6]:
        optimizer.zero_grad()
        for names in PARTS[what]:
            (compiled(run) if what.startswith(names[0]) or what == "all" else run)(names, x)
    return scaler.get_scale(), [parameter.tolist() for parameter in model.parameters()]


PROGRAMS = [("sgd", what, True) for what in PARTS]
PROGRAMS += [("sgd", what, False) for what in ("scale", "all")]
PROGRAMS += [(name, "unscale_ and step", True) for name in OPTIMIZERS if name != "sgd"] + [("fused", "all", False)]


@pytest.mark.parametrize("optimizer, what, starts", PROGRAMS)
def test_what_is_compiled_with_torchs_class_gives_the_same_with_ours(optimizer, what, starts):
    theirs = trained(torch.amp.GradScaler, optimizer, what, starts)
    assert trained(GradScaler, optimizer, what, starts) == theirs
    assert theirs[0] == 1024.0


def test_a_tensor_scaler_answers_with_the_names_that_all_scalers_have(tmp_path):
    scaler, one = TensorScaler("torch"), Scaler("torch")
    assert all(set(dir(kind)) >= OBSERVED for kind in (TensorScaler, GradScaler, Scaler))
    assert (scaler.metrics(), scaler.reason, scaler.report.bad) == (one.metrics(), "", {})
    with scaler.history(tmp_path / "run.jsonl") as history:
        for bad in 1.0, math.nan:
            gradients = [torch.ones(4), torch.tensor([bad])]
            one.update(report := Report.merge([one.measure(gradients, want=Want.NORM)]))
            scaler.unscale_(gradients)
            for _ in "before and after the update":
                known = scaler.metrics(), scaler.reason, scaler.diagnose(planned_steps=9), scaler.report.bad
                assert known == (one.metrics(report), one.reason, one.diagnose(report, planned_steps=9), {})
                scaler.update()
            history.record(scaler)
    rows = _lines.table(tmp_path / "run.jsonl")[1]
    assert [row["total_overflows"] for row in rows] == [0, 1] and "1 NaN" in scaler.reason


def test_the_first_update_without_any_gradient_is_warned_of():
    scaler = TensorScaler("torch")
    with pytest.warns(UserWarning, match="this step had no gradients") as told:
        for _ in range(3):
            scaler.unscale_([None])
            scaler.update()
    assert len(told) == 1 and told[0].filename == __file__
