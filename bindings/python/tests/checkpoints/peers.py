# SPDX-License-Identifier: MIT
"""The scalers of installed packages behind one face: what to give them, what they save, how they step."""

from collections import namedtuple

import numpy as np

Peer = namedtuple("Peer", ["format", "settings", "step", "scale", "save", "load"])  # the last four are functions


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


PEERS = [of_torch, of_flax, of_keras]
