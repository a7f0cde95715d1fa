# SPDX-License-Identifier: MIT
"""Saves policy and state to a checkpoint, and loads them: our format and other frameworks'."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from . import _entries
from . import _gradscaler as c
from ._arguments import _argument_names, _short_repr
from ._entries import Note, Path, branches, check_names, field_text, joined, note, pairs, read, tree_of
from ._policy import _FIELDS, _GUARD_FIELDS, Policy, is_fixed, refuse_candidate, rules
from ._structs import FormatKey, KeyUse, NoteKind, State

Loaded = tuple[Policy, State, list[Note]]
_VERSION = 3  # of our own format


def save(policy: Policy, state: State, format: str, prefix: str | None) -> tuple[dict[str, Any], list[Note]]:
    """Returns a checkpoint in a format, and notes on what the format cannot hold."""
    head = {"format": format, "version": _VERSION, "preset": policy.preset} if format == "gradscaler" else {}
    return _entries.write(policy, state, format, prefix, head)


def load(checkpoint: Any, policy: Policy, format: str | None = None, prefix: str | None = None) -> Loaded:
    """Returns the rules and the state of a checkpoint; the rules that it lacks come from `policy`.

    The first notes name what the checkpoint replaces in `policy`: a guard, fields that differ from the preset, a fixed
    scale.
    """
    rows, own = _rows_and_own(checkpoint, format, prefix)
    if own is not None:
        loaded, state, notes = own
    else:
        loaded, state = policy.replace(), State()
        notes = read(rows, loaded, state, format, prefix)
    replaced = _replaced(policy, loaded)
    if own is None and is_fixed(policy) and not is_fixed(loaded):
        why = f"the rules of the checkpoint move the scale; the rules of {policy.preset!r} never do"
        replaced.append(note(why, NoteKind.CHANGED, "growth_interval", loaded.growth_interval))
    return loaded, state, replaced + notes


def _rows_and_own(checkpoint: Any, format: str | None, prefix: str | None) -> tuple[dict[Path, Any], Loaded | None]:
    """Returns the values of a checkpoint by their paths, and what is loaded if gradscaler saved it."""
    if isinstance(checkpoint, Mapping) and "saved" in checkpoint and "scale" not in checkpoint:  # RoundPipe's has both
        return {}, _load_bytes(checkpoint)
    check_names(format, prefix)
    rows = rows_of(checkpoint)
    return rows, _load_own(rows, format, prefix)


def known_fields(checkpoint: Any, format: str, given: str | None, prefix: str | None) -> set[str]:
    """Returns the fields of the state that a checkpoint has; `given` is the name of the format, if it was given."""
    rows, own = _rows_and_own(checkpoint, given, prefix)
    if own is not None:
        return {name for name, _ in State._fields_}
    names = {_entries.unnumbered(joined(path[-1:])) for path in rows}
    keys = _entries.filled(FormatKey, c.gsc_format_keys, format)
    saved = [key for key in keys if key.uses & KeyUse.SAVED]
    return {key.field.decode() for key in saved if _entries.unnumbered(key.key.decode()) in names}


def _replaced(old: Policy, new: Policy) -> list[Note]:
    """Returns a note on each field that `new` changes, if it is of the old guard or differs from the old preset."""
    given = {*old.differences(old.preset), *(_GUARD_FIELDS if old.guards else ())}
    was, now = rules(old), rules(new)
    return [
        note(
            f"{name} is {field_text(name, now[name])} in the checkpoint, "
            f"which replaces {field_text(name, was[name])} of this scaler",
            NoteKind.CHANGED,
            name,
            now[name],
        )
        for name in was
        if name in given and was[name] != now[name]
    ]


class Checkpoints:
    """The checkpoints and pickles of a scaler with `policy` and `state` on the host."""

    notes: Sequence[Note] = ()

    def state_dict(self, format: str = "gradscaler", *, prefix: str | None = None) -> dict[str, Any]:
        """Returns policy and state as numbers by name, for JSON or a checkpoint; every later version reads them.

        format: one of `formats()`. With a framework's format the framework's own scaler can continue from the dict, and
            `notes` has sentences on what the format cannot hold
        prefix: the start of the keys: "" for none, None for the framework's own, such as apex's {"loss_scaler0": {...}}
        """
        found, self.notes = save(self.policy, self.state, format, prefix)
        return found

    def load_state_dict(self, state: Any, format: str | None = None, *, prefix: str | None = None) -> Sequence[Note]:
        """Loads a checkpoint of gradscaler or of any framework in `formats()`, and continues from it.

        state: a dict, nested or not, of numbers, arrays or tensors of one element, as torch.load and others return it;
            or an object with attributes, such as the scaler that DeepSpeed pickles
        format: needed only if several formats fit; the error names them. By default a format is recognised by its keys:
            the scale and most of the others must be at the top, or below one or two names
        prefix: the path of the scaler, joined by dots, such as "amp.loss_scaler1". It is needed if there are several
            scalers, or if one is deeper; the error names it

        A checkpoint of gradscaler, found at any depth, has a policy, which replaces this scaler's. A framework's
        checkpoint changes only the settings that it contains: Scaler("torch") continues as torch would,
        Scaler("recommended") by its own rules, from that scale and those counts.
        Returns, and keeps as `notes`, sentences on what the checkpoint replaced (a guard, fields that differ from the
        preset, a fixed scale), then on keys that it lacks, that were ignored, or that mean something else here.
        Raises gradscaler.Error with the key if a value must be a number and is not. Keys of more than 159 bytes are not
        read. An error changes nothing.
        """
        self.policy, self.state, self.notes = load(state, self.policy, format, prefix)
        return self.notes

    def __getstate__(self) -> dict[str, Any]:
        excluded = ("policy", "_state", "_pinned", "_context", "_history", "_skipped_report")
        saved, _ = save(self.policy, self.state, "gradscaler", None)
        return vars(self) | dict.fromkeys(excluded) | {"state": saved}

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        vars(self).update(attributes)
        self.threads = attributes["_threads"]
        self.policy, self.state, _ = load(vars(self).pop("state"), Policy("none"))


# ---- our own checkpoints ----


def _load_own(rows: Mapping[Path, Any], format: str | None, prefix: str | None) -> Loaded | None:
    """Loads a checkpoint of gradscaler; returns None if it is from another framework."""
    parent = find_own(rows, prefix) if format in (None, "gradscaler") else None
    if parent is not None:
        return _load_at(rows, parent)
    own_torch = find_own_torch(rows, prefix) if format in (None, "torch") else None
    return None if own_torch is None else _load_own_torch(own_torch)


def _load_at(rows: Mapping[Path, Any], parent: Path) -> Loaded:
    """Loads the entries in our own format below `parent`."""
    head = {key: rows.get((*parent, key)) for key in ("format", "version", "preset")}
    where = "state" + "".join(f"[{key!r}]" for key in parent)
    if head["version"] in range(1, _VERSION):
        refuse_candidate(where)
    if head["version"] != _VERSION:
        version = _short_repr(head["version"]) if (*parent, "version") in rows else "absent"
        raise ValueError(f"{where}['version'] is {version}: gradscaler {c.gsc_version_string()} reads {_VERSION}")
    if type(head["preset"]) is not str:
        raise KeyError(f"{where} has no text 'preset'" if parent else "the state has no text 'preset'")
    # New fields are the last ones. In an earlier version they were off, even if the preset sets them now.
    unknown = itertools.takewhile(lambda name: (*parent, name) not in rows, reversed(_FIELDS))
    policy, state = Policy(head["preset"], **dict.fromkeys(unknown, 0)), State()
    numbers = {path: value for path, value in rows.items() if path[:-1] != parent or path[-1] not in head}
    notes = read(numbers, policy, state, "gradscaler", joined(parent))
    for one in notes:  # a field of a later version does nothing if it is 0
        if one.kind == NoteKind.IGNORED and one.value:
            (*_, key), value = one.key, rows[one.key]
            raise ValueError(
                f"{where}[{key!r}] is {_short_repr(value)}: gradscaler {c.gsc_version_string()} does not know it"
            )
    return policy, state, notes


def _load_bytes(checkpoint: Mapping[str, Any]) -> Loaded:
    """Loads what gradscaler.torch.TensorScaler and gradscaler.roundpipe save: bytes in hexadecimal."""
    for key in ("preset", "saved"):
        if not isinstance(checkpoint.get(key), str):
            raise KeyError(f"the state has no text {key!r}")
    return *from_hex(checkpoint["saved"], "state['saved']", checkpoint["preset"]), []


def _load_own_torch(entries: dict[str, Any]) -> Loaded:
    """Loads a checkpoint of gradscaler.torch.GradScaler: torch's entries, and one more with all rules and counts."""
    policy, saved_state = from_hex(entries.pop("gradscaler"), "state['gradscaler']")
    state = State()
    notes = read(rows_of(entries), policy, state, "torch", None)
    if (saved_state.factor.scale_f32, saved_state.good_steps) != (state.factor.scale_f32, state.good_steps):
        return policy, state, notes
    return policy, saved_state, [one for one in notes if one.kind != NoteKind.MISSING]  # the sixth entry has these


def from_hex(saved: Any, where: str, preset: str = "none") -> tuple[Policy, State]:
    """Returns policy and state from "preset:hexadecimal"; `preset` is the default if the text has none."""
    try:
        named, _, digits = saved.rpartition(":")
        data = bytes.fromhex(digits)
    except (AttributeError, ValueError):
        raise ValueError(f"{where} is damaged: it is not hexadecimal") from None
    policy, state = Policy("none"), State()
    with _argument_names(bytes=where, size=f"the size of {where}"):
        c.gsc_state_load(data, policy, state)
    vars(policy)["preset"] = Policy(named or preset).preset
    return policy, state


# ---- finding a scaler in a checkpoint ----


def rows_of(checkpoint: Any) -> dict[Path, Any]:
    """Returns the values of a checkpoint by their paths of keys."""
    tree = tree_of(checkpoint, "state")
    if not branches(tree):
        raise ValueError("state is empty, as if a disabled scaler saved it: there is nothing to continue from")
    rows = dict(pairs(tree))
    for parent in {path[:-1] for path in rows if path[-1:] == ("3",)}:
        # Keras numbers the variables of its LossScaleOptimizer: 0 and 1 are its steps and learning rate, 2 and 3 the
        # scaler's counter and scale, 4 and 5 the inner optimizer's steps and learning rate.
        numbered = [rows.get((*parent, str(i))) for i in range(6)]
        if [type(value) for value in numbered] == [int, float] * 3:
            rows = {path: value for path, value in rows.items() if path[:-1] != parent}
            rows[(*parent, "step_counter")], rows[(*parent, "dynamic_scale")] = numbered[2:4]
    return rows


def find_own(rows: Mapping[Path, Any], prefix: str | None) -> Path | None:
    """Returns the keys that lead to a Scaler in our own format, or None if there is none."""
    parents = [path[:-1] for path, value in rows.items() if path[-1:] == ("format",) and type(value) is str]
    for parent in parents:
        format = rows[(*parent, "format")]
        if format != "gradscaler" and all((*parent, key) in rows for key in ("version", "preset", "growth_interval")):
            where = "".join(f"[{key!r}]" for key in (*parent, "format"))
            raise ValueError(f"state{where} is {format!r}: it must be 'gradscaler'")
    return _single([parent for parent in parents if rows[(*parent, "format")] == "gradscaler"], prefix)


def find_own_torch(rows: Mapping[Path, Any], prefix: str | None) -> dict[Any, Any] | None:
    """Returns the entries that a gradscaler.torch.GradScaler saved, at any depth, or None if there are none."""
    parents = [path[:-1] for path, value in rows.items() if path[-1:] == ("gradscaler",) and isinstance(value, str)]
    parent = _single([parent for parent in parents if (*parent, "scale") in rows], prefix)
    return None if parent is None else {path[-1]: value for path, value in rows.items() if path[:-1] == parent}


def _single(paths: list[Path], prefix: str | None) -> Path | None:
    if prefix is not None:
        paths = [path for path in paths if joined(path) == prefix]
    if len(paths) > 1:
        names = ", ".join(repr(joined(path)) for path in paths)
        raise ValueError(f"the entries of state hold several scalers, {names}: say which by prefix")
    return paths[0] if paths else None
