# SPDX-License-Identifier: MIT
"""Rules and state of a scaler to and from a checkpoint: what each version of ours saved, and every framework."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from . import _entries
from . import _gradscaler as c
from ._arguments import _naming, _short
from ._entries import Note, Path, branches, checked, joined, note, pairs, read, told, tree_of
from ._policy import _FIELDS, _GUARD_FIELDS, Policy, is_fixed, rules
from ._structs import NoteKind, State

Loaded = tuple[Policy, State, list[Note]]
_VERSION = 2  # of what `save` writes in our own format


def save(policy: Policy, state: State, format: str, prefix: str | None) -> tuple[dict[str, Any], list[Note]]:
    """A checkpoint in the keys of a framework, or our own, and what they cannot hold."""
    head = {"format": format, "version": _VERSION, "preset": policy.preset} if format == "gradscaler" else {}
    return _entries.write(policy, state, format, prefix, head)


def load(checkpoint: Any, policy: Policy, format: str | None = None, prefix: str | None = None) -> Loaded:
    """The rules and the state of a checkpoint; those that a framework's lacks are `policy`.

    First of the notes are what it replaces of `policy`: a guard, fields other than the preset's, a fixed scale.
    """
    if isinstance(checkpoint, Mapping) and "saved" in checkpoint and "scale" not in checkpoint:  # RoundPipe's has both
        ours = _before_0_3(checkpoint)
    else:
        checked(format, prefix)
        rows = rows_of(checkpoint)
        ours = _ours(rows, format, prefix)
    if ours is not None:
        loaded, state, notes = ours
    else:
        loaded, state = policy.replace(), State()
        notes = read(rows, loaded, state, format, prefix)
    replaced = _replaced(policy, loaded)
    if ours is None and is_fixed(policy) and not is_fixed(loaded):
        why = f"the checkpoint has rules that move the scale, which those of {policy.preset!r} never do"
        replaced.append(note(why, NoteKind.CHANGED, "growth_interval", loaded.growth_interval))
    return loaded, state, replaced + notes


def _replaced(old: Policy, new: Policy) -> list[Note]:
    """Of a guard, and of fields in which the old policy is not its preset: those that the new one has otherwise."""
    given = {*old.differences(old.preset), *(_GUARD_FIELDS if old.guards else ())}
    was, now = rules(old), rules(new)
    return [
        note(
            f"{name} is {told(name, now[name])} in the checkpoint, "
            f"which replaces {told(name, was[name])} of this scaler",
            NoteKind.CHANGED,
            name,
            now[name],
        )
        for name in was
        if name in given and was[name] != now[name]
    ]


# ---- what ours saved ----


def _ours(rows: Mapping[Path, Any], format: str | None, prefix: str | None) -> Loaded | None:
    """None: they are of another framework."""
    place = place_of_ours(rows, prefix) if format in (None, "gradscaler") else None
    if place is not None:
        return _at(rows, place)
    torchs = of_our_torchs(rows, prefix) if format in (None, "torch") else None
    return None if torchs is None else _torchs(torchs)


def _at(rows: Mapping[Path, Any], place: Path) -> Loaded:
    """What `save` wrote in our own format, at a place in a checkpoint."""
    head = {key: rows.get((*place, key)) for key in ("format", "version", "preset")}
    where = "state" + "".join(f"[{key!r}]" for key in place)
    if head["version"] != _VERSION:
        version = _short(head["version"]) if (*place, "version") in rows else "absent"
        raise ValueError(f"{where}['version'] is {version}: gradscaler {c.gsc_version_string()} reads {_VERSION}")
    if type(head["preset"]) is not str:
        raise KeyError(f"{where} has no text 'preset'" if place else "the state has no text 'preset'")
    # New fields are the last ones: what an earlier version did not know was off, whatever the preset has by now.
    unknown = itertools.takewhile(lambda name: (*place, name) not in rows, reversed(_FIELDS))
    policy, state = Policy(head["preset"], **dict.fromkeys(unknown, 0)), State()
    numbers = {path: value for path, value in rows.items() if path[:-1] != place or path[-1] not in head}
    notes = read(numbers, policy, state, "gradscaler", joined(place))
    for one in notes:  # of a later version, which does nothing where it is 0
        if one.kind == NoteKind.IGNORED and one.value:
            (*_, key), value = one.key, rows[one.key]
            raise ValueError(
                f"{where}[{key!r}] is {_short(value)}: gradscaler {c.gsc_version_string()} does not know it"
            )
    return policy, state, notes


def _before_0_3(checkpoint: Mapping[str, Any]) -> Loaded:
    """Bytes in hexadecimal; those of TensorScaler had no preset."""
    saved = {"preset": "none", **checkpoint}
    for key in ("preset", "saved"):
        if not isinstance(saved[key], str):
            raise KeyError(f"the state has no text {key!r}")
    return *unhex(saved["saved"], "state['saved']", saved["preset"]), []


def _torchs(entries: dict[str, Any]) -> Loaded:
    """Of gradscaler.torch.GradScaler: torch's entries, and all rules and counts in one more."""
    policy, whole = unhex(entries.pop("gradscaler"), "state['gradscaler']")
    state = State()
    notes = read(rows_of(entries), policy, state, "torch", None)
    if (whole.factor.scale_f32, whole.good_steps) != (state.factor.scale_f32, state.good_steps):
        return policy, state, notes
    return policy, whole, [one for one in notes if one.kind != NoteKind.MISSING]  # which the sixth entry has


def unhex(saved: Any, where: str, preset: str = "none") -> tuple[Policy, State]:
    """Policy and state of "preset:hexadecimal"; `preset` is where the policy started if the text does not say it."""
    try:
        named, _, digits = saved.rpartition(":")
        data = bytes.fromhex(digits)
    except (AttributeError, ValueError):
        raise ValueError(f"{where} is damaged: it is not hexadecimal") from None
    policy, state = Policy(named or preset), State()
    with _naming(bytes=where, size=f"the size of {where}"):
        c.gsc_state_load(data, policy, state)
    return policy, state


# ---- where they lie ----


def rows_of(checkpoint: Any) -> dict[Path, Any]:
    """What is in a checkpoint, by the keys that lead to it."""
    tree = tree_of(checkpoint, "state")
    if not branches(tree):
        raise ValueError("state is empty, as that of a scaler that is switched off: there is nothing to go on from")
    rows = dict(pairs(tree))
    for place in {path[:-1] for path in rows if path[-1:] == ("3",)}:
        # Keras numbers the variables of an optimizer: its steps and learning rate, those of the scaler, the inner ones.
        numbered = [rows.get((*place, str(i))) for i in range(6)]
        if [type(value) for value in numbered] == [int, float] * 3:
            rows = {path: value for path, value in rows.items() if path[:-1] != place}
            rows[(*place, "step_counter")], rows[(*place, "dynamic_scale")] = numbered[2:4]
    return rows


def place_of_ours(rows: Mapping[Path, Any], prefix: str | None) -> Path | None:
    """The keys that lead to what a Scaler of ours saved; None: to nothing of the kind."""
    heads = [path[:-1] for path, value in rows.items() if path[-1:] == ("format",) and type(value) is str]
    for place in heads:
        format = rows[(*place, "format")]
        if format != "gradscaler" and all((*place, key) in rows for key in ("version", "preset", "growth_interval")):
            where = "".join(f"[{key!r}]" for key in (*place, "format"))
            raise ValueError(f"state{where} is {format!r}: it must be 'gradscaler'")
    return _the_one([place for place in heads if rows[(*place, "format")] == "gradscaler"], prefix)


def of_our_torchs(rows: Mapping[Path, Any], prefix: str | None) -> dict[Any, Any] | None:
    """The entries that a gradscaler.torch.GradScaler saved, wherever they lie; None: there are none."""
    places = [path[:-1] for path, value in rows.items() if path[-1:] == ("gradscaler",) and isinstance(value, str)]
    place = _the_one([place for place in places if (*place, "scale") in rows], prefix)
    return None if place is None else {path[-1]: value for path, value in rows.items() if path[:-1] == place}


def _the_one(places: list[Path], prefix: str | None) -> Path | None:
    if prefix is not None:
        places = [place for place in places if joined(place) == prefix]
    if len(places) > 1:
        names = ", ".join(repr(joined(place)) for place in places)
        raise ValueError(f"the entries of state hold several scalers, {names}: say which by prefix")
    return places[0] if places else None
