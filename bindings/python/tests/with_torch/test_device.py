# SPDX-License-Identifier: MIT
"""A scale on a device, on a stand-in for the driver that runs the library's kernels in host memory.

The tensors of this test are torch's on the CPU; the scaler takes them for tensors on device 0. So this is
about our calls, not about torch's own on a device. Where the driver is another, or none, these tests are skipped;
`ci/test torch` puts the stand-in where the driver is looked for.
"""

import itertools
import json
import random
import re
import time
import weakref
from functools import partial

import pytest
import torch
from conftest import gradients, make_step, parameters, scaler, sgd
from planted import WIDTH, Net
from support import move, standin

from gradscaler import Event, Guard, Loss, Policy, Want, _cuda
from gradscaler import _gradscaler as c
from gradscaler.torch import GradScaler, StallError, _device

pytestmark = pytest.mark.skipif(standin() is None, reason="no stand-in for the driver: ci/test torch")
NAN = float("nan")


class OnDevice:
    """A tensor that says it is on device 0."""

    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        return move(self.tensor.detach().__dlpack__(max_version=(1, 0)), self.__dlpack_device__())


def wait():
    c.gsc_exec_wait((_device._cuda.device(0).context, 0, None))


data = _device.data


@pytest.fixture
def device(monkeypatch):
    """Within it the host is device 0."""

    def hold(tensors, _):
        lent = [OnDevice(tensor) for tensor in tensors]
        return c.hold(lent, lent, 0, -1)

    with monkeypatch.context() as patch:
        patch.setattr(_device, "ordinal", lambda _: 0)
        patch.setattr(_device, "stream", lambda _: 0)
        patch.setattr(_device, "hold", hold)
        patch.setattr(_device, "data", lambda tensor: (wait(), data(tensor))[1])
        waits_after(patch, "gsc_state_init_from")
        yield patch


def waits_after(patch, *names):
    """Makes calls of the library wait: torch's own calls here do not wait for what is enqueued."""
    for name in names:
        call = getattr(c, name)
        patch.setattr(c, name, lambda *arguments, call=call: (call(*arguments), wait())[0])


def trained(scale, fused, clip, wait, **rules):
    """Scales, returns and parameters of a run with overflows, scales from outside and restarts."""
    torch.manual_seed(1)
    chance = random.Random(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2, fused=fused)
    one, log = GradScaler("cpu", scale, **rules), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 8)).square().mean() * (float("inf") if chance.random() < 0.2 else 1.0)
        one.scale(loss).backward()
        norm = one.unscale_(optimizer, max_norm=clip) if clip else None
        wait()
        result = one.step(optimizer)
        wait()
        report = one.report
        log.append((result, one.step_was_skipped, norm and norm.item(), report.bad, report.elements, one.reason))
        one.update(None if chance.random() < 0.9 else 777.7)
        wait()
        judges = one._policy.bad_loss_rule  # else only the host looks at the losses, after an overflow
        metrics = {name: value for name, value in one.metrics().items() if judges or "bad_loss" not in name}
        log.append((one.get_scale(), one._growth_tracker.item(), metrics))
        if chance.random() < 0.1:
            one._scale.fill_(1234.5)
        if chance.random() < 0.2:
            state, one = one.state_dict(), GradScaler("cpu", **rules)
            one.load_state_dict(state)
    return log, [parameter.tolist() for parameter in model.parameters()]


def apart(policy):
    """Two optimizers step as one, and a third one after the update()."""
    one, log = GradScaler("cpu", 4.0, policy=policy, growth_interval=1), []
    optimizers = [sgd(torch.zeros(3), fused=fused) for fused in (False, True, False)]
    for bad in None, 0, None, 1:
        for i, optimizer in enumerate(optimizers):
            (weight,) = parameters(optimizer)
            weight.grad = torch.full((3,), NAN if i == bad else one.get_scale() * (i + 1))
        one.scale(torch.ones((), requires_grad=True))
        log.append(one.step_all(optimizers[:2], max_norm=2.0).item())
        for late in False, True:
            if late:
                one.step(optimizers[2])
            log.append((one.report.scale, one.step_was_skipped))
            one.update()
            log.append((one._memory.read().events & Event.STALE, one.metrics()["loss_scale"]))
    return log, [parameter.tolist() for optimizer in optimizers for parameter in parameters(optimizer)]


@pytest.mark.parametrize("policy", [None, "recommended"])
@pytest.mark.filterwarnings("ignore:update.. was called between")
def test_optimizers_that_step_as_one_and_late_gradients_on_a_device_are_as_on_the_host(device, policy):
    waits_after(device, *("gsc_unscale", "gsc_measure", "gsc_report_merge", "gsc_factor_clip_grad_norm"))
    waits_after(device, "gsc_state_update", "gsc_state_init_from")
    there = apart(policy)
    device.undo()
    assert there == apart(policy)
    events = [entry for entry in there[0] if isinstance(entry, tuple) and not isinstance(entry[1], bool)]
    assert [bool(stale) for stale, _ in events] == [False, True] * 4


RULES = [
    {"growth_interval": 3, "hold_bad_loss": True},
    {"growth_interval": 3},
    {"growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 3},
    {"hysteresis": 2},
    {"policy": Policy("torch", growth_interval=3, apply_delay=1)},
]


GUARD = partial(Policy, "torch", growth_interval=3, guard_ratio=1.2, guard_warmup=4, guard_decay=0.9)
GUARDS = [{"policy": GUARD()}, {"policy": GUARD(guard_flags=Guard.CLIP)}]
WAYS = [*itertools.product(RULES, (False, True), (None, 0.5)), *itertools.product(GUARDS, (False, True), (None,))]


@pytest.mark.parametrize(("rules", "fused", "clip"), WAYS)
def test_training_on_a_device_has_the_bits_of_the_host(device, rules, fused, clip):
    if rules in GUARDS:
        waits_after(device, "gsc_state_update", "gsc_factor_clip_outlier")
    there = trained(3000.0, fused, clip, wait, **rules)
    device.undo()
    assert there == trained(3000.0, fused, clip, lambda: None, **rules)
    reasons = {entry[-1].split(":")[0].split(" to ")[0] for entry in there[0][::2] if entry[-1]}
    assert reasons == {"skipped"} | ({"clipped"} if rules == GUARDS[1] else set())


def known(text):
    """The lines without what the host does not know of a fused step: names."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        line |= {"tensors": None, "tensor_count": None, "zeros": None, "reason": None}
    return lines


def history_of(path):
    """The lines of a run, and how often a device was waited for before they were written, which needs no update."""
    optimizer, one, waits, read = sgd([0.0, 0.0], fused=True), GradScaler("cpu", growth_interval=3), [], _device.data
    with one.history(path, interval=0.05, times=False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_device, "data", lambda tensor: (waits.append(1), read(tensor))[1])
        for i in range(20):
            one.scale(torch.ones(()))
            gradients(optimizer)[0].fill_(NAN if i == 5 else 65536.0)
            make_step(one, optimizer)
            wait()
        count = len(waits)
        while path.read_text().count("\n") < 21:
            time.sleep(0.01)
        assert len(waits) == count
    return re.sub('"run":"[^"]*",', "", path.read_text()), count


def test_a_history_on_a_device_waits_for_nothing_and_has_the_lines_of_the_host(device, tmp_path):
    waits_after(device, "gsc_state_update")
    there, waits = history_of(tmp_path / "there.jsonl")
    device.undo()
    assert waits == 0
    here = history_of(tmp_path / "here.jsonl")[0]
    assert known(there) == known(here)


def test_a_report_of_a_device_is_read_when_it_is_asked_for_with_the_names_and_the_scale_of_when_it_was_made(device):
    optimizer, one = sgd(a=[0.0], b=[4.0, 4.0, 8.0], c=[NAN, NAN, 4.0]), scaler(want=Want.NORM)
    parameters(optimizer)[0].grad = None
    one.unscale_(optimizer)
    check = one._checks.of(optimizer)
    assert isinstance(check.report, torch.Tensor) and check.host_report is None
    optimizer.zero_grad()
    parameters(optimizer)[0].grad = torch.ones(1)
    one.update()
    wait()
    assert one.report.bad == {"c": 2} and one.report.norm == pytest.approx(7**0.5)
    assert (one.report.scale, one.get_scale()) == (4.0, 2.0)


def test_the_cause_is_found_when_the_report_is_read_by_the_losses_of_its_own_step(device):
    model, one = Net(), scaler()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1, fused=True)
    for bad, keeps_loss in (None, True), (1, True), (3, False), (4, True):
        model.bad = bad
        loss = model(torch.ones(1, WIDTH)).mean()
        one.scale(loss).backward()
        if not keeps_loss:
            del loss
        make_step(one, optimizer)
        wait()
        optimizer.zero_grad()
        one.scale(model.blocks["0"](torch.ones(1, WIDTH)).sum())  # the next step
        assert all(weakref.getweakrefs(each) == [] for each in model.parameters())
        assert bad is None or one.report.cause.startswith(f"blocks.{bad}.outer"), one.reason
        one.update(one.get_scale())


def test_gradients_without_dense_memory_and_found_inf_of_others_count_on_a_device(device):
    optimizer, one = sgd([8.0, 8.0], torch.zeros(2)), scaler()
    parameters(optimizer)[1].grad = torch.full((4,), 8.0)[::2]
    assert one.unscale_(optimizer, max_norm=100.0).item() == 4.0
    assert gradients(optimizer)[1].tolist() == [2.0, 2.0]
    for found in one._found_inf_per_device(optimizer).values():
        found.fill_(1.0)
    make_step(one, optimizer)
    wait()
    assert one.step_was_skipped and one.get_scale() == 2.0


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_bad_loss_holds_on_a_device_without_a_wait(device, micro_batches):
    waits_after(device, "gsc_state_update", "gsc_unscale")
    optimizer, one, waits = sgd(w=[4.0], fused=True), scaler(hold_bad_loss=True), []
    device.setattr(_device, "data", waits.append)
    for bad in True, False, True:
        gradients(optimizer)[0].fill_(4.0)
        for i in range(micro_batches):
            one.scale(torch.tensor(NAN if bad and i == 0 else 1.0))
        make_step(one, optimizer)
    assert waits == []
    device.setattr(_device, "data", data)
    assert (one.get_scale(), one.step_was_skipped, one.loss_is_finite) == (4.0, True, False)
    assert (one.report.loss, one.report.overflow) == (Loss.NOT_FINITE, False)
    assert parameters(optimizer)[0].item() == -0.5 and one._state().total_bad_losses == 2
    gradients(optimizer)[0].fill_(NAN)  # of an unknown loss
    make_step(one, optimizer)
    assert (one.get_scale(), one.report.loss) == (2.0, Loss.UNKNOWN)


def test_found_inf_of_others_on_a_device_decides_about_a_bad_loss(device):
    waits_after(device, "gsc_state_update", "gsc_unscale")
    for verdict in 0.0, 1.0:
        optimizer, one = sgd(w=[NAN]), scaler(hold_bad_loss=True)
        one.scale(torch.tensor(NAN))
        one.unscale_(optimizer)
        one._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {torch.device("cpu"): torch.tensor(verdict)}
        make_step(one, optimizer)
        state = one._memory.read()
        assert (bool(state.events & Event.BAD_LOSS), state.factor.scale) == (verdict == 1.0, 4.0)


def test_a_scale_of_0_on_a_device_ends_training_at_the_next_overflow(device):
    one = GradScaler("cpu", 2.0**-149)
    with pytest.raises(StallError, match="scale is 0 after 1 skipped"):
        for _ in range(3):
            one.scale(torch.ones(()))
            make_step(one, sgd([NAN]))


def test_a_fused_optimizer_that_can_only_skip_stops_training_too(device):
    one, late, waits = scaler(2.0**-148), [True], []
    optimizer = sgd(fused=True, weight=[NAN])
    device.setattr(_cuda.HostCopy, "is_complete", lambda self: not late[0])
    device.setattr(_device, "data", waits.append)
    make_step(one, optimizer)  # sends nothing: what is under way is not there
    late[0] = False
    gradients(optimizer)[0].fill_(NAN)
    make_step(one, optimizer)
    assert waits == []
    device.setattr(_device, "data", data)
    gradients(optimizer)[0].fill_(NAN)
    with pytest.raises(StallError, match=r"scale is 0 after \d skipped steps.*gradients have Inf or NaN in weight"):
        make_step(one, optimizer)


def test_a_scale_that_was_mended_does_not_stop_training(device):
    optimizer, one = sgd([NAN], fused=True), scaler(2.0**-149)
    make_step(one, optimizer)
    one.update(4.0)
    for _ in range(3):
        gradients(optimizer)[0].fill_(2.0)
        make_step(one, optimizer)
    assert one.get_scale() == 4.0 and parameters(optimizer)[0].item() == -0.75


def test_what_a_graph_found_is_asked_for_after_each_replay(device):
    one = scaler()
    device.setattr(_device, "captures", lambda _: True)
    make_step(one, sgd([4.0, 8.0], fused=True))
    [found] = one._checks.by_optimizer.values()
    for bad in False, True, False:
        found.found_inf.fill_(bad)
        found.report.view(torch.int32)[_device.OVERFLOW] = bad
        wait()
        assert (one.step_was_skipped, one.report.overflow) == (bad, bad)
