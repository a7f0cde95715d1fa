# SPDX-License-Identifier: MIT
"""A run that changes between a framework's own scaler and ours goes on as if it had not."""

import importlib
import io
import json
import random
import zipfile

import peers
import pytest

from gradscaler import Policy, Scaler


def overflows(seed):
    """Rare ones, some of them several in a row."""
    chance, found = random.Random(seed), []
    while len(found) < 60:
        found += [False] * chance.randrange(1, 14) + [True] * chance.choice([1, 1, 2, 3])
    return found[:60]


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


@pytest.mark.parametrize("seed", range(2))
def test_training_goes_on_equally_by_its_settings_from_its_checkpoint_and_from_ours(peer, seed):
    theirs, again = peer(), peer()
    alike, ours = (Scaler(Policy.from_settings(theirs.format, theirs.settings)) for _ in range(2))
    assert scales_of(alike, overflows(seed)) == scales_of(theirs, overflows(seed))
    ours.load_state_dict(theirs.save())
    steps = overflows(seed + 100)
    assert scales_of(ours, steps) == scales_of(theirs, steps)
    again.load(ours.state_dict(theirs.format, prefix=theirs.prefix))
    steps = overflows(seed + 200)
    assert scales_of(again, steps) == scales_of(ours, steps) == scales_of(theirs, steps)


def test_a_file_of_torch_is_read_as_it_is_loaded():
    torch = importlib.import_module("torch")
    theirs, file = peers.of_torch(), io.BytesIO()
    scales_of(theirs, overflows(0))
    model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))
    saved = {key: torch.tensor(value) for key, value in theirs.save().items()}
    optimizer = torch.optim.SGD(model.parameters()).state_dict()
    torch.save({"model": model.state_dict(), "optimizer": optimizer, "scaler": saved, "epoch": 3}, file)
    file.seek(0)
    scaler = Scaler("torch")
    scaler.load_state_dict(torch.load(file))
    assert scales_of(scaler, overflows(1)) == scales_of(theirs, overflows(1))


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


def test_a_scaler_travels_in_the_metadata_of_safetensors(tmp_path):
    torch = importlib.import_module("torch")
    safetensors = importlib.import_module("safetensors")
    save_file = importlib.import_module("safetensors.torch").save_file
    scaler = Scaler("recommended", growth_interval=5)
    scales_of(scaler, overflows(0))
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(2)}, path, metadata={"scaler": json.dumps(scaler.state_dict())})
    with safetensors.safe_open(path, "pt") as file:
        restored = Scaler()
        restored.load_state_dict(json.loads(file.metadata()["scaler"]))
    assert (bytes(restored.state), restored.policy) == (bytes(scaler.state), scaler.policy)
