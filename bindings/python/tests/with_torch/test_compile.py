# SPDX-License-Identifier: MIT
"""A training step in one graph, compiled once, whatever the scale does."""

import copy
import math
import pickle

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gradscaler import Policy
from gradscaler.torch import GradScaler, StallError, TensorScaler

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def traced_backward():
    torch._dynamo.reset()
    with torch._dynamo.config.patch({"trace_autograd_ops": True} if CAN_TRACE_BACKWARD else {}):
        yield


CAN_TRACE_BACKWARD = hasattr(torch._dynamo.config, "trace_autograd_ops")  # from torch 2.11 on
whole_step = pytest.mark.skipif(not CAN_TRACE_BACKWARD, reason="this torch traces no backward")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def batches():
    generator = torch.Generator().manual_seed(1)
    xs = torch.randn(12, 16, 5, generator=generator)
    xs[4, 0, 0] = math.inf
    return xs


def step_of(scaler, model, backward):
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


@whole_step
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("backward", [True, False])
def test_a_whole_step_is_one_graph_compiled_once_over_growths_and_overflows(backend, backward):
    model, other = network(), network()
    scaler, plain = (TensorScaler("torch", init_scale=8.0, growth_interval=2) for _ in range(2))
    count = CompileCounterWithBackend(backend)
    compiled = torch.compile(step_of(scaler, model, backward), fullgraph=True, backend=count)
    eager = step_of(plain, other, backward)
    scales = set()
    for x in batches():
        found, expected = compiled(x), eager(x)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True)
        assert scaler.loss_scale == plain.loss_scale
        assert bytes(scaler.state.numpy()) == bytes(plain.state.numpy())
        scales.add(scaler.loss_scale.item())
    assert count.frame_count == 1 and len(scales) == 5
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_its_bits_are_those_of_gradscaler():
    model, other = network(), network()
    scaler, reference = TensorScaler("torch", growth_interval=2), GradScaler("cpu", growth_interval=2)
    step, optimizer = step_of(scaler, model, False), torch.optim.SGD(other.parameters(), lr=0.1)
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


def test_nothing_in_a_step_looks_at_a_value_so_that_nothing_waits():
    scaler, model = TensorScaler("torch"), network()
    step = step_of(scaler, model, False)
    graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(torch.ones(16, 5))
    called = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert {"gradscaler.unscale_.default", "gradscaler.update_.default"} <= called
    assert not [name for name in called if "local_scalar_dense" in name or "aten.item" in name]


def test_the_operators_keep_their_contract():
    scaler = TensorScaler("torch", init_scale=4.0)
    gradients = [torch.ones(3), torch.ones(2, 2, dtype=torch.bfloat16)]
    arguments = (gradients, scaler.state, scaler.report_tensor, scaler.pending, scaler._saved, 0, 1.0)
    torch.library.opcheck(torch.ops.gradscaler.unscale_.default, arguments)
    arguments = (scaler.state, scaler.loss_scale, scaler.report_tensor, scaler.pending, scaler._saved)
    torch.library.opcheck(torch.ops.gradscaler.update_.default, arguments)


def test_gradients_that_it_cannot_take_are_named_when_the_step_is_traced():
    scaler = TensorScaler("torch", init_scale=4.0)
    half = [torch.ones(3), torch.ones(3, dtype=torch.float16)]
    with pytest.raises(ValueError, match=r"gradients\[1\] is in float16"):
        scaler.unscale_(half)
    assert half[0].tolist() == [1, 1, 1]
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ValueError, match=r"gradients\[1\] is in float16"):
        scaler.unscale_([torch.ones(3), torch.ones(3, dtype=torch.float16)])
    for max_norm in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="max_norm"):
            scaler.unscale_([torch.ones(3)], max_norm=max_norm)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_overflow_counts_once_and_is_not_lost_by_another_call_before_update(compiled):
    scaler = TensorScaler("torch", init_scale=8.0)

    def step(first, second, third):
        verdicts = [scaler.unscale_([gradient], max_norm=1e9) for gradient in (first, second)]
        scaler.update()
        scaler.update()  # without a report: nothing changes
        return [*verdicts, scaler.unscale_([third])]

    step = torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step
    bad, good = torch.tensor([1.0, math.nan, 2.0]), torch.tensor([24.0, 32.0, 0.0])
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
    scaler = TensorScaler("torch", init_scale=2.0**-149)
    for _ in range(2):
        scaler.unscale_([torch.tensor([math.nan])])
        assert not scaler.stopped
        scaler.update()
        if scaler.loss_scale == 0:
            break
    gradient = torch.ones(3)
    with pytest.raises(StallError, match=r"loss scale is 0.*min_scale") as caught:
        scaler.unscale_([gradient])
    assert caught.value.report.nan_count == 1 and gradient.tolist() == [1, 1, 1]
    guard = TensorScaler(Policy("guard", max_failed_backoffs=2))
    for _ in range(2):
        assert not guard.stopped
        guard.unscale_([torch.tensor([math.nan])])
        guard.update()
    assert guard.stopped


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_that_are_none_are_passed_over(compiled):
    scaler = TensorScaler("torch", init_scale=4.0)
    unscale = torch.compile(scaler.unscale_, fullgraph=True, backend="aot_eager") if compiled else scaler.unscale_
    gradient = torch.full((4,), 8.0)
    assert unscale([None, gradient, None]) == (0, 4) and gradient.tolist() == [2] * 4


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.optim.SGD([torch.zeros(1)]), None, torch.nn.Linear(1, 1)])
def test_what_is_no_sequence_of_gradients_is_refused_by_its_type(wrong):
    with pytest.raises(TypeError, match=rf"of type {type(wrong).__name__}: expected a sequence of tensors"):
        TensorScaler("torch").unscale_(wrong)


def test_a_checkpoint_restores_policy_and_state_in_the_same_tensors():
    scaler, other = TensorScaler("torch", init_scale=4.0, growth_interval=1), TensorScaler(Policy("recommended"))
    scaler.unscale_([torch.ones(3)])
    scaler.update()
    state = other.state
    other.load_state_dict(scaler.state_dict())
    assert other.loss_scale == 8 and other.state is state and torch.equal(state, scaler.state)
    assert bytes(other.policy) == bytes(scaler.policy)


def test_tensors_of_before_0_9_are_read():
    scaler = TensorScaler("torch", init_scale=4.0)
    scaler.unscale_([torch.tensor([math.inf])])
    scaler.update()
    scaler.unscale_([torch.ones(3)])
    old = copy.deepcopy(scaler)
    old.state, old.report_tensor = scaler.state[:256].clone(), scaler.report_tensor[:192].clone()
    old.state[172:176] = 0  # where skip is now
    old.report_tensor[12], old.report_tensor[120] = old.report_tensor[12] ^ 7, 0  # what was absent, and no kind
    for restored in copy.deepcopy(old), pickle.loads(pickle.dumps(old)):
        assert torch.equal(restored.state, scaler.state) and torch.equal(restored.report_tensor, scaler.report_tensor)
        restored.update()
        assert restored.loss_scale == 2


def test_scale_of_gradscaler_is_traced_and_compiled_once():
    model, scaler = network(), GradScaler("cpu", init_scale=8.0, growth_interval=1)
    scaler.scale(torch.zeros(()))  # makes the scale, which is lazy, as in torch
    optimizer, count = torch.optim.SGD(model.parameters(), lr=0.1), CompileCounterWithBackend("aot_eager")
    scaled_loss = torch.compile(lambda x: scaler.scale(model(x).square().mean()), fullgraph=True, backend=count)
    for i, x in enumerate(batches()[:4]):
        assert scaled_loss(x) == model(x).square().mean() * 8 * 2**i
        scaled_loss(x).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert count.frame_count == 1


class Devices(torch.utils._python_dispatch.TorchDispatchMode):
    """On which devices the tensors of all operations are."""

    def __init__(self):
        super().__init__()
        self.seen, self.names = set(), set()

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        result = operation(*arguments, **(options or {}))
        leaves = torch.utils._pytree.tree_leaves((arguments, options, result))
        self.seen |= {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self.names.add(str(operation))
        return result


def test_on_a_device_all_of_a_step_stays_there():
    """With tensors that have a device but no memory: what a graph captures, as far as can be said without a device."""
    scaler = TensorScaler("torch")
    with FakeTensorMode(allow_non_fake_inputs=True):
        for name in ("state", "report_tensor", "loss_scale", "pending"):
            tensor = getattr(scaler, name)
            setattr(scaler, name, torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda"))
        gradients = [torch.empty(4, 4, device="cuda"), torch.empty(4, device="cuda", dtype=torch.bfloat16)]
        with Devices() as devices:
            scaler.scale(torch.empty((), device="cuda"))
            found_inf, norm = scaler.unscale_(gradients, max_norm=1.0)
            scaler.update()
        with pytest.raises(ValueError, match=r"gradients\[0\] is on cpu, the scaler on cuda:0"):
            scaler.unscale_([torch.empty(3)])
    assert found_inf.device.type == norm.device.type == "cuda"
    assert devices.seen == {"cuda"}
    assert not [name for name in devices.names if "local_scalar_dense" in name or "aten.item" in name]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.5),
    "foreach": lambda p: torch.optim.SGD(p, 0.5, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.1),
    "fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}
COMPILED = {  # of the parts of a step those that are compiled together
    "unscale_": [["backward"], ["unscale_"], ["step"], ["update"]],
    "unscale_ and step": [["backward"], ["unscale_", "step"], ["update"]],
    "step": [["backward"], ["step"], ["update"]],
    "update": [["backward"], ["unscale_"], ["step"], ["update"]],
    "all": [["backward", "unscale_", "clip", "step", "update"]],
    "scale": [["backward"], ["unscale_"], ["step"], ["update"]],
}


def trained(kind, optimizer, what, backend, starts):
    """Parameters and scale after four steps, the third of which overflows."""
    torch._dynamo.reset()
    model = network()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    scaler = kind("cpu", init_scale=1024.0, growth_interval=2)
    if starts:  # the scale, which is lazy, is made before anything is compiled
        scaler.scale(torch.zeros(()))

    def loss(x):
        return scaler.scale(model(x).square().mean())

    loss = torch.compile(loss, backend=backend) if what == "scale" else loss
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
        for names in COMPILED[what]:
            part = torch.compile(run, backend=backend) if names[0] in what or what == "all" else run
            part(names, x)
    return [parameter.detach().clone() for parameter in model.parameters()], scaler.get_scale()


PROGRAMS = [("sgd", what, backend) for what in COMPILED for backend in ("eager", "aot_eager")]
PROGRAMS += [(name, what, "aot_eager") for name in [*OPTIMIZERS][1:] for what in ("unscale_ and step", "all")]


@pytest.mark.parametrize("starts", [True, False], ids=["started", "unstarted"])
@pytest.mark.parametrize("optimizer, what, backend", PROGRAMS)
def test_what_is_compiled_with_torchs_class_gives_the_same_with_ours(optimizer, what, backend, starts):
    theirs = trained(torch.amp.GradScaler, optimizer, what, backend, starts)
    ours = trained(GradScaler, optimizer, what, backend, starts)
    assert theirs[1] == ours[1] == 1024.0
    assert all(torch.equal(a, b) for a, b in zip(theirs[0], ours[0], strict=True))
