# SPDX-License-Identifier: MIT
"""Trained with: optax, flax nnx, Equinox; the example, and the blocks of the guide."""

import re
import runpy
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support import run_python

import gradscaler
from gradscaler.jax import Scaler, scaled

ROOT = Path(__file__).parents[4]
X = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
Y = (X @ np.linspace(-1, 1, 8).astype(np.float32))[:, None]


def mean_square(prediction):
    return jnp.mean((prediction.astype(jnp.float32) - Y) ** 2)


def assert_trained(scaler, losses):
    assert scaler.total_overflows > 0 and scaler.total_growths > 0
    assert losses[-1] < 0.1 * losses[0] and np.isfinite(losses[-1])


def test_an_optimizer_that_is_scaled_trains_as_one_that_is_not():
    def loss(params):
        return mean_square(jnp.asarray(X) @ params["w"])

    plain, ours = optax.adam(0.05), scaled(optax.adam(0.05), Scaler("torch", growth_interval=5))
    params = other = {"w": jnp.zeros((8, 1))}
    state, inner = ours.init(params), plain.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda p: state.scaler.scale(loss(p)))(params)
        updates, state = ours.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(20):
        params, state = step(params, state)
        updates, inner = plain.update(jax.grad(loss)(other), inner)
        other = optax.apply_updates(other, updates)
    np.testing.assert_allclose(params["w"], other["w"], rtol=1e-4, atol=1e-6)
    assert state.scaler.total_growths == 4 and not state.report.overflow and step._cache_size() == 1


@pytest.mark.parametrize("scaler, bad", [("torch", np.inf), (Scaler("none", guard_norm=4.0), 9.0)])
def test_a_scaled_optimizer_skips_a_step_whole(way, scaler, bad):
    optimizer, params = scaled(optax.adam(0.1), scaler), {"w": jnp.zeros(3)}
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for norm in 1.0, bad, 2.0:
        updates, after = update(state.scaler.scale({"w": jnp.array([norm, 0, 0])}), state, params)
        assert bool(after.scaler.skip) == (norm == bad) and bool(updates["w"].any()) == (norm != bad)
        assert bool(after.report.overflow) == np.isinf(norm)
        moments = jax.tree.leaves(after.inner), jax.tree.leaves(state.inner)
        assert all(np.array_equal(a, b) for a, b in zip(*moments, strict=True)) == (norm == bad)
        state = after
    assert state.inner[0].count == 2


@pytest.mark.parametrize("dtype", [jnp.float32, None])
def test_the_state_of_a_scaled_optimizer_keeps_its_dtypes(dtype):
    optimizer, params = scaled(optax.adam(1e-3), dtype=dtype), {"w": jnp.ones(3, jnp.bfloat16)}
    state = optimizer.init(params)
    grads = jax.tree.map(lambda p: state.scaler.scale(p), params)

    def step(carry, _):
        updates, state = optimizer.update(grads, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), state.report.overflow

    (params, state), overflows = jax.lax.scan(step, (params, state), length=3)
    assert not overflows.any() and params["w"].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(state.inner[0].mu)} == {jnp.dtype(dtype or jnp.bfloat16)}


def test_a_scaled_optimizer_clips_by_the_norm_and_joins_a_chain():
    optimizer = optax.chain(scaled(optax.identity(), Scaler("static", init_scale=4.0), max_norm=1.0), optax.scale(-2.0))
    params = jnp.zeros(4)
    updates, _ = optimizer.update(jnp.full(4, 40.0), optimizer.init(params), params)
    np.testing.assert_allclose(updates, -1.0, rtol=1e-5)


def test_flax_nnx_trains_in_float16():
    rngs = nnx.Rngs(0)
    hidden, out = (nnx.Linear(*shape, dtype=jnp.float16, rngs=rngs) for shape in ((8, 32), (32, 1)))
    model = nnx.Sequential(hidden, nnx.tanh, out)
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, scaler):
        value, grads = nnx.value_and_grad(lambda m: scaler.scale(mean_square(m(X))))(model)
        grads, report, after = scaler.step(grads)
        kept = jax.tree.map(jnp.asarray, nnx.state((model, optimizer)))
        optimizer.update(model, grads)
        new = nnx.state((model, optimizer))
        nnx.update((model, optimizer), jax.tree.map(lambda a, b: jnp.where(report.overflow, a, b), kept, new))
        return after, value / scaler.loss_scale

    scaler, losses = Scaler("torch", init_scale=2.0**40, growth_interval=10), []
    for _ in range(60):
        scaler, value = step(model, optimizer, scaler)
        losses.append(float(value))
    assert_trained(scaler, losses)


def test_equinox_trains_in_float16():
    model = eqx.nn.MLP(8, 1, 32, 2, activation=jax.nn.tanh, key=jax.random.key(0))
    optimizer = scaled(optax.adam(0.02), Scaler("torch", init_scale=2.0**40, growth_interval=10))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        def loss(model):
            narrow = jax.tree.map(lambda x: x.astype(jnp.float16) if eqx.is_inexact_array(x) else x, model)
            return state.scaler.scale(mean_square(jax.vmap(narrow)(X.astype(np.float16))))

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, after = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), after, value / state.scaler.loss_scale

    losses = []
    for _ in range(60):
        model, state, value = step(model, state)
        losses.append(float(value))
    assert_trained(state.scaler, losses)


def test_the_example_learns_to_read_digits_in_float16(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = zip(digits.data.astype("uint8"), digits.target, strict=True)
    (tmp_path / "digits.bin").write_bytes(b"".join(bytes(pixels) + bytes([label]) for pixels, label in rows))
    example = ROOT / "bindings/python/examples/jax/digits.py"
    done = run_python(str(example), str(tmp_path / "digits.bin"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Backend('handler', platform='cpu'" in done.stdout


def test_every_block_of_the_guide_runs_in_order_and_every_name_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide, names = (ROOT / "docs/jax.md").read_text(), {}
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    for block in blocks:
        exec(compile(block, "docs/jax.md", "exec"), names)
    assert names["scaler"].to_host().total_overflows == 0 and isinstance(names["scaler"], Scaler)
    for name in re.findall(r"`gradscaler\.jax\.(\w+)", guide):
        assert hasattr(gradscaler.jax, name), name


def test_the_whole_loop_prints_what_the_guide_says_and_resumes_with_the_same_bits(tmp_path):
    loops = runpy.run_path(str(ROOT / "tests/docs/loops.py"))
    program = loops["script"](str(ROOT / "bindings/python/examples/jax/loop.py"))
    loops["same_files"](*loops["check"]("docs/jax.md", program, tmp_path))


@pytest.mark.parametrize("page", ["docs/site/index.md", "docs/site/python.md"])
def test_the_example_of_a_page_of_the_site_prints_what_it_says(page, capsys):
    block = r"^```python jax\n(.*?)^```\n\n```text\n(.*?)^```"
    ((code, printed),) = re.findall(block, (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    names = {
        "params": {"weight": jnp.ones((4, 1)), "bias": jnp.zeros(1)},
        "x": jnp.full((8, 4), jnp.inf),
        "loss": lambda p, x: jnp.mean(x @ p["weight"] + p["bias"]),
    }
    exec(compile(code, page, "exec"), names)
    assert capsys.readouterr().out == printed
