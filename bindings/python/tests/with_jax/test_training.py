# SPDX-License-Identifier: MIT
"""Trained with: optax, flax nnx, Equinox; the example, and the blocks of the guide."""

import re
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import gradscaler
from gradscaler.jax import Scaler, scaled

ROOT = Path(__file__).parents[4]
X = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
Y = (X @ np.linspace(-1, 1, 8).astype(np.float32))[:, None]


def log2_mean_square(prediction):
    return jnp.mean((prediction.astype(jnp.float32) - Y) ** 2)


def test_an_optimizer_that_is_scaled_trains_as_one_that_is_not(way):
    def loss(params):
        return log2_mean_square(jnp.asarray(X) @ params["w"])

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


def test_a_scaled_optimizer_skips_an_overflow_whole(way):
    optimizer = scaled(optax.adam(0.1), "torch")
    params = {"w": jnp.ones(3, jnp.float32)}
    state = optimizer.init(params)
    updates, after = jax.jit(optimizer.update)({"w": jnp.array([1, jnp.inf, 1])}, state, params)
    assert updates["w"].tolist() == [0, 0, 0] and after.report.overflow
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), after.inner, state.inner))
    assert after.scaler.loss_scale == state.scaler.loss_scale / 2
    _, good = jax.jit(optimizer.update)({"w": jnp.ones(3)}, after, params)
    assert good.inner[0].count == 1


@pytest.mark.parametrize("dtype", [jnp.float32, None])
def test_the_state_of_a_scaled_optimizer_keeps_its_dtypes(dtype):
    optimizer, params = gradscaler.jax.scaled(optax.adam(1e-3), dtype=dtype), {"w": jnp.ones(3, jnp.bfloat16)}
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


def test_a_scaled_optimizer_says_at_once_what_is_wrong():
    for build, kind, match in [
        (lambda: gradscaler.jax.scaled(optax.adam(1.0), max_norm=-1), ValueError, "max_norm=-1.0"),
        (lambda: gradscaler.jax.scaled("adam"), TypeError, "optimizer must be one of optax, .*not str"),
        (lambda: gradscaler.jax.scaled(optax.adam(1.0), dtype="fp16"), TypeError, "dtype='fp16' is no dtype"),
        (lambda: gradscaler.jax.scaled(optax.adam(1.0)).update([jnp.ones(2)], ()), TypeError, "ScaledState, not tuple"),
    ]:
        with pytest.raises(kind, match=match):
            build()


def test_a_scaled_optimizer_wants_a_scaler():
    with pytest.raises(TypeError, match="name of a preset"):
        scaled(optax.sgd(1.0), 3.0)


def test_flax_nnx_trains_in_float16(way):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.Linear(8, 32, dtype=jnp.float16, rngs=rngs)
            self.out = nnx.Linear(32, 1, dtype=jnp.float16, rngs=rngs)

        def __call__(self, x):
            return self.out(nnx.tanh(self.hidden(x)))

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, scaler):
        value, grads = nnx.value_and_grad(lambda m: scaler.scale(log2_mean_square(m(X))))(model)
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
    assert scaler.total_overflows > 0 and scaler.total_growths > 0
    assert losses[-1] < 0.1 * losses[0] and np.isfinite(losses[-1])


def test_equinox_trains_in_float16():
    model = eqx.nn.MLP(8, 1, 32, 2, activation=jax.nn.tanh, key=jax.random.key(0))
    optimizer = scaled(optax.adam(0.02), Scaler("torch", init_scale=2.0**40, growth_interval=10))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        def loss(model):
            narrow = jax.tree.map(lambda x: x.astype(jnp.float16) if eqx.is_inexact_array(x) else x, model)
            return state.scaler.scale(log2_mean_square(jax.vmap(narrow)(X.astype(np.float16))))

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, after = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), after, value / state.scaler.loss_scale

    losses = []
    for _ in range(60):
        model, state, value = step(model, state)
        losses.append(float(value))
    assert state.scaler.total_overflows > 0 and state.scaler.total_growths > 0
    assert losses[-1] < 0.1 * losses[0] and np.isfinite(losses[-1])


def test_the_example_learns_to_read_digits_in_float16(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    rows = zip(digits.data.astype("uint8"), digits.target, strict=True)
    (tmp_path / "digits.bin").write_bytes(b"".join(bytes(pixels) + bytes([label]) for pixels, label in rows))
    example = ROOT / "bindings/python/examples/jax/digits.py"
    done = subprocess.run(
        [sys.executable, example, tmp_path / "digits.bin"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Backend('handler', platform='cpu'" in done.stdout


GUIDE = (ROOT / "docs/jax.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_every_block_of_the_guide_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) > 8
    names = {}
    for block in BLOCKS:
        exec(compile(block, "docs/jax.md", "exec"), names)
    assert names["scaler"].to_host().total_overflows == 0 and isinstance(names["scaler"], Scaler)


def jax_blocks(page):
    text = (ROOT / page).read_text()
    return re.findall(r"^```python jax\n(.*?)^```\n\n```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/site/index.md", "docs/site/python.md"])
def test_the_example_of_a_page_of_the_site_prints_what_it_says(page, capsys):
    ((code, said),) = jax_blocks(page)
    names = {
        "params": {"weight": jnp.ones((4, 1)), "bias": jnp.zeros(1)},
        "x": jnp.full((8, 4), jnp.inf),
        "loss": lambda p, x: jnp.mean(x @ p["weight"] + p["bias"]),
    }
    exec(compile(code, page, "exec"), names)
    assert capsys.readouterr().out == said


def test_the_guide_names_what_there_is():
    for name in re.findall(r"`gradscaler\.jax\.(\w+)", GUIDE):
        assert hasattr(gradscaler.jax, name), name
