# SPDX-License-Identifier: MIT
"""Converts containers to and from the core's lists of names and numbers, and the core's notes on them."""

from __future__ import annotations

import contextlib
import decimal
import functools
import itertools
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from . import _gradscaler as c
from . import _structs
from ._structs import EntryKind, KeyUse, NoteKind, Status

Path = tuple[Any, ...]
_KEY_BYTES, _TEXT_BYTES = (
    getattr(_structs.Entry, name).size - 1 for name in ("key", "text")
)  # bytes, without the zero
_MAX_DEPTH = 16  # the most nested containers
_MAX_VISITS = 16  # of one container, in which there can be others: all their paths can be too many


class Note(str):
    """A sentence on a finding, or on a key of a checkpoint or settings that is missing, ignored or changed.

    A version can change the words; programs read the attributes.

    kind: a gradscaler.NoteKind
    key: the path of the key, such as ("scaler", "_growth_tracker"), or None
    field: the field of the policy or the state; with NoteKind.FORMAT the name of the format
    value: the number in force
    """

    kind: NoteKind
    key: Path | None
    field: str
    value: float


def note(text: str, kind: NoteKind, field: str, value: float, key: Path | None = None) -> Note:
    one = Note(text)
    one.kind, one.field, one.value, one.key = kind, field, value, key
    return one


def formats() -> dict[str, str]:
    """Returns the names of all formats of checkpoints and settings, each with a sentence on its framework."""
    return listed(c.gsc_format_name, c.gsc_format_summary)


def listed(name: Callable[[int], str | None], summary: Callable[[int], str]) -> dict[str, str]:
    """Returns the names in one of the core's lists, each with its sentence."""
    names = itertools.takewhile(bool, map(name, itertools.count()))
    return {each: summary(i) for i, each in enumerate(names)}


# ---- containers ----


class _UnreadValue:
    """A value that is not a number; its text describes it: "a tensor of 2 elements"."""

    __slots__ = ("text", "value")

    def __init__(self, value: Any, text: str = "") -> None:
        self.value, self.text = value, text

    def __str__(self) -> str:
        return self.text or _description(self.value)


def pairs(tree: Any) -> Iterator[tuple[Path, Any]]:
    """Yields the paths of keys and the values in a dict, list or object.

    Values are numbers, texts, None and _UnreadValue. An array or tensor of one element becomes its number. A container
    that is in more than 16 places is visited in the first 16.
    """
    yield from _pairs(tree, (), set(), {})


def _pairs(value: Any, path: Path, above: set[int], visits: dict[int, list]) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, os.PathLike):
        value = str(value)
    if isinstance(value, decimal.Decimal) and value.is_nan():
        value = math.nan  # a signalling NaN cannot be compared
    if value is None or isinstance(value, str | numbers.Real | decimal.Decimal):
        yield path, value
        return
    if hasattr(value, "shape"):
        number = _number_in(value)
        yield path, _UnreadValue(value) if number is None else number
        return
    inside = branches(value)
    is_too_deep = len(path) == _MAX_DEPTH
    if path and (is_too_deep or path[-1] not in (inside or ())):  # {"loss_scale": {"loss_scale": 8.0}} is a path
        yield path, _UnreadValue(value)
    if inside is None or id(value) in above or is_too_deep:
        return
    known = visits.setdefault(id(value), [])  # the values too: the id of one that is gone can be another's
    if len(known) < _MAX_VISITS:
        known.append(value)
        for key, branch in inside.items():
            yield from _pairs(branch, (*path, key), above | {id(value)}, visits)


def _description(value: Any) -> str:
    name = type(value).__name__.lower()
    if hasattr(value, "shape"):
        with contextlib.suppress(TypeError, ValueError):
            kind = "tensor" if "tensor" in name or name == "parameter" else "array"
            count = math.prod(value.shape)
            return (
                f"{_with_article(kind)} of {count} elements"
                if count != 1
                else f"{_with_article(kind)} that does not give its number"
            )
    return _with_article(type(value).__name__)


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def _number_in(array: Any) -> Any:
    """Returns the number in an array of one element, else None."""
    with contextlib.suppress(TypeError, ValueError, RuntimeError, NotImplementedError):
        if math.prod(array.shape) == 1:
            array = array if hasattr(array, "item") else array.numpy() if hasattr(array, "numpy") else array[()]
            number = array.item()
            return number if isinstance(number, numbers.Real) else None
    return None


def branches(value: Any) -> Mapping[Any, Any] | None:
    """Returns the values in a container or object by their keys, or None if it is neither."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return value._asdict() if hasattr(value, "_asdict") else dict(enumerate(value))
    if isinstance(value, type) or callable(value):
        return None
    if callable(getattr(value, "state_dict", None)):
        return branches(value.state_dict())
    if hasattr(type(value), "__dataclass_fields__"):
        import dataclasses  # takes a quarter of the time of importing gradscaler

        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if name[:2] != "__"]
    attributes = getattr(value, "__dict__", None)
    if not slots:
        return attributes
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | (attributes or {})


def tree_of(tree: Any, what: str) -> Any:
    """Returns `tree`, a list of pairs as a dict; raises TypeError if it cannot contain a scaler or settings."""
    expected = f"{what} must be a dict or an object with attributes, not"
    if isinstance(tree, os.PathLike | str | bytes):
        raise TypeError(f"{expected} {type(tree).__name__}: load what is in the file")
    if isinstance(tree, type):
        raise TypeError(f"{expected} the class {tree.__name__}: pass an instance")
    if isinstance(tree, list | tuple) and not hasattr(tree, "_asdict") and tree:
        if all(isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str) for each in tree):
            return dict(tree)
        if not any(map(_is_container, tree)):
            raise TypeError(f"{expected} a {type(tree).__name__} of {type(tree[0]).__name__}")
    if isinstance(tree, numbers.Number | None) or hasattr(tree, "shape") or branches(tree) is None:
        raise TypeError(f"{expected} {type(tree).__name__}")
    return tree


def _is_container(value: Any) -> bool:
    return not isinstance(value, str | numbers.Number | None) and branches(value) is not None


def _nested(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Nests dotted keys: {"a.b": 1} becomes {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for key, value in rows.items():
        *folders, name = key.split(".")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = value
    return tree


# ---- lists of the core ----


def joined(path: Path) -> str:
    """Joins a path of keys by dots: the key of an entry."""
    return ".".join(key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in path)


@functools.cache
def _checkpoint_names() -> tuple[frozenset[str], frozenset[str]]:
    """Returns the keys that checkpoints have, and the keys of scales."""
    keys = [each for format in formats() for each in filled(_structs.FormatKey, c.gsc_format_keys, format)]
    saved = [(unnumbered(each.key.decode()), each.field) for each in keys if each.uses & KeyUse.SAVED]
    return frozenset(name for name, _ in saved), frozenset(name for name, field in saved if field == b"scale")


def unnumbered(name: str) -> str:
    """Returns a name without a number at its end: some formats number their scalers."""
    return name.rstrip("0123456789").removesuffix("_")


class _Entries:
    """The core's list of a caller's container, with the caller's own keys and values."""

    def __init__(self, what: str, rows: Iterable[tuple[Path, Any]], prefix: str | None, saved: bool) -> None:
        self.what = what
        self.paths: list[Path] = []
        self.values: list[Any] = []
        self.long_scale_key: Path | None = None  # a scale at a key that is too long
        rows, entries = list(rows), []
        self.is_too_deep = any(len(path) == _MAX_DEPTH and isinstance(value, _UnreadValue) for path, value in rows)
        number_parents = {path[:-1] for path, value in rows if isinstance(value, numbers.Real)}
        names, scales = _checkpoint_names() if saved else (None, frozenset())
        for path, value in rows:
            name = unnumbered(path[-1] if type(path[-1]) is str else joined(path[-1:]))
            if type(value) is bool and name in scales:
                value = _UnreadValue(value, str(value))
            elif type(value) is int and _rounded(value) is None:
                value = _UnreadValue(value, "an int past the largest double")
            if type(value) is _UnreadValue and (
                (names is not None and name not in names)
                or (path[:-1] not in number_parents and joined(path[:-1]) != (prefix or ""))
            ):
                continue  # a weight, or another entry that no scaler has
            key = joined(path).encode(errors="replace")
            if len(key) > _KEY_BYTES and name in scales and type(value) is not _UnreadValue:
                self.long_scale_key = path
            if 0 < len(key) <= _KEY_BYTES and b"\0" not in key:
                self.paths.append(path)
                self.values.append(value)
                entries.append(_entry(key, value))
        self.list = (_structs.Entry * len(entries))(*entries)

    def where(self, path: Path) -> str:
        return self.what + "".join(f"[{key!r}]" for key in path)

    @contextlib.contextmanager
    def naming(self, format: str | None) -> Any:
        """Makes an error about an entry name the caller's key."""
        try:
            yield
        except c.Error as error:
            where, why = ".".join(filter(None, (error.name, error.field))), error.why
            if error.name == "entries" and 0 <= error.index < len(self.paths):
                path, value = self.paths[error.index], self.values[error.index]
                where = self.where(path if error.status != Status.ERROR_VERSION else path[:-1])
                if error.requirement and (value is None or isinstance(value, _UnreadValue)):
                    why = f"is {value}: it must be {error.requirement}"
            elif error.name == "entries":
                where = f"the entries of {self.what}"
                why += self.left_out() if error.status == Status.ERROR_FORMAT else ""
            elif error.name == "format" and format not in formats():
                why += _TORCH if format in _OF_TORCH else "; gradscaler.formats() lists all"
            if error.subject_length:  # else the message is a whole sentence
                error.args = (f"{where} {why}",)
            raise

    def left_out(self) -> str:
        """Returns the end of a sentence about what the core was not given."""
        if self.long_scale_key:
            name = joined(self.long_scale_key[-1:])
            return f"; {name!r} is at a key of more than {_KEY_BYTES} bytes, where none is read"
        return f"; what is in more than {_MAX_DEPTH} containers is not looked at" if self.is_too_deep else ""

    def notes(self, raw: Any) -> list[Note]:
        """Returns notes on rounded numbers, then the core's notes, the most important first."""
        rounded, found = [], []
        for each in raw:
            value = self.values[each.entry] if 0 <= each.entry < len(self.values) else None
            if each.kind == NoteKind.IGNORED and isinstance(value, _UnreadValue):
                continue
            path = self.paths[each.entry] if 0 <= each.entry < len(self.paths) else None
            found.append(note(sentence(each), NoteKind(each.kind), each.field.decode(), each.value, path))
        ignored = {one.key for one in found if one.kind == NoteKind.IGNORED}
        for path, value in zip(self.paths, self.values, strict=True):
            if isinstance(value, int) and not _is_exact(value) and _rounded(value) != value and path not in ignored:
                text = f"{self.where(path)} is {value}: it is read as {_rounded(value):.0f}, the nearest double"
                rounded.append(note(text, NoteKind.CHANGED, "", _rounded(value), path))
        return rounded + found


_OF_TORCH = ("transformers", "huggingface", "accelerate", "lightning")
_TORCH = "; its scaler is torch's: format='torch'"


def sentence(note: _structs.Note) -> str:
    """Returns the text of a note, in which Python's name of a value stands for the core's."""
    text, start, end = note.message, note.value_start, note.value_start + note.value_length
    name = _constant_name(note.field.decode(), note.value) if note.value_length else ""
    return (text[:start] + name.encode() + text[end:] if name else text).decode()


def _constant_name(field: str, value: float) -> str:
    """Returns the name of a rule or the names of flags; "" if the field takes a number or the value has no name."""
    takes = _structs.Policy._takes_.get(field)
    if takes is None or value != int(value):
        return ""
    members = [each for each in takes if each == value] or [each for each in takes if each & int(value)]
    return "|".join(f"{takes.__name__}.{each.name}" for each in members)


def field_text(field: str, value: float) -> str:
    """Returns the value of a field as Python code."""
    return _constant_name(field, value) or repr(value)


def _rounded(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _is_exact(value: Any) -> bool:
    """Returns whether `value` is a whole number that fits into an entry."""
    return isinstance(value, numbers.Integral) and -(2**63) <= value < 2**64


def _entry(key: bytes, value: Any) -> _structs.Entry:
    if value is None:
        return _structs.Entry(key=key, kind=EntryKind.NULL)
    if isinstance(value, str | _UnreadValue):
        text = str(value).encode(errors="replace")[:_TEXT_BYTES].decode(errors="ignore").encode().partition(b"\0")[0]
        return _structs.Entry(key=key, kind=EntryKind.TEXT, text=text)
    if not _is_exact(value):
        return _structs.Entry(key=key, kind=EntryKind.NUMBER, value=float(value))
    kind = EntryKind.BOOLEAN if isinstance(value, bool) else EntryKind.INTEGER
    integer = int(value) - (2**64 if value >= 2**63 else 0)
    return _structs.Entry(key=key, kind=kind, value=float(value), integer=integer)


def check_names(format: Any, prefix: Any) -> None:
    for name, text in (("format", format), ("prefix", prefix)):
        if not isinstance(text, str | None):
            raise TypeError(f"{name} must be a text, not {type(text).__name__}")
        try:
            (text or "").encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} is {text[:40]!r}: it has characters that UTF-8 lacks") from None


def filled(kind: type, call: Callable[..., int], *arguments: Any) -> Any:
    """Returns the list that a call fills in. The call is made twice: the first returns the length."""
    found = (kind * call(*arguments, None))()
    call(*arguments, found)
    return found


# ---- the calls ----


def read(
    rows: Mapping[Path, Any],
    policy: Any,
    state: _structs.State,
    format: str | None = None,
    prefix: str | None = None,
) -> list[Note]:
    """Fills a policy and a state from a framework's checkpoint; fields that it lacks stay. An error changes neither."""
    check_names(format, prefix)
    entries = _Entries("state", rows.items(), prefix, saved=True)
    rules = bytes(policy)
    with entries.naming(format):
        raw = filled(_structs.Note, c.gsc_state_import, format, prefix, entries.list, rules, policy, state)
    return entries.notes(raw)


def write(
    policy: Any, state: _structs.State, format: str, prefix: str | None, first: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Note]]:
    """Returns the entries of `first` and the state in the keys of a framework, and notes on what these cannot hold."""
    check_names(format, prefix)
    if format is None:
        raise TypeError("format must be the name of one of gradscaler.formats(), not None")
    none = _Entries("state", [], prefix, saved=False)
    with none.naming(format):
        rows, notes = _exported(policy, state, format, prefix)
    head = {f"{prefix}.{key}" if prefix else key: value for key, value in first.items()}
    return _nested({**head, **rows}), none.notes(notes)


def _exported(policy: Any, state: _structs.State, format: str, prefix: str | None) -> tuple[dict[str, Any], Any]:
    counts = c.gsc_state_export(format, prefix, policy, state, None, None)
    entries, notes = (_structs.Entry * counts[0])(), (_structs.Note * counts[1])()
    c.gsc_state_export(format, prefix, policy, state, entries, notes)
    return {each.key.decode(): _value(each) for each in entries}, notes


def settings(policy: Any, given: Any, format: str, prefix: str | None, keep: bool) -> list[Note]:
    """Fills a policy from a framework's settings. Missing ones stay if `keep`, else get the framework's defaults."""
    entries = _Entries("settings", pairs(tree_of(given, "settings")), prefix, saved=False)
    rules = bytes(policy) if keep else None
    with entries.naming(format):
        raw = filled(_structs.Note, c.gsc_policy_import, format, prefix, entries.list, rules, policy)
    return entries.notes(raw)


def _value(entry: _structs.Entry) -> Any:
    kinds: dict[int, Callable[[], Any]] = {
        EntryKind.NUMBER: lambda: entry.value,
        EntryKind.INTEGER: lambda: entry.integer % 2**64 if entry.value > 0 else entry.integer,
        EntryKind.BOOLEAN: lambda: bool(entry.integer),
        EntryKind.TEXT: lambda: entry.text.decode(),
        EntryKind.NULL: lambda: None,
    }
    return kinds[entry.kind]()
