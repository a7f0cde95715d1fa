# SPDX-License-Identifier: MIT
"""Resumes, logs, says why it skips, diagnoses, saves. Step 100 has a NaN in its data, step 200 wrong labels.

python loop.py STEPS
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import optax
from flax import linen, serialization

from gradscaler.jax import Scaler, scaled

CHECKPOINT = pathlib.Path("run.checkpoint")
layers = [linen.Dense(32, dtype=jnp.float16), linen.gelu, linen.Dense(1, dtype=jnp.float16)]
model = linen.Sequential(layers)
optimizer = scaled(optax.adamw(0.01), Scaler("recommended"), per_tensor=True)


@jax.jit
def train_step(params, state, inputs, targets):
    def scaled_loss(params):
        loss = optax.l2_loss(model.apply(params, inputs).astype(jnp.float32), targets).mean()
        return state.scaler.scale(loss), loss

    grads, loss = jax.grad(scaled_loss, has_aux=True)(params)
    updates, state = optimizer.update(grads, state, params, loss=loss)
    return optax.apply_updates(params, updates), state, loss


def batch(step):
    inputs = jax.random.normal(jax.random.key(step), (64, 8))
    targets = inputs.mean(1, keepdims=True) * {200: 30}.get(step, 1)
    return inputs.at[0, 0].multiply({100: jnp.nan}.get(step, 1)), targets


params = model.init(jax.random.key(0), jnp.ones((1, 8)))
run = {"step": 0, "params": params, "state": optimizer.init(params)}
if CHECKPOINT.exists():
    run = serialization.from_bytes(run, CHECKPOINT.read_bytes())

done, params, state = run.values()
with state.scaler.history("run.jsonl") as history:
    for step in range(done + 1, done + 1 + int(sys.argv[1])):
        arguments = params, state, *batch(step)
        params, state, loss = train_step(*arguments)
        history.record(state.scaler, state.report)
        history.add({"loss": float(loss)})
        if state.scaler.skip:
            print(f"step {step} {state.scaler.reason(state.report, train_step, *arguments)}")

CHECKPOINT.write_bytes(serialization.to_bytes({"step": step, "params": params, "state": state}))
print(f"step {step}: loss {loss:.2g}, {state.scaler}")
for finding in state.scaler.diagnose(state.report):
    print(finding)
