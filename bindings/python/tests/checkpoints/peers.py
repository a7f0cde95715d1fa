# SPDX-License-Identifier: MIT
"""The scalers of installed packages behind one face: what to give them, what they save, how they step."""

import pickle
import types
from collections import namedtuple

import numpy as np

# A format, the settings, four functions, and where the scaler is in a checkpoint.
Peer = namedtuple("Peer", ["format", "settings", "step", "scale", "save", "load", "prefix"], defaults=[None])


def of_torch():
    """torch.amp.GradScaler with a real optimizer."""
    import torch

    def step(overflow):
        parameter.grad = torch.full((1,), float("inf") if overflow else 1.0)
        scaler.step(optimizer)
        scaler.update()

    settings, parameter = {"init_scale": 1024.0, "growth_interval": 5}, torch.nn.Parameter(torch.zeros(1))
    scaler, optimizer = torch.amp.GradScaler("cpu", **settings), torch.optim.SGD([parameter], lr=0.0)
    scaler.scale(torch.ones(1))
    return Peer("torch", settings, step, scaler.get_scale, scaler.state_dict, scaler.load_state_dict)


def of_flax():
    """flax DynamicScale, through flax.serialization."""
    from flax import serialization
    from flax.training.dynamic_scale import DynamicScale

    def step(overflow):
        nonlocal scaler
        factor = np.float32(float("inf") if overflow else 1)
        scaler, *_ = scaler.value_and_grad(lambda x: x * factor)(np.float32(1))

    def save():
        return serialization.msgpack_restore(serialization.to_bytes(scaler))

    def load(state):
        nonlocal scaler
        scaler = serialization.from_state_dict(scaler, state)

    settings = {"scale": 1024.0, "growth_interval": 5}
    scaler = DynamicScale(**settings)
    return Peer("flax", settings, step, lambda: float(scaler.scale), save, load)


def of_jmp():
    """jmp.DynamicLossScale, its two leaves by name."""
    import jax.numpy as jnp
    import jmp

    def step(overflow):
        nonlocal scaler
        scaler = scaler.adjust(np.bool_(not overflow))

    def save():
        return {"loss_scale": scaler.loss_scale, "counter": scaler.counter}

    def load(state):
        nonlocal scaler
        scale, counter = jnp.asarray(state["loss_scale"], "float32"), jnp.asarray(int(state["counter"]))
        scaler = jmp.DynamicLossScale(scale, counter, settings["period"])

    settings, scaler = {"loss_scale": 1024.0, "period": 5}, None
    load({**settings, "counter": 0})
    return Peer("jmp", settings, step, lambda: float(scaler.loss_scale), save, load)


def of_keras():
    """keras LossScaleOptimizer, its variables by name."""
    import keras

    def step(overflow):
        scaler.apply([keras.ops.convert_to_tensor([float("inf") if overflow else 1.0])], [variable])

    def save():
        return {name: getattr(scaler, name) for name in ("step_counter", "dynamic_scale")}

    def load(state):
        for name in save():
            getattr(scaler, name).assign(state[name])

    settings, variable = {"initial_scale": 1024.0, "dynamic_growth_steps": 5}, keras.Variable([0.0])
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), **settings)
    scaler.build([variable])
    return Peer("keras", settings, step, lambda: float(scaler.dynamic_scale.numpy()), save, load)


def of_deepspeed():
    """deepspeed DynamicLossScaler, pickled as its ZeRO checkpoints do."""
    from deepspeed.runtime.fp16 import loss_scaler

    def save():
        return pickle.loads(pickle.dumps({"loss_scaler": scaler, "zero_stage": 2}))

    def load(state):
        saved = state["loss_scaler"]
        vars(scaler).update(saved if isinstance(saved, dict) else vars(saved))

    loss_scaler.dist.get_rank = lambda: 1  # only rank 0 logs
    settings = {"init_scale": 1024.0, "scale_window": 5, "min_scale": 1.0}
    settings |= {"delayed_shift": 2, "consecutive_hysteresis": False}
    scaler = loss_scaler.DynamicLossScaler(**settings)
    return Peer("deepspeed", settings, scaler.update_scale, lambda: scaler.cur_scale, save, load, "loss_scaler")


def of_paddle():
    """paddle.amp.GradScaler with a real optimizer."""
    import paddle
    from paddle.amp import grad_scaler

    def step(overflow):
        scaler._cache_found_inf = overflow
        scaler._update()

    def load(state):
        scaler.load_state_dict({**state, "scale": np.reshape(state["scale"], 1)})  # it takes the first element

    # It turns itself off where there is no GPU.
    place = types.SimpleNamespace(is_gpu_place=lambda: True)
    grad_scaler._dygraph_tracer = lambda: types.SimpleNamespace(_expected_place=place)
    grad_scaler.float = lambda x: getattr(x, "item", x.__float__)()  # its message fails with NumPy from 2.4 on
    settings = {"init_loss_scaling": 1024.0, "incr_every_n_steps": 5, "decr_every_n_nan_or_inf": 2}
    scaler = paddle.amp.GradScaler(**settings)
    return Peer("paddle_dygraph", settings, step, lambda: scaler._scale.item(), scaler.state_dict, load)


LIGHT = [of_torch, of_flax, of_jmp, of_keras]
HEAVY = [of_deepspeed, of_paddle]
