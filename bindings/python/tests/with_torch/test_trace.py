# SPDX-License-Identifier: MIT
"""trace() names the module that makes the first Inf or NaN, raises no false alarm, and leaves the step as it is."""

import contextlib
import copy

import planted
import pytest
import torch
from conftest import scaler
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import gradscaler
from gradscaler.torch import GradScaler, StallError, trace

INF = torch.inf


class Code(nn.Module):
    """A module with this forward pass, and these submodules."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args, **named):
        return self.run(self, *args, **named)


def linear():
    return nn.Linear(4, 4)


def call_a_and_b(between):
    return Code(lambda m, x: m.b(between(m.a(x))), a=linear(), b=linear())


class Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * INF


def failing():
    return Code(lambda m, x: x * INF)


def failing_backward():
    return Code(lambda m, x: Faulty.apply(x))


def traced(model, x=None, loss=lambda y: y.square().mean(), **options):
    x = torch.randn(3, 4) if x is None else x
    with trace(model, **options) as t:
        y = model(x)
        loss(y).backward()
    return t


def has_no_hooks(model):
    modules = list(model.modules())
    hooks = (m._forward_hooks or m._forward_pre_hooks or m._forward_hooks_always_called for m in modules)
    return not any(hooks) and not any(p._backward_hooks for p in model.parameters())


# ---- planted ----


@pytest.mark.parametrize(("direction", "right", "count"), [("forward", 440, 441), ("backward", 408, 414)])
def test_it_names_the_module_and_the_direction(direction, right, count, request):
    every = 1 if request.config.getoption("--long") else 10
    results = []
    for (*_, name, call), model, inputs, targets in planted.failures(direction, every):
        t = traced(model, inputs, lambda y, targets=targets: cross_entropy(y, targets))
        results.append(
            (t.module, t.direction) == (name, direction) and (direction == "backward" or t.first.call == call)
        )
    assert len(results) == -(-count // every)
    assert sum(results) >= len(results) * right // count


FORWARD = {
    "the output of a module": (nn.Sequential(linear(), failing(), linear()), "1", "In the forward pass, 1 made"),
    "code between modules": (call_a_and_b(lambda x: x * INF), "", "code between a and b made"),
    "code after the last module": (
        Code(lambda m, x: m.a(x) * INF, a=linear()),
        "",
        "code in Code, after the last module,",
    ),
    "code before the first module": (
        Code(lambda m, x: m.a(m.p * INF * x), a=linear()),
        "",
        "code in Code, before a, made",
    ),
    "code between inner modules": (
        nn.Sequential(linear(), call_a_and_b(lambda x: x * INF)),
        "1",
        "between 1.a and 1.b",
    ),
    "the second call": (Code(lambda m, x: m.a(m.a(x) * INF), a=linear()), "", "between a and a (call 2)"),
}
FORWARD["code before the first module"][0].p = nn.Parameter(torch.ones(()))


BACKWARD = {
    "a module": (nn.Sequential(linear(), failing_backward(), linear()), "1", "In the backward pass, 1 made"),
    "code between modules": (call_a_and_b(Faulty.apply), "", "code between a and b made"),
    "code after the last module": (Code(lambda m, x: Faulty.apply(m.a(x)), a=linear()), "", "code in Code, after a,"),
    "one of two": (
        Code(lambda m, x: m.c(m.b(y := m.a(x))) + m.d(y), a=linear(), b=linear(), c=failing_backward(), d=linear()),
        "c",
        "In the backward pass, c made",
    ),
}


@pytest.mark.parametrize(
    ("direction", "case"), [("forward", one) for one in FORWARD] + [("backward", one) for one in BACKWARD]
)
def test_the_code_that_made_the_first_inf_is_named(direction, case):
    model, module, words = {"forward": FORWARD, "backward": BACKWARD}[direction][case]
    t = traced(model)
    assert (t.module, t.direction) == (module, direction)
    assert words in t.reason


def test_a_weight_alone_can_overflow():
    t = traced(linear(), torch.full((3, 4), 1e30), loss=lambda y: (y - y.detach()).sum() * 1e30)
    assert (t.module, t.direction, t.first.name, t.first.tensor) == ("", "backward", "weight", "parameter")


def test_the_loss_the_data_and_a_parameter_are_told_apart():
    assert "Look at the loss" in traced(linear(), loss=lambda y: (y * INF).sum()).reason
    assert "Look at the data" in traced(linear(), torch.full((3, 4), INF)).reason
    model = nn.Sequential(linear(), linear())
    with torch.no_grad():
        model[1].bias[2] = torch.nan
    t = traced(model)
    assert (
        t.module == "1"
        and t.reason == "The parameter 1.bias is not finite before the step: 1 NaN in 4 elements of float32."
    )


def test_a_forward_pass_alone_is_traced():
    with trace(nn.Sequential(linear(), failing())) as t, torch.no_grad():
        t._model(torch.ones(3, 4))
    assert (t.module, t.direction) == ("1", "forward")


OPERATORS = {
    "forward": (lambda m, x: (x * 0 + 1e30).square().relu(), "forward", "aten.pow.Tensor_Scalar"),
    "backward": (lambda m, x: Faulty.apply(x).relu(), "backward", "aten.mul.Tensor"),
    # The output is 0: Inf shows in the gradient alone.
    "cause in the forward pass": (lambda m, x: (x * 0 + 100).exp().reciprocal(), "backward", "aten.exp.default"),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_the_operator_is_named(case):
    forward, direction, operator = OPERATORS[case]
    t = traced(nn.Sequential(linear(), Code(forward)), operators=True)
    assert (t.module, t.direction, t.operator) == ("1", direction, operator)
    where = " in the forward pass of 1" if case == "cause in the forward pass" else ""
    assert t.reason.endswith(f"The operator is {operator}{where}.")


# ---- ways to run a model ----

WAYS = {
    "compiled": lambda m: torch.compile(m, backend="eager"),
    "compiled in place": lambda m: (m.compile(backend="eager"), m)[1],
    "checkpointed": lambda m: Code(lambda s, x: checkpoint(s.inner, x, use_reentrant=False), inner=m),
    "checkpointed, reentrant": lambda m: Code(
        lambda s, x: checkpoint(s.inner, x.requires_grad_(), use_reentrant=True), inner=m
    ),
    "two segments": lambda m: Code(
        lambda s, x: checkpoint(s.last, checkpoint(s.inner, x, use_reentrant=False), use_reentrant=False),
        inner=m,
        last=linear(),
    ),
}


@pytest.mark.parametrize("fault", [failing, failing_backward])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_run_a_model(way, fault):
    model = WAYS[way](nn.Sequential(linear(), fault(), linear()))
    direction = "forward" if fault is failing else "backward"
    healthy = WAYS[way](nn.Sequential(linear(), nn.ReLU(), linear()))
    for _ in range(2):
        t = traced(model)
        assert (t.module.removeprefix("inner."), t.direction) == ("1", direction)
        assert not traced(healthy).reason
    assert has_no_hooks(model)


# ---- healthy models ----


def masked(m, x):
    scores = (m.a(x) @ m.b(x).mT).masked_fill(torch.ones(3, 3).triu(1).bool(), -INF)
    return m.softmax(m.scores(scores)) @ x


def guarded(m, x):
    x = m.a(x)
    bad = m.log(x.relu())
    return torch.where(bad.isfinite(), x, x * 2)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x.argmax()

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * 2


def attention(m, x):
    return m.a(x, x, x, attn_mask=nn.Transformer.generate_square_subsequent_mask(3))[0]


def in_inference(m, x):
    with torch.inference_mode():
        mean = m.b(x).clone()
    return m.a(x) * mean.mean().item()


HEALTHY = {
    "mask": Code(masked, a=linear(), b=linear(), softmax=nn.Softmax(-1), scores=nn.Identity()),
    "float mask": Code(attention, a=nn.MultiheadAttention(4, 2)),
    "mask as argument": Code(
        lambda m, x: m.a(x, mask=torch.full((3, 4), -INF)),
        a=Code(lambda m, x, mask: x * mask.exp() + m.b(x), b=linear()),
    ),
    "masked logits": Code(lambda m, x: m.a(x).masked_fill(torch.tensor([0, 0, 0, 1]).bool(), -INF), a=linear()),
    "Inf that is replaced": Code(guarded, a=linear(), log=Code(lambda m, x: x.detach().log())),
    "custom Function": Code(lambda m, x: Double.apply(m.a(x))[0], a=linear()),
    "in place": nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.Dropout(0.5, inplace=True)),
    "in place on a residual": Code(
        lambda m, x: m.relu(m.a(x).add_(m.b(x))), a=linear(), b=linear(), relu=nn.ReLU(True)
    ),
    "shared module": Code(lambda m, x: m.b(m.a(x)), a=(shared := linear()), b=shared),
    "called twice": Code(lambda m, x: m.a(m.a(x)), a=linear()),
    "tuple": Code(lambda m, x: m.b(m.a(x)[1][0]), a=Code(lambda m, x: (1, (m.c(x), None)), c=linear()), b=linear()),
    "dict": Code(lambda m, x: m.b(m.a(x)["y"]), a=Code(lambda m, x: {"y": m.c(x)}, c=linear()), b=linear()),
    "keyword": Code(lambda m, x: m.b(x=m.a(x)), a=linear(), b=Code(lambda m, x: x.tanh())),
    "views": Code(lambda m, x: torch.cat(m.a(x).unbind(1)[:2]), a=linear()),
    "empty": Code(lambda m, x: m.a(x[:0]).sum() + m.a(x), a=linear()),
    "complex": Code(lambda m, x: m.a(x).abs(), a=Code(lambda m, x: torch.fft.fft(m.b(x)), b=linear())),
    "frozen": nn.Sequential(linear().requires_grad_(False), linear()),
    "inference mode inside": Code(in_inference, a=linear(), b=linear()),
    "vmap": Code(lambda m, x: torch.func.vmap(m.a)(x), a=linear()),
    "parametrization": nn.Sequential(nn.utils.parametrizations.weight_norm(linear()), linear()),
    "script": nn.Sequential(torch.jit.script(linear()), linear()),
    "sparse gradient": Code(lambda m, x: m.a(x.argmax(1)), a=nn.Embedding(4, 4, sparse=True)),
    **{net: net for net in planted.NETS},
}


def penalty(y, x):
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return gradient.norm()


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_raise_no_alarm_and_get_the_same_gradients(name, operators):
    def step(context):
        torch.manual_seed(1)
        model.zero_grad()
        with context as t:
            y = model(inputs)
            loss = cross_entropy(y, targets) if isinstance(HEALTHY[name], str) else y.softmax(-1).square().mean()
            loss.backward()
        return t, [loss.detach(), *(p.grad.to_dense() for p in model.parameters() if p.grad is not None)]

    if isinstance(HEALTHY[name], str):
        model, inputs, targets = planted.model_and_batch(name, 0)
    else:
        model, inputs, targets = HEALTHY[name], torch.randn(3, 4), None
    _, expected = step(contextlib.nullcontext())
    t, gradients = step(trace(model, operators=operators))
    assert t.reason == "" and t.module is t.direction is t.first is None
    assert t.rows and "No Inf or NaN" in str(t)
    assert len(gradients) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True))
    assert has_no_hooks(model)


def test_a_gradient_penalty_raises_no_alarm():
    model = nn.Sequential(linear(), nn.Tanh(), linear())
    x = torch.randn(3, 4, requires_grad=True)
    with trace(model) as t:
        y = model(x)
        (y.square().mean() + penalty(y, x)).backward()
    assert t.reason == "" and {row.direction for row in t.rows} == {"forward", "backward"}


def test_micro_batches_and_autocast_raise_no_alarm():
    model, inputs, targets = planted.model_and_batch("gpt", 0)
    with trace(model) as t:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                cross_entropy(model(inputs).float(), targets).backward()
    assert t.reason == ""
    assert {torch.bfloat16, torch.float32} == {row.dtype for row in t.rows}
    assert max(row.call for row in t.rows) == 2


# ---- the end of a trace ----


def test_hooks_are_removed_also_after_errors():
    model = nn.Sequential(linear(), Code(lambda m, x: 1 / 0))
    with pytest.raises(ZeroDivisionError), trace(model) as t:
        model(torch.ones(3, 4))
    assert has_no_hooks(model) and len(t.rows) == 2
    x = model[0](torch.ones(3, 4))
    with contextlib.suppress(ZeroDivisionError), trace(model):
        model(x)
    x.sum().backward()
    assert len(t.rows) == 2


def test_on_a_device_the_numbers_are_read_at_the_end(monkeypatch):
    def numbers(t):
        values = ((row.smallest, row.greatest, row.inf, row.nan, row.zeros, row.subnormals) for row in t.rows)
        return torch.tensor(list(values))

    model = nn.Sequential(linear(), failing(), linear().double())
    model[1].run = lambda m, x: (x * INF).double()
    on_host = traced(model, torch.eye(4), underflow=True)
    monkeypatch.setattr(gradscaler.torch._trace, "_HOST", "none")
    later = traced(model, torch.eye(4), underflow=True)
    assert all(row.smallest == 0 for row in later._rows)
    torch.testing.assert_close(numbers(later), numbers(on_host), equal_nan=True, rtol=0, atol=0)
    assert later.reason == on_host.reason != ""


def test_a_later_backward_adds_no_rows():
    model = linear()
    with trace(model) as t:
        y = model(torch.ones(3, 4))
    y.sum().backward()
    assert [row.direction for row in t.rows] == ["forward", "forward"]


def test_only_modules_are_traced():
    with pytest.raises(TypeError, match="takes a torch.nn.Module, not function"):
        trace(lambda x: x)


# ---- what is shown ----


def test_the_numbers_of_a_row():
    values = torch.tensor([0.0, 2.0, -4.0, 1e-40], dtype=torch.float32, requires_grad=True)
    t = traced(nn.Sequential(nn.Identity()), values, loss=lambda y: y.sum(), underflow=True)
    row = t.rows[0]
    assert (row.largest, row.zeros, row.subnormals, row.elements) == (4.0, 1, 1, 4)
    assert row.headroom == pytest.approx(126, abs=1e-6)
    bad = traced(failing(), torch.tensor([[0.0, 1, 2, 3]]).requires_grad_()).first
    assert (bad.inf, bad.nan, bad.is_finite) == (3, 1, False)


@pytest.mark.wording
def test_it_is_printed_as_a_table():
    torch.manual_seed(0)
    t = traced(nn.Sequential(linear(), failing()), torch.ones(1, 4), underflow=True)
    lines = str(t).splitlines()
    assert lines[0] == "In the forward pass, 1 made the first Inf or NaN: 4 Inf in 4 elements of float32."
    assert lines[2].split() == ["pass", "tensor", "dtype", "largest", "headroom", "zeros", "subnormals", "Inf", "NaN"]
    assert lines[3].split()[:3] == ["forward", "Sequential,", "input"]
    assert lines[5].endswith("<- first") and lines[5].split()[:3] == ["forward", "1", "float32"]
    assert repr(t).startswith("<Trace of Sequential, ") and "<td>1</td>" in t._repr_html_()
    assert "No module of Linear was called." in str(trace(linear()))


def test_a_long_table_shows_the_first_row_that_is_bad():
    layers = [linear() for _ in range(100)]
    layers[70] = failing()
    t = traced(nn.Sequential(*layers))
    assert "<- first" in str(t) and f"{len(t.rows) - 40} more in rows" in str(t)
    assert "more in rows" in str(traced(nn.Sequential(*(linear() for _ in range(100)))))


def test_it_is_drawn(monkeypatch):
    t = traced(nn.Sequential(linear(), failing(), linear()))
    figure = pytest.importorskip("matplotlib.figure").Figure
    assert isinstance(t.plot(), figure)
    axes = figure().subplots()
    assert t.plot(axes) is axes and axes.get_title() == t.reason
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert t.plot() == str(t)


# ---- with a scaler ----


def training(**options):
    torch.manual_seed(0)
    model = nn.Sequential(linear(), Code(lambda m, x: x * m.factor), linear())
    model[1].factor = 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return scaler(**options), model, optimizer


def run_step(scaler, model, optimizer):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_trace_next_traces_one_step(tmp_path):
    amp, model, optimizer = training()
    with amp.history(tmp_path / "run.jsonl"):
        run_step(amp, model, optimizer)
        model[1].factor = INF
        t = amp.trace_next(model)
        run_step(amp, model, optimizer)
        assert t.module == "1" and t.reason in amp.reason and amp.reason.startswith("skipped")
        assert has_no_hooks(model)
        text = (tmp_path / "run.trace.txt").read_text()
        assert text.startswith(f"step 2: {t.reason}")
        count = len(t.rows)
        run_step(amp, model, optimizer)
    assert t.reason not in amp.reason and len(t.rows) == count
    assert (tmp_path / "run.trace.txt").read_text() == text


def test_trace_next_after_the_forward_pass_waits_for_the_next_one():
    amp, model, optimizer = training()
    amp.scale(model(torch.ones(3, 4)).sum()).backward()
    amp.step(optimizer)
    first = amp.trace_next(model)
    t = amp.trace_next(model)
    amp.update()
    assert copy.deepcopy(amp)._trace is None
    run_step(amp, model, optimizer)
    assert t.rows and not first.rows and amp.reason == ""


@pytest.mark.parametrize("calls", [False, True])
def test_a_stall_has_the_trace(calls):
    errors = []
    options = {"on_stall": errors.append} if calls else {}
    amp, model, optimizer = training(
        policy=gradscaler.Policy("torch", init_scale=4.0, max_failed_backoffs=1, min_scale=4.0), **options
    )
    model[1].factor = INF
    t = amp.trace_next(model)
    with contextlib.nullcontext() if calls else pytest.raises(StallError) as caught:
        run_step(amp, model, optimizer)
        run_step(amp, model, optimizer)
    assert t.module == "1" and has_no_hooks(model)
    assert calls or caught.value.__notes__ == [t.reason]


def test_a_disabled_scaler_has_no_next_step():
    with pytest.raises(RuntimeError, match="disabled"):
        GradScaler("cpu", enabled=False).trace_next(linear())
