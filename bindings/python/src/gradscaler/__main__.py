# SPDX-License-Identifier: MIT
"""The command `gradscaler`, also `python -m gradscaler`: shows the installation, the rules of a scaler, and a run."""

from __future__ import annotations

import argparse
import array
import csv
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable
from typing import Any

import gradscaler

from . import _checkpoints, _doctor, _entries, _files, _lines, _plot
from ._policy import _FIELDS

PACKAGES = {
    "torch": "for gradscaler.torch",
    "jax": "for gradscaler.jax",
    "jaxlib": "for gradscaler.jax",
    "numpy": "for NumPy arrays; torch and JAX do not need it",
    "ml_dtypes": "for bfloat16 and float8 in NumPy",
}


# The metrics that have other names than their fields of the state.
_FIELDS_OF = {"loss_scale": "scale", "skip": "events", "overflow": "events", "norm": "guard_value"}


def installed(package: str) -> str:
    """Returns the version of a package without importing it; if it is not installed, what it is for."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"not installed; it is {PACKAGES[package]}"


def self_test() -> str:
    """Unscales three gradients, one of them infinite, and returns "yes" if the result is right."""
    out = array.array("f", [0, 0, 0])
    report = gradscaler.Scaler("static", init_scale=4).unscale([array.array("f", [8, -4, math.inf])], out=[out])
    good = report.overflow and list(report.bad.values()) == [1] and list(out) == [2, -1, math.inf]
    return "yes" if good else f"NO: 8, -4, inf at scale 4 became {list(out)}, {report}"


def subnormals() -> str:
    """Returns "kept", or what to do if this thread flushes subnormal numbers to zero."""
    if sys.float_info.min / 2 > 0.0:
        return "kept"
    return (
        "FLUSHED to zero in this thread: small gradients can become 0, and bits differ from other machines. "
        "torch.set_flush_denormal(False) ends it; a library that was built with -ffast-math can also have begun it"
    )


def doctor_rows() -> dict[str, str]:
    """Returns the rows that `doctor` prints."""
    info = gradscaler.info()
    others = [name for name in info.cpu_available if name != info.cpu]
    cpu = info.cpu + (f"; GSC_CPU in the environment chooses {' or '.join(others)}" if others else "")
    return {
        "gradscaler": f"{info.version}, ABI {info.version.rpartition('.')[0]}",
        "library": gradscaler._gradscaler.__file__,
        "Python": f"{platform.python_version()}, {platform.platform()}, {sys.executable}",
        "CPU": cpu + (f" ({info.cpu_note})" if info.cpu_note else ""),
        "subnormals": subnormals(),
        "CUDA": info.cuda,
        **{name: installed(name) for name in PACKAGES},
        "works": self_test(),
    }


def shown(text: Any) -> str:
    """Returns a text with its control characters escaped: names in a file could control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in str(text))


def as_text(value: Any) -> str:
    """Returns JSON; what has no number in JSON, such as infinity, is text."""
    return json.dumps(_lines.as_json(value), allow_nan=False)


def table(rows: dict[str, Any], more: Iterable[str] = ()) -> None:
    """Prints rows, with room for the names of more rows to come."""
    width = max(map(len, [*rows, *more]), default=0)
    for word, text in rows.items():
        print(f"{shown(word):<{width}}  {shown(text)}")


def doctor(options: argparse.Namespace) -> int:
    """shows version, CPU, CUDA, packages and what each device of torch gets; with --device, compares a GPU with the CPU
    bit for bit, and measures its speed. Exits with 1 if something is wrong. Starts CUDA"""
    rows, tests = doctor_rows(), {}
    if options.device:
        rows["device"], tests = _doctor.tests(options.device, options.seconds)
    elif rows["works"] == "yes":
        rows |= _doctor.torch_paths()
    if not options.json:
        table(rows, tests)
    width, wrong = max(map(len, [*rows, *tests])), rows["works"] != "yes"
    for name, test in tests.items():
        if not options.json:
            print(f"{name:<{width}}  ", end="", flush=True)  # before it runs: a fault of the device can end the process
        start = time.perf_counter()
        try:
            rows[name] = f"right: {test()} in {time.perf_counter() - start:.1f} s"
        except (ValueError, RuntimeError, MemoryError) as error:
            rows[name], wrong = f"WRONG: {error}", True
        if not options.json:
            print(shown(rows[name]), flush=True)
    if options.json:
        print(as_text(rows))
    return wrong


def presets(options: argparse.Namespace) -> int:
    """lists the presets, shows the rules of one, or compares two"""
    if options.settings:
        if not options.name:
            raise ValueError("--from needs the NAME of the framework of these settings")
        policy = gradscaler.Policy.from_settings(options.name, _files.load(options.settings), prefix=options.prefix)
    elif options.name:
        policy = gradscaler.Policy(options.name)
    else:
        return show(options, gradscaler.presets())
    rules: dict[str, Any] = {name: getattr(policy, name) for name in _FIELDS if getattr(policy, name)}
    if options.other:
        other = gradscaler.Policy(options.other)
        rules = {name: [getattr(policy, name), getattr(other, name)] for name in _FIELDS}
        rules = {name: pair for name, pair in rules.items() if pair[0] != pair[1]}
    if not options.json:
        text_of = _entries.field_text
        rules = {
            name: f"{text_of(name, x[0])} ({options.other}: {text_of(name, x[1])})"
            if options.other
            else text_of(name, x)
            for name, x in rules.items()
        } or {"no": "difference"}
    return show(options, rules, policy.notes)


def inspect(options: argparse.Namespace) -> int:
    """shows the rules and counts of the scaler in a checkpoint; runs no code from the file"""
    scaler, metrics, notes = load_scaler(options)
    if options.to:
        scaler.state_dict(options.to)
        notes = [*notes, *scaler.notes]
    return show(options, {"policy": str(scaler.policy), **metrics}, notes)


def load_scaler(options: argparse.Namespace) -> tuple[gradscaler.Scaler, dict[str, Any], list[Any]]:
    """Returns a scaler with the preset of the checkpoint's format, its metrics that the checkpoint has, and notes."""
    saved = _files.load(options.file)
    scaler = gradscaler.Scaler("none")
    notes = scaler.load_state_dict(saved, options.format, prefix=options.prefix)
    formats = [note.field for note in notes if note.kind == gradscaler.NoteKind.FORMAT]
    format = options.format or "".join(formats)
    scaler = gradscaler.Scaler(format if format in gradscaler.presets() else "recommended")
    notes = list(scaler.load_state_dict(saved, options.format, prefix=options.prefix))
    known = _checkpoints.known_fields(saved, format, options.format, options.prefix) | {"scale"}
    known |= {"steps_since_change"} if "good_steps" in known else set()
    metrics = scaler.metrics().items()
    return scaler, {name: value for name, value in metrics if _FIELDS_OF.get(name, name) in known}, notes


def draw(options: argparse.Namespace) -> int:
    """draws a history as a picture (-o FILE, needs matplotlib) or in the terminal"""
    if not options.output:
        print(_plot.sketch(_lines.read(options.file)))
        return 0
    figure = gradscaler.plot(options.file)
    if isinstance(figure, str):
        raise ValueError("-o needs matplotlib: pip install matplotlib")
    figure.savefig(options.output, dpi=120)
    return 0


def diagnose(options: argparse.Namespace) -> int:
    """finds problems of a run from its history or checkpoint, and says what to do. Exits with 0 if there are none,
    with 1 if there are, and with 2 if the file cannot be read"""
    try:
        if _lines.is_history(options.file):
            run = _lines.Run(options.file).read()
            found = run.diagnose(options.steps)
            if problem := run.problem():
                print(f"gradscaler: {shown(problem)}", file=sys.stderr)
        else:
            found = load_scaler(options)[0].diagnose(planned_steps=options.steps)
    except FAILURES as error:
        return failed(error, 2)
    if not found and not options.json:
        print("nothing was found")
    show(options, {}, found)
    return bool(found)


def as_csv(options: argparse.Namespace) -> int:
    """writes a history as a table of comma-separated values, for a spreadsheet"""
    names, rows = _lines.table(options.file)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(shown, names))
    for row in rows:
        values = [row.get(name) for name in names]
        writer.writerow("" if value is None else shown(value) for value in values)
    return 0


def watch(options: argparse.Namespace) -> int:
    """draws a history on one screen, again when it has new lines; waits for its file; Ctrl-C ends it"""
    follower, is_told = _lines.Follower(options.file), False
    while True:
        try:
            is_new = follower.read()
        except FileNotFoundError:
            if options.once:
                raise
            if not is_told:
                print(f"waiting for {shown(options.file)}", file=sys.stderr, flush=True)
            is_new, is_told = False, True
        if is_new:
            text = _plot.sketch(follower.columns, *terminal_size())
            print("\033[H\033[J" + text if sys.stdout.isatty() else text, flush=True)
        if options.once:
            follower.run.checked()
            return 0
        time.sleep(max(0.1, min(options.seconds, 3600)))


def terminal_size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size() if sys.stdout.isatty() else (80, 24)
    return max(20, columns - 8), max(4, min(16, rows - 5))


def show(options: argparse.Namespace, rows: dict[str, Any], notes: Any = ()) -> int:
    if options.json:
        print(as_text({**rows, "notes": [{"kind": note.kind.name, "message": str(note)} for note in notes]}))
        return 0
    table(rows)
    for note in notes:
        print(f"- {shown(note)}")
    return 0


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser("gradscaler", description=(__doc__ or "").replace("`", ""))
    main_parser.add_argument("--version", action="version", version=f"gradscaler {gradscaler.__version__}")
    commands = main_parser.add_subparsers(metavar="COMMAND")

    def command(name: str, run: Any, json: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        one.set_defaults(run=run)
        if json:
            one.add_argument("--json", action="store_true", help="as JSON")
        return one

    one = command("doctor", doctor)
    one.add_argument("--device", metavar="cuda:0", help="compare this device with the CPU")
    one.add_argument("--seconds", type=float, default=2.0, help="about as long takes each comparison; default: 2")
    one = command("presets", presets)
    one.add_argument("name", nargs="?", metavar="NAME")
    one.add_argument("other", nargs="?", metavar="OTHER", help="show only the differences from this preset")
    one.add_argument("--from", dest="settings", metavar="FILE", help="show the rules of a framework's settings in JSON")
    one.add_argument("--prefix", help="the keys that the settings are under, joined by dots")
    for name, run in (("inspect", inspect), ("diagnose", diagnose)):
        one = command(name, run)
        one.add_argument("file", metavar="CHECKPOINT" if name == "inspect" else "RUN.jsonl|CHECKPOINT")
        one.add_argument("--format", help="the format of the checkpoint; default: found by its keys")
        one.add_argument("--prefix", help="the keys that the scaler is under, joined by dots")
        if name == "inspect":
            one.add_argument("--as", dest="to", metavar="FORMAT", help="also list what this format cannot hold")
        else:
            one.add_argument("--steps", type=int, default=0, help="steps of the whole run, if known")
    one = command("csv", as_csv, json=False)
    one.add_argument("file", metavar="RUN.jsonl")
    one = command("plot", draw, json=False)
    one.add_argument("file", metavar="RUN.jsonl")
    one.add_argument("-o", dest="output", metavar="FILE")
    one = command("watch", watch, json=False)
    one.add_argument("file", metavar="RUN.jsonl")
    one.add_argument("--seconds", type=float, default=2.0)
    one.add_argument("--once", action="store_true", help="draw it once")
    main_parser.set_defaults(run=doctor, device=None, json=False)
    return main_parser


FAILURES = (ValueError, TypeError, KeyError, OSError)


def failed(error: BaseException, status: int) -> int:
    """Prints an error as one sentence. Returns the exit status."""
    text = error.args[0] if isinstance(error, KeyError) else error
    print(f"gradscaler: {shown(text)}", file=sys.stderr)
    return status


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. If it fails, prints one sentence and returns 1."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except FAILURES as error:
        return failed(error, 1)


if __name__ == "__main__":
    sys.exit(main())
