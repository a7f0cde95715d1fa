# SPDX-License-Identifier: MIT
"""Runs one call on arrays of the host and of several CUDA devices, all in parallel, and merges their reports."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import _cuda, _structs
from . import _gradscaler as c
from ._arrays import _Lists
from ._report import _SIZE, LateReport, Report
from ._structs import Factor, Loss, MergeKind, ReportKind

if TYPE_CHECKING:
    from ._scaler import Scaler

Part = tuple[Sequence[int] | None, Any, bytes, bytes]  # positions, merged report, report of each array, histogram


def run(
    scaler: Scaler,
    function: str,
    lists: _Lists,
    factor: Factor | None,
    follows_scale: bool,
    options: Mapping[str, Any],
    per_tensor: bool,
    report: Report,
) -> Report:
    """Fills in the report, or returns a LateReport, which waits for the devices when it is read.

    All arrays of CUDA devices are checked before the first device writes.
    If `follows_scale`, a CUDA graph uses the factor in force at each replay.
    """
    groups, names, scale = lists.groups or lists.grouped(function != "gsc_measure"), report.names, report.scale
    if len(groups) > 1 and function == "gsc_unscale_accumulate":
        raise ValueError("unscale_accumulate, which adds all or nothing, takes arrays of one device")
    call, indices, parts, calls = getattr(c, function), None, [], []
    options = dict(options)
    loss = options.pop("loss", None)
    at = None if loss is None else _cuda.device_of(loss)
    ordinals = [getattr(group, "ordinal", None) for _, group in groups]
    if at is not None and at not in ordinals:
        raise ValueError(f"loss is on cuda:{at}, where no gradient is: pass it on a device of the gradients")

    def complete() -> tuple[Report, bool]:
        merged, captured = Report(), calls[0][1].captured  # not `report`, which would refer to itself
        merged.names, merged.scale = names, scaler.loss_scale if captured and follows_scale else scale
        _assemble(parts + _results(calls), options, merged)
        for _, on_device in calls:
            on_device.end()
        return merged._keep_per_tensor(options["per_tensor"], per_tensor, not captured), not captured

    try:
        if factor is not None:  # refuses a bad factor now; a device would do so only later
            c.gsc_measure(None, factor, [], None, _structs.Report())
        if loss is not None and at not in ordinals:
            at, loss = ordinals[0], _judged_on_host(loss)
        with contextlib.ExitStack() as exit_stack:
            for indices, group in groups:
                if isinstance(group, _cuda.Lists):
                    own = loss if at == group.ordinal else None
                    on_device = exit_stack.enter_context(_cuda.Call(call, group, options, own))
                    if on_device.captured and len(groups) > 1:
                        raise ValueError("a call that is captured in a graph takes arrays of one device")
                    on_device.reserve()
                    calls.append((indices, on_device))
            for indices, group in groups:
                if not isinstance(group, _cuda.Lists):  # the host's arrays, which are checked only now
                    own = options | {"per_tensor": bytearray(len(indices) * _SIZE)}
                    own |= {} if at is not None else {"loss": loss}
                    own |= {"histogram": bytearray(8 * c.GSC_HISTOGRAM_LENGTH)} if "histogram" in options else {}
                    part = _structs.Report()
                    call(scaler._context, factor, group, own, part)
                    parts.append((indices, part, own["per_tensor"], own.get("histogram", b"")))
            for _, on_device in calls:
                memory = scaler._pin(on_device.device) if on_device.captured and follows_scale else None
                on_device.enqueue(factor, memory)
            if all(on_device.one_stream for _, on_device in calls):
                exit_stack.pop_all()
                return LateReport(report, complete)
            parts += _results(calls)
    except c.Error as error:
        lists.explain(error, indices)
        raise
    _assemble(parts, options, report)
    return report._keep_per_tensor(options["per_tensor"], per_tensor)


def _judged_on_host(loss: Any) -> Loss:
    """Judges a loss in host memory."""
    report = Report()
    c.gsc_measure(None, None, [], {"loss": loss}, report)
    return report.loss


def _results(calls: list[tuple[Sequence[int] | None, _cuda.Call]]) -> list[Part]:
    """Waits for the devices and returns their results."""
    found = []
    for indices, on_device in calls:
        part, each, words = on_device.results()
        found.append((indices, part, bytes(each), bytes(words)))
    return found


def _assemble(parts: list[Part], options: Mapping[str, Any], report: Report) -> None:
    """Merges the parts in the order of the list, so that the report is bit-exact with a call on one device."""
    buffer, words = options["per_tensor"], [0] * c.GSC_HISTOGRAM_LENGTH
    for indices, part, each, counts in parts:
        if "histogram" in options:
            words = [a + b for a, b in zip(words, memoryview(counts).cast("q"), strict=True)]
        if indices is None:
            buffer[: len(each)] = each
            ctypes.memmove(ctypes.byref(report), ctypes.byref(part), _SIZE)
            continue
        for position, i in enumerate(indices):
            one = _structs.Report.from_buffer_copy(each, position * _SIZE)
            one.first_tensor = one.last_tensor = i if one.nan_count + one.inf_count else 0
            buffer[i * _SIZE : (i + 1) * _SIZE] = bytes(one)
    if parts[0][0] is not None:
        count = sum(len(indices) for indices, *_ in parts)
        each = bytearray(memoryview(buffer)[: count * _SIZE])
        _structs.Report.from_buffer(each).loss = max(part.loss for _, part, *_ in parts)
        c.gsc_report_merge(None, each, int(MergeKind.SHARDS), options.get("policy"), report)
        report.kind = ReportKind.TENSORS
    if "histogram" in options:
        options["histogram"][:] = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
