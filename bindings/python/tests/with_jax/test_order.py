# SPDX-License-Identifier: MIT
"""The first bad gradient of a step, in the order in which the step makes them, is of the layer with the overflow."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import gradscaler.jax
from gradscaler.jax import Scaler, _order

P = PartitionSpec
X = jnp.asarray(np.random.default_rng(1).standard_normal((4, 8)), jnp.float32)
LAYERS = 4


@jax.custom_vjp
def infinite_if(x, bad):
    """Returns x; its gradient is Inf if `bad`."""
    return x


infinite_if.defvjp(lambda x, bad: (x, bad), lambda bad, g: (jnp.where(bad, g * jnp.inf, g), None))


class Plants:
    """Makes the gradient behind the layer `name` infinite, if `bad` is its number."""

    def __init__(self, names, bad=-1):
        self.names, self.bad = names, bad

    def __call__(self, name, x):
        return infinite_if(x, self.bad == self.names.index(name))


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * 0.3, jnp.float32)


def dense(p, x):
    return x @ p["w"] + p["b"]


def dense_params(seed, n, m):
    return {"w": normal(seed, n, m), "b": jnp.zeros(m)}


def mlp(p, plant):
    x = plant("m", jnp.tanh(dense(p["m"], X)))
    x = plant("z", jnp.tanh(dense(p["z"], x)))
    return plant("a", dense(p["a"], x))


def conv(p, plant):
    x = X.reshape(1, 1, 4, 8)
    for name in "second", "first":
        x = plant(name, jax.nn.relu(lax.conv(x.astype(p[name].dtype), p[name], (1, 1), "SAME")))
    return plant("head", dense(p["head"], x.reshape(1, -1)))


def normed(p, x):
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-3) * p["scale"] + p["bias"]


def resnet(p, plant):
    x = X
    for name in "b2", "b0", "b1":
        x = x + plant(name, dense(p[name]["dense"], normed(p[name]["norm"], x)))
    return plant("a", dense(p["a"], x))


def attention(p, plant):
    x = plant("tokens", X @ p["tokens"])
    q, k, v = (x @ p["qkv"][name] for name in "qkv")
    x = x + plant("out", jax.nn.softmax(q @ k.T) @ v @ p["out"])
    x = x + plant("mlp", jax.nn.gelu(dense(p["mlp"], x)))
    return plant("head", dense(p["head"], x))


def rnn(p, plant):
    def cell(h, x):
        h = jnp.tanh(dense(p["cell"], jnp.concatenate([h, x])))
        return plant("cell", h), None

    h, _ = lax.scan(cell, jnp.zeros(8), plant("inputs", X @ p["inputs"]))
    return plant("head", dense(p["head"], h))


def tied(p, plant):
    x = plant("body", jnp.tanh(dense(p["body"], p["table"][jnp.arange(4)])))
    return plant("bias", x @ p["table"].T + p["bias"])


def with_jit(p, plant):
    x = jax.jit(lambda p, x: plant("m", jnp.tanh(dense(p, x))))(p["m"], X)
    x = lax.cond(x.sum() > -1e9, lambda x: plant("z", dense(p["z"], x)), lambda x: x, x)
    return plant("a", jax.checkpoint(dense)(p["a"], x))


def ours(seed=0):
    return {name: dense_params(seed + i, 8, 8) for i, name in enumerate("amz")}


NORM = {"scale": jnp.ones(8), "bias": jnp.zeros(8)}
MODELS = {
    mlp: ours(),
    conv: {"first": normal(1, 1, 1, 3, 3), "second": normal(2, 1, 1, 3, 3), "head": dense_params(3, 32, 2)},
    resnet: {f"b{i}": {"dense": dense_params(i, 8, 8), "norm": NORM} for i in range(3)} | {"a": dense_params(4, 8, 2)},
    attention: {name: normal(i, 8, 8) for i, name in enumerate(["tokens", "out"])}
    | {"qkv": {name: normal(i, 8, 8) for i, name in enumerate("qkv")}}
    | {name: dense_params(5, 8, 8) for name in ["mlp", "head"]},
    rnn: {"cell": dense_params(1, 16, 8), "head": dense_params(2, 8, 2), "inputs": normal(3, 8, 8)},
    tied: {"body": dense_params(1, 8, 8), "table": normal(2, 4, 8), "bias": jnp.zeros(4)},
    with_jit: ours(3),
}


class Mlp(nnx.Module):
    def __init__(self):
        self.last = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        self.first = nnx.Linear(8, 8, rngs=nnx.Rngs(1))


def of_nnx(p, plant):
    model = nnx.merge(GRAPH, p)
    return plant("last", model.last(plant("first", jnp.tanh(model.first(X)))))


def of_equinox(p, plant):
    model = eqx.combine(p, STATIC)
    x = X
    for i, layer in enumerate(model.layers):
        x = plant(f"layers[{i}]", jnp.tanh(jax.vmap(layer)(x)))
    return x


GRAPH, MODELS[of_nnx] = nnx.split(Mlp())
MODELS[of_equinox], STATIC = eqx.partition(eqx.nn.MLP(8, 8, 8, 3, key=jax.random.key(0)), eqx.is_array)


def micro_batches(p, plant):
    return mlp(p, plant)


MODELS[micro_batches] = ours(6)


def named(model):
    """Returns the names of the layers that a model plants, in its order."""
    found = []

    class Lister(Plants):
        def __call__(self, name, x):
            found.append(name)
            return x

    jax.eval_shape(lambda p: model(p, Lister([])), MODELS[model])
    return list(dict.fromkeys(found))


def loss_of(model, names):
    return lambda p, bad: jnp.mean(model(p, Plants(names, bad)).astype(jnp.float32) ** 2)


def grads_of(model, scaler, loss, p, bad):
    grad = jax.grad(lambda p: scaler.scale(loss(p, bad)))
    if model is not micro_batches:
        return grad(p)

    def add(sums, _):
        return jax.tree.map(jnp.add, sums, jax.tree.map(lambda g: g / 3, grad(p))), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, p), length=3)[0]


def backward_order(step, args, report):
    return _order.backward_order(_order.scope_of(step, args, {}), report)


def first_bad(step, args, report):
    """Returns the name of the first bad gradient, with its row if a loop makes it, and the name before it."""
    order, rows = backward_order(step, args, report)
    assert sorted(order) == list(range(len(report.names)))
    names = [report.names[i] for i in order]
    bad = next(k for k, name in enumerate(names) if name in report.bad)
    row = "" if rows[order[bad]] is None else f"[{rows[order[bad]]}]"
    return names[bad] + row, names[bad - 1] if bad else None


@pytest.mark.parametrize("narrow", [False, True], ids=["f32", "f16"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_of_ten_models_it_names_the_layer(model, narrow):
    names = named(model)
    loss = loss_of(model, names)

    @jax.jit
    def step(scaler, p, bad):
        half = jax.tree.map(lambda p: p.astype(jnp.float16), p) if narrow else p
        grads = grads_of(model, scaler, loss, half, bad)
        grads, report, scaler = scaler.step(grads, dtype=jnp.float32, per_tensor=True)
        return scaler, jax.tree.map(lambda p, g: p - g, p, grads), report

    assert len(MODELS) == 10
    scaler, params = Scaler("torch", init_scale=2.0), MODELS[model]
    assert backward_order(step, (scaler, params, -1), step(scaler, params, -1)[2])[0] is not None
    for bad, name in enumerate(names):
        report = step(scaler, params, bad)[2]
        found, before = first_bad(step, (scaler, params, bad), report)
        assert name in found, (name, found)
        assert before is None or not report.per_tensor[before].overflow


def deep(p, plant, wrap=lambda layer: layer):
    """Returns a network with a loop over layers; `plant` can be in each part of each layer."""

    def layer(x, of):
        i, q = of
        x = jnp.tanh(dense(q["z"], x))
        x = infinite_if(x, plant.bad == i)
        x = x + infinite_if(jnp.tanh(dense(q["a"], x)), plant.bad == LAYERS + i)
        return x, None

    x, _ = lax.scan(wrap(layer), X @ p["y"], (jnp.arange(LAYERS), p["layers"]))
    return dense(p["b"], x)


DEEP = {
    "layers": jax.vmap(lambda _: {"a": dense_params(1, 8, 8), "z": dense_params(2, 8, 8)})(jnp.arange(LAYERS)),
    "y": normal(1, 8, 8),
    "b": dense_params(3, 8, 2),
}


@pytest.mark.parametrize("wrap", [lambda layer: layer, jax.checkpoint, jax.jit], ids=["plain", "remat", "jit"])
def test_a_loop_over_layers_gives_the_layer(way, wrap):
    loss = loss_of(functools.partial(deep, wrap=wrap), [])

    @jax.jit
    def step(scaler, p, bad):
        grads = jax.grad(lambda p: scaler.scale(loss(p, bad)))(p)
        return scaler.step(grads, per_tensor=True, max_norm=1.0)

    scaler = Scaler("torch", init_scale=2.0)
    for bad in range(2 * LAYERS):
        _, report, after = step(scaler, DEEP, bad)
        part, i = "za"[bad // LAYERS], bad % LAYERS
        found, before = first_bad(step, (after, DEEP, 0), report)  # the values of arguments do not matter
        assert found in [f"['layers']['{part}']['{leaf}'][{i}]" for leaf in "bw"]
        assert before == (
            "['layers']['a']['w']" if bad == 0 else "['b']['w']"
        )  # in the loop all others are bad further down
        assert report.last_rows[report.names.index(found[:-3])] == i


def planted_step(axis_name=None, donate=False):
    loss = loss_of(mlp, ["m", "z", "a"])

    def step(scaler, p, bad):
        if axis_name:
            p = gradscaler.jax._words.varying(p, over=frozenset([axis_name]))
        grads = jax.grad(lambda p: scaler.scale(loss(p, bad)))(p)
        if axis_name:
            grads = lax.pmean(grads, axis_name)
        _, report, scaler = scaler.step(grads, per_tensor=True)
        return scaler, report

    return step


@pytest.mark.parametrize("check", [False, True])
def test_on_devices_that_average_their_gradients(way, check):
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    step = jax.jit(jax.shard_map(planted_step("data"), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=check))
    for bad, name in enumerate("mza"):
        scaler, report = step(Scaler("torch"), MODELS[mlp], bad)
        assert name in first_bad(step, (scaler, MODELS[mlp], bad), report)[0]


def test_with_pmap():
    step = jax.pmap(planted_step("data"), axis_name="data", in_axes=(None, None, 0), out_axes=None)
    for bad, name in enumerate("mza"):
        args = Scaler("torch"), MODELS[mlp], jnp.array([bad, -1])
        assert name in first_bad(step, args, step(*args)[1])[0]


def test_each_device_has_a_part_of_the_gradients(way):
    loss = loss_of(mlp, ["m", "z", "a"])

    def step(scaler, p, bad):
        grads = jax.grad(lambda p: scaler.scale(loss(p, bad[0])))(p)
        _, report, scaler = scaler.step(grads, per_tensor=True, max_norm=1.0, axis_name="data")
        return jax.tree.map(lambda x: x[None], report)

    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    specs = {"in_specs": (P(), P(), P("data")), "out_specs": P("data"), "check_vma": False}
    step = jax.jit(jax.shard_map(step, mesh=mesh, **specs))
    args = Scaler("torch"), MODELS[mlp], jnp.array([-1, 1])
    reports = step(*args)
    mine = jax.tree.map(lambda x: x[1], reports)
    assert "z" in first_bad(step, args, mine)[0]


def test_arguments_that_were_donated_and_steps_in_a_loop():
    step, params = planted_step(), MODELS[mlp]
    donating = jax.jit(step, donate_argnums=0)
    given = jax.tree.map(jnp.copy, Scaler("torch"))
    _, report = donating(given, params, 1)
    assert given.state.is_deleted() and "z" in first_bad(donating, (given, params, 1), report)[0]

    @jax.jit
    def loop(scaler, p, plan):
        return lax.scan(lambda scaler, bad: step(scaler, p, bad), scaler, plan)

    plan = jnp.array([-1, 2, 0])
    scaler, reports = loop(Scaler("torch"), params, plan)
    for i, name in (1, "a"), (2, "m"):
        report = jax.tree.map(lambda x: x[i], reports)  # noqa: B023, called at once
        assert name in first_bad(loop, (scaler, params, plan), report)[0]


def test_value_and_grad_and_a_scaled_optimizer_have_the_report(way):
    loss, params = loss_of(mlp, ["m", "z", "a"]), MODELS[mlp]
    step = jax.jit(lambda scaler, p, bad: scaler.value_and_grad(loss, per_tensor=True)(p, bad))
    result = step(Scaler("torch"), params, 2)
    scaler, finite, value, grads = result
    assert "a" in first_bad(step, (scaler, params, 2), result.report)[0]
    assert not finite and np.isfinite(value) and jax.tree.structure(grads) == jax.tree.structure(params)
    assert int(result.report.loss) == gradscaler.Loss.FINITE

    optimizer = gradscaler.jax.scaled(optax.adam(1e-3), "torch", per_tensor=True)

    def update(params, state, bad):
        grads = jax.grad(lambda p: state.scaler.scale(loss(p, bad)))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    carried = jax.jit(lambda p, s: lax.scan(lambda c, bad: (update(*c, bad), None), (p, s), jnp.array([-1, -1]))[0])
    assert not carried(params, state)[1].report.overflow
    update = jax.jit(update)
    params, state = update(params, state, 1)
    assert "z" in first_bad(update, (params, state, 1), state.report)[0]


def test_gradients_that_the_step_does_not_make_have_no_order():
    step = jax.jit(lambda scaler, grads: scaler.step(grads, per_tensor=True)[1])
    args = Scaler(), {"a": jnp.ones(3), "b": jnp.full(3, jnp.inf)}
    assert backward_order(step, args, step(*args)) == (None, [None, None])
    other = jax.jit(lambda scaler: scaler.scale(jnp.float32(1)))
    assert backward_order(other, args[:1], step(*args))[0] is None


# ---- the sentence ----


@pytest.mark.wording
def test_the_sentence_names_the_first_bad_gradient_and_the_one_before():
    step, params = jax.jit(planted_step()), MODELS[mlp]
    scaler, report = step(Scaler("torch"), params, 1)
    assert scaler.reason(report, step, scaler, params, bad=1) == (
        """skipped: 144 NaN in 4 of 6 tensors; the backward pass made "['z']['b']" bad first; "['a']['w']", """
        "made just before, is finite"
    )
    assert scaler.reason(report) == (
        """skipped: 144 NaN in 4 of 6 tensors; the last, nearest to the cause, is "['z']['w']\""""
    )
    scaler, report = step(scaler, params, -1)
    assert scaler.reason(report, step, scaler, params, -1) == ""


@pytest.mark.wording
def test_the_sentence_has_the_layer_of_a_loop():
    loss = loss_of(deep, [])
    step = jax.jit(lambda scaler, p, bad: scaler.value_and_grad(loss, per_tensor=True)(p, bad))
    result = step(Scaler("torch"), DEEP, LAYERS + 2)
    assert "\"['layers']['a']['b'][2]\" bad first" in result.scaler.reason(
        result.report, step, Scaler("torch"), DEEP, 0
    )


def half_loss(p, x):
    return jnp.mean((p["w"] * x).astype(jnp.float16) ** 2) + p["other"].astype(jnp.float16).sum() * 0


def half_step(scaler, state, x):
    params, _ = state
    grads = jax.grad(lambda p: scaler.scale(half_loss(p, x)))(params)
    _, report, scaler = scaler.step(grads, loss=half_loss(params, x), per_tensor=True)
    return scaler, report


GOOD, MOMENTS = ({"w": jnp.ones(3), "other": jnp.ones(2)}, {"w": jnp.full(3, jnp.nan), "other": jnp.ones(2)})


@pytest.mark.wording
@pytest.mark.parametrize(
    "preset, w, x, sentence",
    [
        (
            "torch",
            1,
            1,
            "the scale, 65536, is above the largest float16, 65504: make the loss float32 before it is scaled",
        ),
        ("torch", np.nan, 1, """1 of 2 parameters has NaN or Inf, "['w']": go back to an earlier checkpoint"""),
        ("torch", 1, np.inf, "the loss was not finite before it was scaled"),
        ("recommended", 1, np.inf, "the loss was not finite before it was scaled"),
    ],
)
def test_before_the_backward_pass_it_looks_at_parameters_loss_and_dtype(preset, w, x, sentence):
    step, state = jax.jit(half_step), (GOOD | {"w": jnp.full(3, w, jnp.float32)}, MOMENTS)
    scaler, report = step(Scaler(preset, init_scale=2.0**16), state, x)
    assert scaler.reason(report, step, scaler, state, x) == "skipped: " + sentence


def test_parameters_are_the_arguments_with_the_names_of_the_gradients():
    names, bad = ("['w']", "['other']"), {"w": jnp.ones(3), "other": np.array([1, np.inf], np.float32)}
    assert _order._bad_parameters(names, ((Scaler(), GOOD, {"mu": MOMENTS}), {})) == []
    assert _order._bad_parameters(names, (({"mu": MOMENTS}, bad), {})) == [1]
    assert _order._bad_parameters(names, ((), {"state": {"params": bad}})) == [1]
    assert _order._bad_parameters(names, (({"w": jnp.full(3, jnp.nan)},), {})) == []
    assert _order._bad_parameters(("",), ((jnp.full(3, jnp.nan),), {})) == []
    donated = jax.tree.map(jnp.copy, MOMENTS)
    jax.jit(lambda p: p, donate_argnums=0)(donated)
    assert _order._bad_parameters(names, ((donated,), {})) == []


def test_the_step_is_traced_only_after_an_overflow_and_never_run():
    runs, params = [], MODELS[mlp]
    plain = planted_step()

    def step(scaler, p, bad):
        runs.append(bad)
        return plain(scaler, p, bad)

    jitted = jax.jit(step)
    scaler, report = jitted(Scaler("torch"), params, jnp.int32(-1))
    scaler.reason(report, step, scaler, params, jnp.int32(-1))
    scaler, report = jitted(scaler, params, jnp.int32(0))
    scaler.reason(report, jitted, scaler, params, jnp.int32(0))
    assert len(runs) == 1
    scaler.reason(report, lambda *args: step(*args), scaler, params, jnp.int32(0))
    assert len(runs) == 2 and isinstance(runs[1], jax.core.Tracer)


def test_a_report_without_leaves_is_refused_and_so_is_a_call_in_jit():
    scaler, report = Scaler().step({"w": jnp.array([jnp.inf])})[2], Scaler().measure({"w": jnp.array([jnp.inf])})
    for given in None, report:
        with pytest.raises(ValueError, match="per_tensor=True"):
            scaler.reason(given, jax.jit(lambda: None))
    assert "Inf" in scaler.reason(report)
    with pytest.raises(TypeError, match="outside of jit"):
        jax.jit(lambda scaler: len(scaler.reason()))(scaler)


def test_rows_are_looked_for_in_leaves_that_can_be_stacked_layers(way):
    bad, good = (np.ones((3, 2, 2), np.float32) for _ in range(2))
    bad[1, 0, 1] = np.nan
    leaves = {
        "kernel": bad,
        "good": good,
        "bias": np.float32([[0], [0], [np.inf]]),
        "other": bad[:2, 0],
        "one": bad[1, 0, 1],
    }
    step = jax.jit(lambda scaler, leaves, **options: scaler.unscale(leaves, per_tensor=True)[1].last_rows)
    none = _order.NO_ROW
    assert step(Scaler(), leaves).tolist() == [2, none, 1, none, none]  # by name: bias, good, kernel, one, other
    assert step(Scaler(), {"good": good}).tolist() == [none] and step(Scaler(), {}).tolist() == []


@pytest.mark.wording
def test_a_step_without_gradients_has_a_reason():
    step = jax.jit(lambda scaler, loss: scaler.step({}, loss=loss, per_tensor=True)[1:])
    report, scaler = step(Scaler(), jnp.inf)
    assert "the loss was not finite" in scaler.reason(report, step, scaler, jnp.inf)
