# SPDX-License-Identifier: MIT
"""gradscaler.roundpipe against recordings, beside RoundPipe's own class, and under threads."""

import copy
import importlib
import importlib.util
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import call, in_a_step, parameter_of, run, set_gradient, sgd, stubs, traces
from support import in_a_forked_child, refusal

import gradscaler
from gradscaler.roundpipe import GradScaler, OptimizerThread, RoundPipeStream

INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def thread():
    with OptimizerThread("test optimizer") as thread:
        yield thread


@pytest.mark.parametrize("settings, trace", traces("roundpipe"))
def test_a_recording_of_roundpipe(settings, trace, thread):
    numbers = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    scaler = GradScaler(*(settings[name] for name in numbers), executor=thread)
    steps = [*trace["scale"], 0].index(0)  # with a scale of 0 RoundPipe would train on, and on nothing
    scales = run(scaler, trace["overflow"][:steps], is_async=bool(settings["apply_delay"]))
    scaler.get_growth_factor(up_to_date=True)
    assert [*scales, scaler.get_scale()] == trace["scale"][: steps + 1]
    if scaler.get_scale() == 0:
        with pytest.raises(ValueError, match="scale is 0"):
            run(scaler, "0")


class Relay:
    """RoundPipe's optimizer stream on a thread of ours, which hands errors to who waits and ends no process."""

    def __init__(self, thread):
        self.thread, self.launched = thread, []

    def launch(self, fn, *args, **kwargs):
        self.launched.append(self.thread.submit(fn, *args, **kwargs))

    def synchronize(self):
        launched, self.launched = self.launched, []
        for each in launched:
            each.result()
        self.thread.submit(lambda: None).result()


@pytest.fixture
def theirs(thread):
    """RoundPipe's class and the relay that it works on. Its package wants CUDA, the files of the class do not."""
    name = "roundpipe"
    found = importlib.util.find_spec(name)
    if found is None:
        pytest.skip("roundpipe has no package for this Python")
    package = {"__path__": found.submodule_search_locations}
    with stubs(name, {name: package, "roundpipe.device": {"get_num_devices": lambda: 0}}):
        module = importlib.import_module("roundpipe.grad_scaler")
        stream = importlib.import_module("roundpipe.optim_stream")
        relay = Relay(thread)
        module.launch_optim_kernel = relay.launch
        module.synchronize_optim = relay.synchronize
        module.on_optim_stream = thread.is_current

        class Theirs(module.GradScaler):
            """Version 0.1.1 with the `is_async` of 0.1.2: both halves take the new scale at once."""

            def update(self, new_scale=None, is_async=True):
                super().update(new_scale)
                if not is_async:
                    relay.synchronize()
                    for half in (self.scale_scaler, self.main_scaler):
                        half._scale.copy_(self.next_scale)

        yield Theirs, relay, stream


CHANCES = [("unscale_", 0.3), ("unscale_", 0.03), ("step", 0.97), ("unscale_", 0.02), ("step", 0.02)]
SETTERS = {"set_growth_factor": (2.0, 1.5, 3.0), "set_backoff_factor": (0.5, 0.7), "set_growth_interval": (1, 2, 3)}


def observed(scaler, optimizers, thread):
    """Returns what both classes show once all submitted work is done: numbers, gradients, parameters."""
    there = thread.submit(scaler.get_scale).result()
    numbers = [getattr(scaler, setter.replace("set", "get"))(up_to_date=True) for setter in SETTERS]
    tensors = [tensor for each in optimizers for tensor in (parameter_of(each).detach(), parameter_of(each).grad)]
    return [scaler.get_scale(), there, *numbers], [None if t is None else t.view(torch.int32).tolist() for t in tensors]


def random_actions(draw):
    """A sequence as a loop has them, now and then with calls in a wrong order."""
    for _ in range(draw.randint(1, 8)):
        used = draw.sample(range(2), draw.randint(1, 2))
        for which in used:
            yield "gradient", which, draw.choice([1.0, 0.1]), draw.choice([None, None, None, INF, -INF, NAN])
        yield "scale", [torch.tensor([1.5, -2.0]), torch.tensor(3.0)]
        for which in used:
            yield from ((action, which) for action, chance in CHANCES if draw.random() < chance)
        yield from ((setter, draw.choice(values)) for setter, values in SETTERS.items() if draw.random() < 0.1)
        new = draw.choice([None] * 8 + [1000.0, torch.tensor(3.0)])
        yield "update", new, draw.random() < 0.8


def test_random_calls_do_what_they_do_in_roundpipes_class(theirs, thread, sequences):
    their_class, relay, _ = theirs
    failed = 0
    for seed in range(sequences):
        draw = random.Random(seed)
        numbers = draw.choice([65536.0, 3.0, 1e-3, 2.0**100]), draw.choice([2.0, 1.5]), draw.choice([0.5, 0.7])
        interval = draw.randint(1, 3)
        ours, their = GradScaler(*numbers, interval, executor=thread), their_class(*numbers, interval)
        pair = [(ours, [sgd(), sgd((5.0, 6.0))]), (their, [sgd(), sgd((5.0, 6.0))])]
        for action in random_actions(draw):
            there = action[0] == "step" and draw.random() < 0.5
            results = [thread.submit(call, *each, *action).result() if there else call(*each, *action) for each in pair]
            if not isinstance(results[1], type) and action[0] == "update":
                try:  # their update fails on the optimizer's thread, ours at the next call
                    relay.synchronize()
                except AssertionError:
                    results[1] = AssertionError
                late = call(*pair[0], "get_growth_factor", True)
                results[0] = late if isinstance(late, type) else None
            assert results[0] == results[1], (seed, action)
            if isinstance(results[1], type):  # after which RoundPipe's process is gone
                failed += 1
                break
            assert observed(*pair[0], thread) == observed(*pair[1], thread), (seed, action)
    assert failed < sequences / 2


def test_inside_roundpipe_its_optimizer_stream_is_the_executor(theirs):
    stream = theirs[2]
    scaler, optimizer = GradScaler(init_scale=4.0), sgd()
    assert isinstance(scaler.executor, RoundPipeStream)
    set_gradient(optimizer, 4.0)
    seen = []
    stream.launch_optim_kernel(lambda: (seen.append(stream.on_optim_stream()), scaler.step(optimizer)))
    scaler.update()
    scaler.get_growth_factor(up_to_date=True)
    assert seen == [True]
    assert parameter_of(optimizer).tolist() == [0.75, 1.5, 2.25]


def test_an_error_on_the_optimizers_thread_reaches_the_caller_and_the_scaler_goes_on(thread):
    scaler, optimizer = GradScaler(init_scale=8.0, executor=thread), sgd()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)  # no gradients
    scaler.update()  # no check either: told by the next call, once
    with pytest.raises(AssertionError, match="prior to update"):
        scaler.get_growth_factor(up_to_date=True)
    set_gradient(optimizer, scaler.get_scale(), INF)
    scaler.step(torch.optim.SGD([parameter_of(optimizer)], lr=1.0))
    scaler.update(is_async=False)
    assert (scaler.total_overflows, scaler.get_scale()) == (1, 4.0)

    class Broken(torch.optim.SGD):
        def step(self):
            raise ArithmeticError("broken")

    broken = Broken([parameter_of(optimizer)], lr=1.0)
    set_gradient(broken, 4.0)
    with pytest.raises(ArithmeticError, match="broken"):
        scaler.step(broken)


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: GradScaler(growth_factor=1.0), AssertionError, "growth factor"),
        (lambda: GradScaler(backoff_factor=1.0), AssertionError, "backoff factor"),
        (lambda: GradScaler(init_scale=-1.0), ValueError, "init_scale"),
        (lambda: GradScaler(executor=3), TypeError, "submit"),
        (lambda: GradScaler(executor=ThreadPoolExecutor(2)), ValueError, "one"),
        (lambda: GradScaler().update(new_scale=-1.0), ValueError, "-1"),
        (lambda: GradScaler().update(new_scale="big"), TypeError, "new_scale"),
        (lambda: GradScaler().update(new_scale=torch.ones(2)), AssertionError, "1-element"),
        (lambda: GradScaler().set_growth_factor(0.5), ValueError, "growth_factor"),
        (lambda: GradScaler().scale(3), ValueError, "int"),
        (lambda: GradScaler().load_state_dict({}), RuntimeError, "empty"),
        (lambda: GradScaler().load_state_dict(GradScaler().state_dict() | {"saved": "00"}), ValueError, "saved"),
        (lambda: GradScaler().step(sgd(), closure=lambda: 0), RuntimeError, "Closure"),
        (lambda: pickle.dumps(in_a_step(GradScaler())), AssertionError, "after update"),
    ],
)
def test_what_is_wrong_is_refused_at_once(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_update_is_refused_on_the_optimizers_thread(thread):
    with pytest.raises(RuntimeError, match="after submitting the step"):
        thread.submit(GradScaler(executor=thread).update).result()


def test_parameters_are_named_in_reports_and_when_they_are_refused(thread):
    layer, scaler = torch.nn.Linear(2, 1), GradScaler(executor=thread)
    layer.weight.grad, layer.bias.grad = torch.tensor([[1.0, NAN]]), torch.ones(1)
    scaler.step(torch.optim.SGD(layer.named_parameters(), lr=1.0))
    assert scaler.report.bad == {"weight": 1}
    layer.half().weight.grad = torch.ones(1, 2).half()
    with pytest.raises(ValueError, match="weight is float16"):
        scaler.unscale_(torch.optim.SGD(layer.named_parameters(), lr=1.0))


def test_gradients_of_any_layout_are_unscaled_where_they_are(thread):
    base = torch.arange(24.0).reshape(2, 3, 4) * 8
    gradients = {
        "transposed": base.permute(2, 0, 1),
        "with gaps": base.repeat(1, 1, 2)[:, :, ::2],
        "expanded": torch.full((1,), 8.0).expand(2, 3),
        "empty": torch.empty(0),
        "complex": torch.complex(base, -base),
        "float64": base.double(),
        "bfloat16": base.bfloat16(),
        "one number": torch.tensor(16.0),
    }
    expected, parameters = [each.clone() / 8 for each in gradients.values()], []
    for gradient in gradients.values():
        parameters.append(torch.nn.Parameter(torch.zeros_like(gradient)))
        parameters[-1].grad = gradient
    sparse = torch.nn.Embedding(4, 2, sparse=True)
    (sparse(torch.tensor([1, 1, 3])).sum() * 8).backward()
    GradScaler(init_scale=8.0, executor=thread).unscale_(torch.optim.SGD([*parameters, sparse.weight], lr=1.0))
    for name, parameter, right in zip(gradients, parameters, expected, strict=True):
        assert torch.equal(parameter.grad, right), name
    assert sparse.weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_any_executor_of_one_thread_will_do():
    with ThreadPoolExecutor(1) as pool:
        scaler, optimizer = GradScaler(init_scale=4.0, executor=pool), sgd()
        set_gradient(optimizer, 4.0)
        pool.submit(scaler.step, optimizer).result()  # which is a call from there
        pool.submit(scaler.set_growth_interval, 1).result()
        scaler.update(is_async=False)
        assert scaler.get_scale() == 8.0


def test_disabled_everything_is_the_optimizers_own():
    scaler, optimizer, loss = GradScaler(enabled=False), sgd(), torch.tensor(2.0)
    set_gradient(optimizer, 1.0, INF)
    assert scaler.scale(loss) is loss
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert not parameter_of(optimizer).isfinite().all()
    assert (scaler.get_scale(), scaler.is_enabled(), scaler.state_dict()) == (1.0, False, {})


def reloaded(scaler):
    again = GradScaler(executor=scaler.executor)
    again.load_state_dict(copy.deepcopy(scaler.state_dict()))
    return again


@pytest.mark.parametrize("copied", [reloaded, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_a_saved_scaler_goes_on_as_if_it_had_not_stopped(copied, thread):
    for at in range(1, 8):
        scaler = GradScaler(growth_interval=2, executor=thread)
        run(scaler, "0010010"[:at])
        assert run(copied(scaler), "00100") == run(scaler, "00100"), at


def test_checkpoints_go_to_torchs_class_and_to_a_plain_scaler_and_come_back(thread):
    scaler, back = GradScaler(growth_interval=3, executor=thread), GradScaler(executor=thread)
    run(scaler, "10000")
    state, torchs, plain = scaler.state_dict(), torch.amp.GradScaler("cpu"), gradscaler.Scaler("roundpipe")
    torchs.load_state_dict(state)
    back.load_state_dict(torchs.state_dict())
    assert torchs.get_scale() == scaler.get_scale() == back.get_scale()
    assert (back.state_dict()["_growth_tracker"], back.get_growth_interval()) == (state["_growth_tracker"], 3)
    plain.load_state_dict(state, "roundpipe")
    assert (plain.loss_scale, plain.policy.growth_interval) == (scaler.get_scale(), 3)


def test_eight_producers_and_a_slow_optimizer_neither_stop_nor_lose_an_update(thread):
    """Each step, eight threads scale and submit; the optimizer's thread is late at random; one of them updates."""
    producers, steps = 8, 400
    scaler = GradScaler(init_scale=2.0**10, growth_interval=3, executor=thread)
    draw = random.Random(7)
    overflows = [draw.random() < 0.25 for _ in range(steps)]
    delays = [draw.choice([0, 0, 0, 1e-4, 1e-3]) for _ in range(steps)]
    gate, wrong, values = threading.Barrier(producers), [], [0.0] * producers

    def late_step(step, optimizer, used):
        time.sleep(delays[step])
        scaler.step(optimizer)
        if scaler.report.scale != used:
            wrong.append((step, used, scaler.report.scale))

    def produce(which):
        optimizer = sgd([0.0])
        for step in range(steps):
            used = float(scaler.scale(torch.tensor(1.0)))
            leader = gate.wait() == 0
            set_gradient(optimizer, used, INF if overflows[step] and which == step % producers else None)
            thread.submit(late_step, step, optimizer, used).result() if which % 2 else scaler.step(optimizer)
            gate.wait()
            if leader:
                scaler.update()
            gate.wait()
        values[which] = parameter_of(optimizer).item()

    threads = [threading.Thread(target=produce, args=(which,), daemon=True) for which in range(producers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=100)
    assert not any(each.is_alive() for each in threads)
    scaler.get_growth_factor(up_to_date=True)  # waits for the last update
    alone = gradscaler.Scaler("roundpipe", init_scale=2.0**10, growth_interval=3)
    for overflow in overflows:
        alone.update(overflow)
    assert (scaler.total_overflows, scaler.get_scale(), wrong) == (sum(overflows), alone.loss_scale, [])
    for which in range(producers):
        own = sum(overflows[step] for step in range(which, steps, producers))
        assert values[which] == -0.25 * (steps - own)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_an_optimizer_thread_of_its_own():
    scaler = GradScaler()
    run(scaler, "00")
    scaler.get_growth_factor(up_to_date=True)
    assert in_a_forked_child(lambda: (run(scaler, "0"), scaler.state_dict()["_growth_tracker"]))[1] == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_during_an_update_does_not_wait_for_it():
    scaler, go = GradScaler(), threading.Event()
    scaler.executor.submit(go.wait)
    scaler.update()
    try:
        told = in_a_forked_child(lambda: refusal(scaler.update, of=RuntimeError))
        assert "forked while an update was under way" in told
    finally:
        go.set()
