# SPDX-License-Identifier: MIT
"""A run that changes between a framework's own scaler and ours goes on as if it had not."""

import importlib
import random
import zipfile

import peers
import pytest

from gradscaler import Policy, Scaler

STEPS = 60


def overflows(seed):
    """Rare ones, some of them several in a row."""
    chance, found = random.Random(seed), []
    while len(found) < STEPS:
        found += [False] * chance.randrange(1, 14) + [True] * chance.choice([1, 1, 2, 3])
    return found[:STEPS]


@pytest.fixture(params=[*peers.LIGHT, *peers.HEAVY], ids=lambda peer: peer.__name__)
def peer(request):
    if request.param in peers.HEAVY and not request.config.getoption("--long"):
        pytest.skip("with --long: its package is heavy")
    return request.param


def scales_of(scaler, steps):
    """Returns the scales before each step, of a peer or of ours."""
    found = []
    for overflow in steps:
        found.append(scaler.loss_scale if isinstance(scaler, Scaler) else scaler.scale())
        (scaler.update if isinstance(scaler, Scaler) else scaler.step)(overflow)
    return found


def ours_like(peer):
    return Scaler(Policy.from_settings(peer.format, peer.settings))


@pytest.mark.parametrize("seed", range(2))
def test_training_goes_on_equally_by_its_settings_from_its_checkpoint_and_from_ours(peer, seed):
    theirs, alike, ours, again = peer(), ours_like(peer), ours_like(peer), peer()
    assert scales_of(alike, overflows(seed)) == scales_of(theirs, overflows(seed))
    ours.load_state_dict(theirs.save())
    steps = overflows(seed + 100)
    assert scales_of(ours, steps) == scales_of(theirs, steps)
    again.load(ours.state_dict(peer.format))
    steps = overflows(seed + 200)
    assert scales_of(again, steps) == scales_of(ours, steps) == scales_of(theirs, steps)


@pytest.mark.parametrize("inner", ["SGD", "Adam"])
def test_the_numbered_variables_that_keras_saves_are_read(inner, tmp_path):
    keras, h5py = importlib.import_module("keras"), importlib.import_module("h5py")
    layer = keras.Sequential([keras.layers.Dense(1)])
    layer.build((1, 2))
    inner = getattr(keras.optimizers, inner)()
    layer.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0, dynamic_growth_steps=5), "mse")
    layer.optimizer.build(layer.trainable_variables)
    layer.optimizer.step_counter.assign(3)
    layer.optimizer.dynamic_scale.assign(256.0)
    numbered = {}
    layer.optimizer.save_own_variables(numbered)
    layer.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive, archive.open("model.weights.h5") as file:
        for saved in numbered, h5py.File(file)["optimizer"], {"optimizer": {"vars": numbered}}:
            scaler = Scaler("keras")
            notes = scaler.load_state_dict(saved)
            assert [note.field for note in notes] == ["keras", "growth_interval"]
            assert (scaler.loss_scale, scaler.state.good_steps) == (256.0, 3)
