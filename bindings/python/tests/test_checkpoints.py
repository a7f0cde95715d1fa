# SPDX-License-Identifier: MIT
"""A Scaler writes and reads its own state, and checkpoints and settings of every framework."""

import argparse
import collections
import copy
import ctypes
import dataclasses
import decimal
import functools
import json
import pathlib
import pickle
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from saved_by_0_9 import SAVED
from support import F32, contents, folded, refusal, used_scaler

import gradscaler
from gradscaler import Error, Guard, NoteKind, Policy, Report, Scaler, State, Status
from gradscaler import _gradscaler as c
from gradscaler._policy import _FIELDS


def test_a_state_dict_can_be_read():
    scaler = used_scaler()
    state = scaler.state_dict()
    named = {"format": "gradscaler", "version": 3, "preset": "megatron", "scale": 2.0**20, "total_overflows": 3}
    assert {name: state[name] for name in named} == named
    assert {name: state[name] for name in _FIELDS} == {name: getattr(scaler.policy, name) for name in _FIELDS}
    assert {type(state[name]) for name in ("good_steps", "growth_interval", "version")} == {int}


def test_bytes_in_hexadecimal_are_read_as_tensor_scaler_and_roundpipe_save_them():
    scaler, loaded = used_scaler(), Scaler("none")
    saved = c.gsc_state_save(scaler.policy, scaler.state).hex()
    loaded.load_state_dict({"preset": "megatron", "saved": saved, "loss_scale": 1.0, "skipped": 0})
    assert contents(loaded) == contents(scaler)


@pytest.mark.parametrize("overflow", [False, True])
def test_a_state_is_its_bytes_and_longer_ones_that_are_0(overflow):
    scaler = used_scaler()
    scaler.update(overflow)
    state = scaler.state
    states = State.from_bytes(bytes(state) + bytes(128)), copy.deepcopy(state), pickle.loads(pickle.dumps(state))
    assert {bytes(each) for each in states} == {bytes(state)} and state.skip == overflow


def loaded_from(saved):
    return lambda: Scaler("none").load_state_dict(saved)


OF_0_9 = {
    "state": lambda: State.from_bytes(SAVED["state"]),
    "predictive state": lambda: State.from_bytes(SAVED["predictive state"]),
    "state in place": lambda: setattr(scaler := Scaler(), "state", state_of_0_9()) or scaler.update(False),
    "set_scale": lambda: setattr(scaler := Scaler(), "state", state_of_0_9()) or scaler.set_scale(8.0),
    "combined": lambda: c.gsc_state_combine_decisions(None, Scaler().state, state_of_0_9(), State()),
    "bytes": lambda: c.gsc_state_load(SAVED["bytes"], Policy("none"), State()),
    "predictive bytes": lambda: c.gsc_state_load(SAVED["predictive bytes"], Policy("none"), State()),
    "hexadecimal": loaded_from({"preset": "megatron", "saved": SAVED["bytes"].hex()}),
    "predictive hexadecimal": loaded_from({"preset": "openseq2seq_logmax", "saved": SAVED["predictive bytes"].hex()}),
    "torch's dict": lambda: Scaler("none").load_state_dict(torch_state(gradscaler=SAVED["bytes"].hex())),
    "dict": loaded_from(json.loads(SAVED["dict"])),
    "dict with this version": loaded_from(json.loads(SAVED["dict"]) | {"version": 3}),
    "nested dict": loaded_from({"scaler": json.loads(SAVED["dict"])}),
    "predictive dict": loaded_from(json.loads(SAVED["predictive dict"])),
    **{name: functools.partial(Report.from_bytes, SAVED[name]) for name in ("report", "flag", "number")},
    **{name: functools.partial(pickle.loads, saved) for name, saved in SAVED.items() if name.startswith("pickled ")},
}


def state_of_0_9():
    return State.from_buffer_copy(SAVED["state"])


@pytest.mark.parametrize("read", OF_0_9.values(), ids=OF_0_9)
def test_what_0_9_saved_is_refused_by_one_sentence(read):
    if "roundpipe" in str(read):
        pytest.importorskip("torch")
    with pytest.raises(Error) as refused:
        read()
    assert refused.value.status == Status.ERROR_VERSION
    why = (
        f" cannot be read by this version ({gradscaler.__version__}): 0.9 or an earlier candidate saved this; "
        "start anew, and set the old scale"
    )
    assert folded(str(refused.value)).endswith(folded(why))


def test_a_state_of_before_0_9_is_refused():
    with pytest.raises(ValueError, match="a state has 384 bytes, not 256"):
        State.from_bytes(bytes(256))


def test_what_a_state_dict_lacks_is_that_of_its_preset_and_said():
    state, scaler = Scaler("torch", growth_interval=5).state_dict(), Scaler("none")
    del state["growth_interval"]
    notes = scaler.load_state_dict({**state, "invented_later": 0})  # which does nothing
    assert scaler.policy == Policy("torch") and notes == scaler.notes
    assert ("growth_interval", 2000) in [(note.field, note.value) for note in notes if note.kind == NoteKind.MISSING]


RECORDINGS = [
    json.loads(path.read_text()) for path in (pathlib.Path(__file__).parents[3] / "tests/traces").glob("*.json")
]
DEFAULTS = {recording["preset"]: recording["defaults"] for recording in RECORDINGS if "preset" in recording}
# The last is near its peer, as its summary says.
WITHOUT_A_PEER = {"recommended", "none", "guard", "static", "olmo_like"}


@pytest.mark.parametrize("preset", DEFAULTS)
def test_a_preset_has_the_defaults_of_its_peer(preset):
    assert (Policy.from_settings(preset, DEFAULTS[preset]), DEFAULTS[preset] != {}) == (Policy(preset), True)


def test_every_preset_but_our_own_has_a_recording_that_every_language_replays():
    assert set(gradscaler.presets()) == set(DEFAULTS) | WITHOUT_A_PEER


def torch_state(**keys):
    good = {"scale": 2048.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 100, "_growth_tracker": 3}
    return {**good, **keys}


JMP = {"loss_scale": 2048.0, "counter": 3, "period": 100, "factor": 2, "min_loss_scale": 1.0}
Dataclass = dataclasses.make_dataclass("Dataclass", JMP)
Leaves = collections.namedtuple("Leaves", ["loss_scale", "unskipped"])


class Slotted:
    __slots__ = (*torch_state(), "__weakref__")

    def __init__(self):
        for name, value in torch_state().items():
            setattr(self, name, value)


NORMS = {f"norm{i}": {"scale": np.ones(8), "bias": np.ones(8)} for i in range(300)}
CIRCULAR = torch_state()
CIRCULAR["self"] = [CIRCULAR]
SHARED: list = []
for _ in range(14):
    SHARED = [SHARED] * 9  # 9^14 paths
DEEPSPEED_SAVED = {"cur_scale": 2048.0, "cur_iter": 13, "last_overflow_iter": 9, "scale_window": 100}
CONTAINERS = {
    "flat": torch_state(),
    "nested": {"epoch": 3, "model": {"weight": np.ones(3, F32), "bias": np.ones(1, F32)}, "scaler": torch_state()},
    "list": [torch_state()],
    "pairs": list(torch_state().items()),
    "keys of bytes": {key.encode(): value for key, value in torch_state().items()},
    "arrays": {key: np.array([value]) for key, value in torch_state().items()},
    "scalars": {key: np.float32(value) for key, value in torch_state().items()},
    "decimals": {key: decimal.Decimal(value) for key, value in torch_state().items()},
    "mapping": MappingProxyType(torch_state()),
    "scaler": SimpleNamespace(state_dict=torch_state),
    "object": {"scaler": SimpleNamespace(**DEEPSPEED_SAVED, dtype=F32)},
    "slots": {"scaler": Slotted()},
    "dataclass": Dataclass(**JMP),
    "named tuple": {"loss_scaler0": Leaves(2048.0, 3)},
    "odd": {"loss_scale": 2048.0, "unskipped": 3, "x": "x" * 1000, "é" * 1000: 1, "": 2, "huge": 10**400, "z": 1j},
    "circular": CIRCULAR,
    "lists that share lists": {"other": SHARED, "scaler": torch_state()},
    "numbered variables of keras": {"optimizer": dict(zip("012345", (7, 0.1, 3, 2048.0, 7, 0.1), strict=True))},
    "weights with a scale's name": {"dynamic_scale": {"scale": 2048.0, "fin_steps": 3}, "params": NORMS, "step": 7},
}


@pytest.mark.parametrize("state", CONTAINERS.values(), ids=CONTAINERS)
def test_a_checkpoint_may_be_any_container(state):
    scaler = Scaler("torch", growth_interval=100)
    scaler.load_state_dict(state)
    assert (scaler.loss_scale, scaler.state.good_steps, scaler.policy.growth_interval) == (2048.0, 3, 100)


def test_notes_are_sentences_with_what_they_are_about_the_important_first():
    scaler = Scaler("torch")
    notes = scaler.load_state_dict({"scaler": torch_state(_growth_tracker=100, color=3)})
    kinds = {note.kind: note for note in notes}
    read, changed, ignored = (kinds[kind] for kind in (NoteKind.FORMAT, NoteKind.CHANGED, NoteKind.IGNORED))
    assert (read.field, read.key) == ("torch", None)
    assert (changed.field, changed.key, changed.value) == ("good_steps", ("scaler", "_growth_tracker"), 100)
    assert ignored.key == ("scaler", "color") and folded("color") in folded(ignored)
    assert all(type(note) is gradscaler.Note and note for note in notes)
    notes = Scaler("recommended").load_state_dict(torch_state(scale=0.0, color=3))
    kinds = list(dict.fromkeys(note.kind for note in notes))
    assert kinds == [NoteKind.UNUSABLE, NoteKind.FORMAT, NoteKind.IGNORED, NoteKind.MISSING]
    (ceiling,) = (note for note in notes if note.field == "ceiling_rule")
    assert folded("it is LimitRule.CLAMP_UNLESS_PAST, as in the policy") in folded(ceiling)


def test_a_note_has_pythons_name_of_a_rule_or_of_flags_and_numbers_as_they_are():
    scaler = Scaler("torch", guard_norm=5, guard_flags=Guard.CLIP | Guard.INCLUSIVE)
    scaler.state_dict("torch")
    unset = {"é": {"floor_rule": None, "growth_interval": None}}
    policy = Policy.from_settings("torch", unset, preset="recommended", prefix="é")
    assert [(note.kind, note.field, folded(note)) for note in [*scaler.notes, *policy.notes]] == [
        (kind, field, folded(text))
        for kind, field, text in (
            (NoteKind.LOST, "guard_norm", "guard_norm is 5, which the format torch cannot hold"),
            (NoteKind.LOST, "guard_flags", f"guard_flags is {FLAGS}, which the format torch cannot hold"),
            (NoteKind.MISSING, "growth_interval", f'"é.growth_interval" {EMPTY} growth_interval {STAYS % 2000}'),
            (NoteKind.MISSING, "floor_rule", f'"é.floor_rule" {EMPTY} floor_rule {STAYS % UNLESS_PAST}'),
        )
    ]
    assert FLAGS in scaler.notes[1] and UNLESS_PAST in policy.notes[1]


EMPTY, STAYS = "is empty:", "stays %s, as in the policy"
FLAGS, UNLESS_PAST = "Guard.CLIP|Guard.INCLUSIVE", "LimitRule.CLAMP_UNLESS_PAST"


def test_a_scaler_is_named_by_its_prefix_and_saved_with_the_keys_and_types_that_loaders_expect():
    scaler, scalers = Scaler("apex"), {f"loss_scaler{i}": {"loss_scale": 2.0**i, "unskipped": i} for i in range(3)}
    scaler.load_state_dict({"trainer": {"amp": {"scalers": scalers}}}, prefix="trainer.amp.scalers.loss_scaler2")
    assert (scaler.loss_scale, scaler.state.good_steps) == (4.0, 2)
    assert Scaler("apex").state_dict("apex") == {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0}}
    assert Scaler("torch").state_dict("torch", prefix="a.b")["a"]["b"]["_growth_tracker"] == 0
    assert Scaler("torch").state_dict(prefix="a.b") == {"a": {"b": OURS}}
    state = Scaler("paddle_dygraph").state_dict("paddle_dygraph")
    assert (type(state["scale"]), type(state["incr_count"]), state["use_dynamic_loss_scaling"]) == (float, int, True)


DEEPSPEED = {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "consecutive_hysteresis": True}
CEREBRAS = {"loss_scale": "dynamic", "steps_per_increase": 5}
RESETS = {"init_scale": 4096, "overflow_reset": gradscaler.OverflowReset.ON_GOOD_STEP}


def test_settings_of_a_framework_make_the_policy_that_it_follows_or_go_into_other_rules():
    assert Policy.from_settings("deepspeed", DEEPSPEED) == Policy("deepspeed", **RESETS)
    for format, settings in ("megatron", argparse.Namespace(loss_scale_window=5)), ("cerebras", CEREBRAS):
        assert Policy.from_settings(format, settings) == Policy(format, growth_interval=5)
    settings = {"fp16": {"initial_scale_power": 10}, "lr": 0.1}
    policy = Policy.from_settings("deepspeed", settings, preset="recommended", prefix="fp16", growth_interval=5)
    assert policy == Policy("recommended", init_scale=1024, growth_interval=5)
    assert (policy.preset, Policy.from_settings("deepspeed", {}).preset) == ("recommended", "deepspeed")
    (note,) = Policy.from_settings("torch", {"growth_intervall": 5}).notes
    assert (note.kind, note.key) == (NoteKind.IGNORED, ("growth_intervall",))
    assert folded('did you mean "growth_interval"?') in folded(note)


def test_a_scaler_is_made_of_a_policy_of_its_own():
    policy = Policy("torch", growth_interval=5)
    scaler = Scaler(policy, init_scale=8)
    assert Scaler(Policy.from_buffer_copy(bytes(policy))).policy == policy
    policy.growth_interval = 7
    assert (scaler.policy, scaler.preset) == (Policy("torch", growth_interval=5, init_scale=8), "torch")
    assert pickle.loads(pickle.dumps(policy)).preset == copy.copy(policy).preset == "torch"


def test_fields_that_a_policy_was_pickled_without_are_off():
    policy, size = Policy("guard"), ctypes.sizeof(Policy)
    shorter = (size - 8).to_bytes(4, "little") + bytes(policy)[4:-8]
    policy.__setstate__({}, shorter)
    assert policy == Policy("guard", guard_sample=0, guard_flags=0) and policy.struct_size == size


class Meta:
    """Like a tensor that has a shape and no number."""

    shape = ()

    def item(self):
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")


NO_COUNTS = {
    "an array of 2 elements": np.ones(2, F32),
    "an array that does not give its number": Meta(),
    "a list": [1],
    "a dict": {"a": 1},
    "a complex": 1j,
    "a bytes": b"3",
    "None": None,
    "an int past the largest double": 10**400,
}
NO_NUMBERS = [("_growth_tracker", value, f"is {name}: it must be a number") for name, value in NO_COUNTS.items()]
NO_NUMBERS += [("_growth_tracker", True, "is 1: it must be a number, and no boolean")]
NO_NUMBERS += [("scale", True, "is True: it must be a number")]
NO_NUMBERS += [("scale", decimal.Decimal(nan), "is nan") for nan in ("NaN", "sNaN")]


@pytest.mark.parametrize(("key", "value", "sentence"), NO_NUMBERS)
def test_what_is_no_number_is_refused_where_one_is_read(key, value, sentence):
    scaler, state = Scaler("torch"), {"model": {"weight": np.ones(3)}, "scaler": torch_state(**{key: value})}
    message = refusal(lambda: scaler.load_state_dict(state), scaler, of=Error)
    assert message.startswith(f"state['scaler']['{key}'] ")
    assert folded(message).startswith(folded(f"state['scaler']['{key}'] {sentence}"))


@pytest.mark.parametrize(("key", "value"), [("loss_scaling_3", True), ("num_good_steps_3", np.ones(2, F32))])
def test_what_is_no_number_is_refused_at_a_key_that_a_framework_numbers(key, value):
    state = {"loss_scaling_3": 8.0, "num_good_steps_3": 1, "num_bad_steps_3": 0, "w_1": np.ones(2, F32), key: value}
    name = "True" if value is True else "an array of 2 elements"
    message = refusal(lambda: Scaler("paddle").load_state_dict(state), of=Error)
    assert folded(message) == folded(f"state['{key}'] is {name}: it must be a number")


@pytest.mark.parametrize("format", ["torch", "gradscaler"])
@pytest.mark.parametrize("number", [2**53 + 1, np.int64(2**60 + 1)])
def test_a_whole_number_beyond_doubles_is_read_and_written_as_it_is_or_rounded_and_said(format, number):
    for interval in 2**63 - 1, 2**63 + 1, 2**64 - 1:
        scaler, again = Scaler("torch"), Scaler("torch")
        notes = scaler.load_state_dict(torch_state(growth_interval=interval, _growth_tracker=number))
        state = scaler.state_dict(format)
        again.load_state_dict(json.loads(json.dumps(state)), format)
        for each in scaler, again:
            assert (each.policy.growth_interval, each.state.good_steps) == (interval, number)
        assert [note for note in notes if note.kind == NoteKind.CHANGED] == []
    rounded = scaler.load_state_dict(torch_state(scale=2**70 + 1))
    assert ("scale",) in {note.key for note in rounded if note.kind == NoteKind.CHANGED}
    assert scaler.loss_scale == 2**70
    assert "growth_interval" in refusal(lambda: scaler.load_state_dict(torch_state(growth_interval=2**64)), of=Error)


@pytest.mark.parametrize("place", [(), ("scaler",), ("a", "b.c")])
def test_our_own_state_is_found_where_it_is_without_a_note(place):
    scaler, restored = used_scaler(), Scaler("none")
    state = scaler.state_dict()
    for key in reversed(place):
        state = {key: state, "model": {"weight": np.ones(3)}}
    assert (restored.load_state_dict(state), contents(restored)) == ([], contents(scaler))
    if place:
        restored.load_state_dict({"other": OURS, **state}, prefix=".".join(place))
        assert contents(restored) == contents(scaler)


OURS = Scaler("torch").state_dict()
DEEP = functools.reduce(lambda state, _: {"a": state}, range(20), torch_state())
OBJECT = "state must be a dict or an object with attributes, not"
BYTES = c.gsc_state_save(Policy("torch"), Scaler("torch").state).hex()
DAMAGED = BYTES[:-1] + f"{int(BYTES[-1], 16) ^ 1:x}"


UNREADABLE = [
    ({"color": 3}, ValueError, "the entries of state have the keys of no format that is known"),
    ({}, ValueError, "state is empty, as if a disabled scaler saved it"),
    ([], ValueError, "state is empty, as if a disabled scaler saved it"),
    (None, TypeError, f"{OBJECT} NoneType"),
    (3, TypeError, f"{OBJECT} int"),
    (pathlib.Path("scaler.pt"), TypeError, "load what is in the file"),
    ("scaler.pt", TypeError, f"{OBJECT} str: load what is in the file"),
    ([1.0, 2.0], TypeError, f"{OBJECT} a list of float"),
    (Dataclass, TypeError, f"{OBJECT} the class Dataclass: pass an instance"),
    ({"a" * 160: torch_state()}, Error, "'scale' is at a key of more than 159 bytes"),
    (DEEP, Error, "more than 16 containers"),
    ({"a": torch_state(scale=-1.0)}, Error, "state['a']['scale'] is -1"),
    (torch_state(growth_interval="x"), Error, "state['growth_interval'] is \"x\""),
    ({"scaler": {**OURS, "version": 1}}, Error, "state['scaler'] cannot be read by this version"),
    ({"scaler": {**OURS, "version": 4}}, ValueError, "state['scaler']['version'] is 4: gradscaler"),
    ({"scaler": {**OURS, "version": None}}, ValueError, "state['scaler']['version'] is None"),
    ({"format": "gradscaler"}, ValueError, "state['version'] is absent"),
    ({**OURS, "format": "gradscalar"}, ValueError, "is 'gradscalar': it must be 'gradscaler'"),
    ({"a": OURS, "b": OURS}, ValueError, "several scalers, 'a', 'b': say which by prefix"),
    ({"preset": "no such", "saved": BYTES}, Error, 'preset is "no such", which is no preset'),
    ({"preset": None, "saved": BYTES}, KeyError, "the state has no text 'preset'"),
    ({"preset": "torch", "saved": b"00"}, KeyError, "the state has no text 'saved'"),
    ({"preset": "torch", "saved": ""}, Error, "the size of state['saved'] is 0"),
    ({"preset": "torch", "saved": "zz"}, ValueError, "state['saved'] is damaged: it is not hexadecimal"),
    ({"preset": "torch", "saved": DAMAGED}, Error, "damaged"),
]


@pytest.mark.parametrize(("state", "kind", "message"), UNREADABLE)
def test_a_state_that_cannot_be_read_is_refused(state, kind, message):
    scaler = Scaler("torch")
    assert folded(message) in folded(refusal(lambda: scaler.load_state_dict(state), scaler, of=kind))


@pytest.mark.parametrize("unknown", [9, 2, 1, 0])
def test_what_an_earlier_version_did_not_know_is_off_in_its_checkpoint(unknown):
    scaler, other, state = Scaler("guard"), Scaler("none"), Scaler("guard").state_dict()
    fields = [name for name in _FIELDS if name.startswith("guard_")]
    off = dict.fromkeys(fields[len(fields) - unknown :], 0)
    other.load_state_dict({"scaler": {name: value for name, value in state.items() if name not in off}})
    assert bytes(other.policy) == bytes(Policy("guard", **off))
    lacks = scaler.state_dict()
    del lacks["max_failed_backoffs"]  # not the last one: it was taken out
    other.load_state_dict(lacks)
    assert other.policy == scaler.policy
