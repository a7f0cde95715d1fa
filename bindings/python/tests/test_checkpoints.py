# SPDX-License-Identifier: MIT
"""What a Scaler writes and reads: its own state, and checkpoints and settings of every framework."""

import argparse
import collections
import copy
import dataclasses
import decimal
import json
import pathlib
import pickle
import re
import struct
import types
import zlib

import numpy as np
import pytest
from support import F32, contents

import gradscaler
from gradscaler import Error, NoteKind, Policy, Report, ReportKind, Scaler, State, Want
from gradscaler import _gradscaler as c

POLICY_FIELDS = [name for name, *_ in gradscaler._structs.Policy._fields_ if name not in ("struct_size", "reserved")]


def report_of(overflow):
    """A report for any policy."""
    return Report(kind=ReportKind.TENSORS, measured=sum(Want), overflow=overflow, amax=3.0)


def used_scaler():
    scaler = Scaler("megatron", growth_interval=3, init_scale=2.0**20)
    for overflow in (0, 0, 0, 1, 1, 1, 0):
        scaler.update(bool(overflow))
    return scaler


def test_a_state_dict_can_be_read():
    scaler = used_scaler()
    state = scaler.state_dict()
    named = {"format": "gradscaler", "version": 2, "preset": "megatron", "scale": 2.0**19, "total_overflows": 3}
    assert {name: state[name] for name in named} == named
    fields = {name: state[name] for name in POLICY_FIELDS}
    assert fields == {name: getattr(scaler.policy, name) for name in POLICY_FIELDS}
    assert {type(state[name]) for name in ("good_steps", "growth_interval", "version")} == {int}


def test_a_state_dict_of_before_0_3_is_read():
    scaler, restored = used_scaler(), Scaler("none")
    saved = c.gsc_state_save(scaler.policy, scaler.state).hex()
    restored.load_state_dict({"preset": "megatron", "loss_scale": 1.0, "skipped": 0, "saved": saved})
    assert contents(restored) == contents(scaler)


def test_a_pickle_of_before_0_3_is_read():
    scaler, restored = used_scaler(), Scaler.__new__(Scaler)
    saved = {"preset": "megatron", "saved": c.gsc_state_save(scaler.policy, scaler.state).hex()}
    restored.__setstate__({"preset": "megatron", "policy": None, "state": saved, "_on": None, "_threads": 1})
    assert contents(restored) == contents(scaler)


def in_0_5(state):
    """The bytes of a state in 0.2 to 0.5."""
    return bytes(state)[:172] + bytes(4) + bytes(state)[176:256]


@pytest.mark.parametrize("overflow", [False, True])
def test_a_state_of_before_0_9_is_read(overflow):
    scaler = used_scaler()
    scaler.update(overflow)
    state, data = scaler.state, in_0_5(scaler.state)
    assert state.skip == overflow and bytes(State.from_bytes(data)) == bytes(state)
    assert bytes(State.from_bytes(bytes(state) + bytes(128))) == bytes(state)
    again = pickle.loads(pickle.dumps(state))
    assert bytes(again) == bytes(copy.deepcopy(state)) == bytes(state)
    again.__setstate__({}, data)
    assert bytes(again) == bytes(state)
    policy = bytes(scaler.policy)
    saved = struct.pack("<8s4I", b"GSCSTATE", 1, 28 + len(policy) + 256, len(policy), 256) + policy + data
    restored = Scaler("none")
    restored.load_state_dict({"preset": "megatron", "saved": (saved + struct.pack("<I", zlib.crc32(saved))).hex()})
    assert contents(restored) == contents(scaler)


def test_what_a_state_dict_lacks_is_that_of_its_preset_and_said():
    state = Scaler("torch", growth_interval=5).state_dict()
    del state["growth_interval"]
    scaler = Scaler("none")
    notes = scaler.load_state_dict(state)
    assert scaler.policy.growth_interval == 2000
    assert [(note.kind, note.field, note.value) for note in notes] == [(NoteKind.MISSING, "growth_interval", 2000)]
    assert notes == scaler.notes


def test_a_field_of_a_later_version_may_be_there_while_it_does_nothing():
    scaler = Scaler("none")
    scaler.load_state_dict({**Scaler("torch").state_dict(), "invented_later": 0})
    assert scaler.policy == Policy("torch")


# ---- checkpoints and settings of frameworks ----


def torch_state(**keys):
    good = {"scale": 2048.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 100, "_growth_tracker": 3}
    return {**good, **keys}


class Attributes:
    def __init__(self, **attributes):
        vars(self).update(attributes)


@dataclasses.dataclass
class Dataclass:
    loss_scale: float = 2048.0
    counter: int = 3
    period: int = 100
    factor: int = 2
    min_loss_scale: float = 1.0


Leaves = collections.namedtuple("Leaves", ["loss_scale", "unskipped"])


@pytest.mark.parametrize(
    "state",
    [
        torch_state(),
        {"epoch": 3, "model": {"weight": np.ones(3, F32), "bias": np.ones(1, F32)}, "scaler": torch_state()},
        [torch_state()],
        {key: np.array([value]) for key, value in torch_state().items()},
        {key: np.float32(value) for key, value in torch_state().items()},
        types.MappingProxyType(torch_state()),
        Attributes(state_dict=torch_state),
        {"loss_scaler": Attributes(cur_scale=2048.0, cur_iter=13, last_overflow_iter=9, scale_window=100, dtype=F32)},
        Dataclass(),
        {"loss_scaler0": Leaves(2048.0, 3)},
        {"loss_scale": 2048.0, "unskipped": 3, "notes": "x" * 1000, "é" * 1000: 1, "": 2, "huge": 10**400, "z": 1j},
    ],
    ids=["flat", "nested", "list", "arrays", "scalars", "mapping", "scaler", "object", "dataclass", "named", "odd"],
)
def test_a_checkpoint_may_be_any_container(state):
    scaler = Scaler("torch", growth_interval=100)
    scaler.load_state_dict(state)
    assert (scaler.loss_scale, scaler.state.good_steps, scaler.policy.growth_interval) == (2048.0, 3, 100)


def test_the_numbered_variables_of_keras_are_read():
    scaler = Scaler("keras")
    scaler.load_state_dict({"optimizer": {str(i): value for i, value in enumerate((7, 0.1, 3, 2048.0, 7, 0.1))}})
    assert (scaler.loss_scale, scaler.state.good_steps) == (2048.0, 3)


def test_a_checkpoint_that_contains_itself_is_read():
    state = torch_state()
    state["self"] = [state]
    scaler = Scaler("torch")
    scaler.load_state_dict(state)
    assert scaler.loss_scale == 2048.0


def test_a_checkpoint_of_a_framework_keeps_the_rules_that_it_does_not_say():
    scaler = Scaler("recommended", max_scale=2.0**20)
    notes = scaler.load_state_dict(torch_state())
    expected = Policy("recommended", max_scale=2.0**20, growth_interval=100)
    assert (scaler.policy, scaler.preset, scaler.loss_scale, scaler.state.good_steps) == (
        expected,
        "recommended",
        2048.0,
        3,
    )
    assert scaler.notes == notes


def test_notes_are_sentences_with_what_they_are_about():
    scaler = Scaler("torch")
    notes = scaler.load_state_dict({"scaler": torch_state(_growth_tracker=100, color=3)})
    kinds = {note.kind: note for note in notes}
    read, changed, ignored = (kinds[kind] for kind in (NoteKind.FORMAT, NoteKind.CHANGED, NoteKind.IGNORED))
    assert (read.field, read.key) == ("torch", None)
    assert (changed.field, changed.key, changed.value) == ("good_steps", ("scaler", "_growth_tracker"), 100)
    assert ignored.key == ("scaler", "color") and "color" in ignored
    assert all(type(note) is gradscaler.Note and note for note in notes)


def test_one_of_several_scalers_is_named_by_its_prefix():
    scaler = Scaler("apex")
    state = {f"loss_scaler{i}": {"loss_scale": 2.0**i, "unskipped": i} for i in range(3)}
    scaler.load_state_dict(state, prefix="loss_scaler2")
    assert (scaler.loss_scale, scaler.state.good_steps) == (4.0, 2)


@pytest.mark.parametrize("format", sorted(gradscaler.formats()))
def test_what_a_format_cannot_hold_is_said_and_all_else_comes_back(format):
    scaler = Scaler(format if format in gradscaler.presets() else "torch", growth_interval=3)
    for overflow in (0, 0, 0, 0, 1, 0, 0):
        scaler.update(report_of(overflow))
    try:
        state = scaler.state_dict(format)
    except Error as error:
        assert "saves no state" in str(error)
        return
    lost = {note.field for note in scaler.notes if note.kind == NoteKind.LOST}
    restored = Scaler(scaler.policy)
    restored.load_state_dict(state, format)
    assert (restored.loss_scale, restored.policy) == (scaler.loss_scale, scaler.policy)
    if not lost & {"good_steps", "steps_since_change", "overflows_since_reset", "next_scale", "log2_mean"}:
        assert moves(restored) == moves(scaler)


def moves(scaler):
    """The scales of a run with overflows."""
    found = []
    for step in range(60):
        scaler.update(report_of(step % 7 in (2, 3, 4) and step % 3 > 0))
        found.append(scaler.loss_scale)
    return found


def test_keys_are_nested_as_the_framework_nests_them():
    assert Scaler("apex").state_dict("apex") == {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 0}}
    assert Scaler("torch").state_dict("torch", prefix="a.b")["a"]["b"]["_growth_tracker"] == 0


def test_numbers_have_the_types_that_loaders_expect():
    state = Scaler("paddle_dygraph").state_dict("paddle_dygraph")
    assert (type(state["scale"]), type(state["incr_count"]), state["use_dynamic_loss_scaling"]) == (float, int, True)


@pytest.mark.parametrize(
    ("format", "settings", "expected"),
    [
        ("torch", {"init_scale": 8.0, "growth_interval": 7}, Policy("torch", init_scale=8, growth_interval=7)),
        (
            "deepspeed",
            {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "consecutive_hysteresis": True},
            Policy("deepspeed", init_scale=4096, overflow_reset=gradscaler.OverflowReset.ON_GOOD_STEP),
        ),
        (
            "megatron",
            argparse.Namespace(initial_loss_scale=8, loss_scale_window=5),
            {"init_scale": 8, "growth_interval": 5},
        ),
        ("cerebras", {"loss_scale": "dynamic", "steps_per_increase": 5}, {"growth_interval": 5}),
    ],
)
def test_settings_of_a_framework_make_the_policy_that_it_follows(format, settings, expected):
    policy = Policy.from_settings(format, settings)
    assert policy == (Policy(format, **expected) if isinstance(expected, dict) else expected)


def test_settings_go_into_other_rules_and_fields_are_replaced():
    settings = {"fp16": {"initial_scale_power": 10}, "lr": 0.1}
    policy = Policy.from_settings("deepspeed", settings, preset="recommended", prefix="fp16", growth_interval=5)
    assert policy == Policy("recommended", init_scale=1024, growth_interval=5)
    assert (policy.preset, Policy.from_settings("deepspeed", {}).preset) == ("recommended", "deepspeed")


def test_a_setting_that_means_nothing_is_said():
    (note,) = Policy.from_settings("torch", {"growth_intervall": 5}).notes
    assert (note.kind, note.key, "growth_intervall" in note) == (NoteKind.IGNORED, ("growth_intervall",), True)


def test_a_scaler_is_made_of_a_policy_of_its_own():
    policy = Policy("torch", growth_interval=5)
    scaler = Scaler(policy, init_scale=8)
    policy.growth_interval = 7
    assert (scaler.policy, scaler.preset) == (Policy("torch", growth_interval=5, init_scale=8), "torch")
    assert pickle.loads(pickle.dumps(policy)).preset == copy.copy(policy).preset == "torch"


def test_a_state_dict_of_ours_is_read_under_its_prefix():
    scaler, restored = used_scaler(), Scaler("none")
    restored.load_state_dict(scaler.state_dict(prefix="generator"), prefix="generator")
    assert contents(restored) == contents(scaler)


def test_a_policy_that_was_made_of_bytes_makes_a_scaler():
    policy = Policy("torch", growth_interval=5)
    assert Scaler(Policy.from_buffer_copy(bytes(policy))).policy == policy


class Meta:
    """As a tensor whose number is nowhere."""

    shape = ()

    def item(self):
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.ones(2, F32), "is an array of 2 elements: it must be a number"),
        (Meta(), "is an array whose number cannot be read: it must be a number"),
        ([1], "is a list: it must be a number"),
        ({"a": 1}, "is a dict: it must be a number"),
        (1j, "is a complex: it must be a number"),
        (b"3", "is a bytes: it must be a number"),
        (None, "is None: it must be a number"),
        (10**400, "is an int past the largest double: it must be a number"),
    ],
)
def test_what_is_no_number_is_refused_where_one_is_read(value, sentence):
    scaler = Scaler("torch")
    before = contents(scaler)
    with pytest.raises(Error, match=re.escape(f"state['scaler']['_growth_tracker'] {sentence}")):
        scaler.load_state_dict({"model": {"weight": np.ones(3)}, "scaler": torch_state(_growth_tracker=value)})
    assert contents(scaler) == before


def test_a_setting_that_is_no_number_is_refused():
    with pytest.raises(Error, match=re.escape("settings['init_scale'] is an array of 2 elements: it must be a number")):
        Policy.from_settings("torch", {"init_scale": np.ones(2)})
    with pytest.raises(Error, match=re.escape("settings['fp16']['loss_scale'] is a list: it must be a number")):
        Policy.from_settings("deepspeed", {"fp16": {"loss_scale": [2.0]}}, prefix="fp16")


def test_a_bool_is_no_scale():
    with pytest.raises(Error, match=re.escape("state['scale'] is True: it must be a number")):
        Scaler("torch").load_state_dict(torch_state(scale=True))


def test_weights_with_the_name_of_a_scale_are_passed_over():
    norms = {f"norm{i}": {"scale": np.ones(8), "bias": np.ones(8)} for i in range(300)}
    scaler = Scaler("flax")
    scaler.load_state_dict({"params": norms, "step": 7, "dynamic_scale": {"scale": 8.0, "fin_steps": 3}})
    assert (scaler.loss_scale, scaler.state.good_steps) == (8.0, 3)


def test_a_whole_number_that_is_rounded_is_said():
    scaler = Scaler("torch")
    notes = scaler.load_state_dict(torch_state(growth_interval=2**63 + 1))
    assert ("growth_interval",) in {note.key for note in notes if note.kind == NoteKind.CHANGED}
    assert scaler.policy.growth_interval == 2**63


@pytest.mark.parametrize("format", ["torch", "gradscaler"])
@pytest.mark.parametrize("number", [2**53 + 1, np.int64(2**60 + 1)])
def test_a_whole_number_beyond_doubles_is_read_and_written_as_it_is(format, number):
    scaler, again = Scaler("torch"), Scaler("torch")
    notes = scaler.load_state_dict(torch_state(growth_interval=2**61 + 1, _growth_tracker=number))
    state = scaler.state_dict(format)
    again.load_state_dict(json.loads(json.dumps(state)), format)
    for each in scaler, again:
        assert (each.policy.growth_interval, each.state.good_steps) == (2**61 + 1, number)
    assert [note for note in notes if note.kind == NoteKind.CHANGED] == []


def test_a_decimal_is_a_number():
    scaler = Scaler("torch")
    scaler.load_state_dict(torch_state(scale=decimal.Decimal("8")))
    assert scaler.loss_scale == 8.0


def test_a_boolean_is_no_count():
    with pytest.raises(Error, match="state\\['_growth_tracker'\\] is .*a number, and no boolean"):
        Scaler("torch").load_state_dict(torch_state(_growth_tracker=True))


def test_an_object_with_slots_has_attributes():
    class Slotted:
        __slots__ = ("__weakref__", "_growth_tracker", "backoff_factor", "growth_factor", "growth_interval", "scale")

    slotted = Slotted()
    for name, value in torch_state(scale=8.0).items():
        setattr(slotted, name, value)
    scaler = Scaler("torch")
    scaler.load_state_dict({"scaler": slotted})
    assert scaler.loss_scale == 8.0


@pytest.mark.parametrize("nan", ["NaN", "sNaN"])
def test_a_decimal_nan_is_refused_by_its_key(nan):
    with pytest.raises(Error, match="state\\['scale'\\] is nan"):
        Scaler("torch").load_state_dict(torch_state(scale=decimal.Decimal(nan)))


@pytest.mark.parametrize("place", [(), ("scaler",), ("a", "b.c")])
def test_our_own_state_is_found_where_it_is_without_a_note(place):
    scaler, restored = used_scaler(), Scaler("none")
    state = scaler.state_dict()
    for key in reversed(place):
        state = {key: state, "model": {"weight": np.ones(3)}}
    assert restored.load_state_dict(state) == []
    assert contents(restored) == contents(scaler)


def test_a_version_that_is_not_read_is_refused_wherever_it_is():
    state = {"scaler": {**Scaler("torch").state_dict(), "version": 1}}
    with pytest.raises(ValueError, match=re.escape("state['scaler']['version'] is 1")):
        Scaler("none").load_state_dict(state)
    del state["scaler"]["version"]
    with pytest.raises(ValueError, match=re.escape("state['scaler']['version'] is absent")):
        Scaler("none").load_state_dict(state)


def test_a_mistyped_format_in_our_own_state_is_refused():
    with pytest.raises(ValueError, match="is 'gradscalar': it must be 'gradscaler'"):
        Scaler("none").load_state_dict({**Scaler("torch").state_dict(), "format": "gradscalar"})


def test_several_states_of_ours_are_told_apart_by_prefix():
    state = {"a": used_scaler().state_dict(), "b": Scaler("torch").state_dict()}
    scaler = Scaler("none")
    with pytest.raises(ValueError, match="several scalers, 'a', 'b': say which by prefix"):
        scaler.load_state_dict(state)
    scaler.load_state_dict(state, prefix="b")
    assert scaler.policy == Policy("torch") and scaler.preset == "torch"


def test_a_prefix_is_around_all_of_our_own_state():
    scaler = used_scaler()
    assert scaler.state_dict(prefix="a.b") == {"a": {"b": scaler.state_dict()}}


@pytest.mark.parametrize(
    ("state", "kind", "sentence"),
    [
        ({}, ValueError, "state is empty, as if a disabled scaler saved it"),
        (pathlib.Path("scaler.pt"), TypeError, "load what is in the file"),
        ("scaler.pt", TypeError, "load what is in the file"),
        ([1.0, 2.0], TypeError, "not a list of float"),
        (Dataclass, TypeError, "not the class Dataclass: pass an instance"),
        ({"a" * 160: torch_state()}, Error, "'scale' is at a key of more than 159 bytes"),
    ],
)
def test_what_holds_no_state_is_refused_by_what_it_is(state, kind, sentence):
    with pytest.raises(kind, match=re.escape(sentence)):
        Scaler("torch").load_state_dict(state)


def test_a_state_too_deep_is_refused_by_name():
    state = torch_state()
    for _ in range(20):
        state = {"a": state}
    with pytest.raises(Error, match="more than 16 containers"):
        Scaler("torch").load_state_dict(state)


def test_the_place_of_a_scaler_below_more_than_two_names_is_its_prefix():
    state, scaler = {"trainer": {"amp": {"scaler": torch_state()}}}, Scaler("torch")
    told = 'the entries of state have a scaler below more than two names: give the prefix "trainer.amp.scaler"'
    with pytest.raises(Error, match=re.escape(told)):
        scaler.load_state_dict(state)
    scaler.load_state_dict(state, prefix="trainer.amp.scaler")
    scaler.load_state_dict(state["trainer"])
    assert (scaler.loss_scale, scaler.state.good_steps) == (2048.0, 3)


@pytest.mark.parametrize("state", [list(torch_state().items()), {k.encode(): v for k, v in torch_state().items()}])
def test_pairs_and_keys_of_bytes_are_read(state):
    scaler = Scaler("torch")
    scaler.load_state_dict(state)
    assert (scaler.loss_scale, scaler.state.good_steps) == (2048.0, 3)


def test_a_format_that_is_none_points_to_those_that_are():
    for name in ("pytorch_lightning2", ""):
        with pytest.raises(Error, match=re.escape("gradscaler.formats() lists all")):
            Policy.from_settings(name, {})
    assert Policy.from_settings("recommended", {"guard_norm": 2.0}) == Policy("recommended", guard_norm=2.0)
    for name in ("transformers", "huggingface", "accelerate", "lightning"):
        with pytest.raises(Error, match="format='torch'"):
            Scaler("torch").load_state_dict(torch_state(), name)
    with pytest.raises(TypeError, match=re.escape("gradscaler.formats(), not None")):
        Policy.from_settings(None, {})
    with pytest.raises(TypeError, match="not a list of str"):
        Policy.from_settings("megatron", ["--hysteresis", "2"])


def test_notes_name_rules_and_say_the_important_first():
    scaler = Scaler("recommended")
    notes = scaler.load_state_dict(torch_state(scale=0.0, color=3))
    kinds = [note.kind for note in notes]
    order = ("UNUSABLE", "FORMAT", "IGNORED", "MISSING")
    assert list(dict.fromkeys(kinds)) == [NoteKind[name] for name in order]
    assert any(
        "it is LimitRule.CLAMP_UNLESS_PAST, as in the policy" in note for note in notes if note.field == "ceiling_rule"
    )


@pytest.mark.parametrize("unknown", [9, 2, 1, 0])
def test_what_an_earlier_version_did_not_know_is_off_in_its_checkpoint(unknown):
    scaler = Scaler("guard")
    fields = [name for name, *_ in Policy._fields_ if name.startswith("guard_")]
    state = {name: value for name, value in scaler.state_dict().items() if name not in fields[len(fields) - unknown :]}
    other = Scaler("none")
    other.load_state_dict({"scaler": state})
    for place, name in enumerate(fields):
        assert getattr(other.policy, name) == (0 if place >= 9 - unknown else getattr(scaler.policy, name)), name
    assert other.policy.max_failed_backoffs == scaler.policy.max_failed_backoffs
    lacks = scaler.state_dict()
    del lacks["max_failed_backoffs"]  # not the last one: it was taken out
    other.load_state_dict(lacks)
    assert other.policy == scaler.policy
