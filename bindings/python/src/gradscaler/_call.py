# SPDX-License-Identifier: MIT
"""Makes a call on arrays of the host and of several CUDA devices, all in parallel, and returns one report."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _cuda, _structs
from . import _gradscaler as c
from ._arrays import _Lists, _loss
from ._report import _SIZE, LateReport, Report, _take_buffer
from ._structs import Factor, Loss, MergeKind, ReportKind, State

Part = tuple[Sequence[int] | None, Any, bytes, bytes]  # positions, merged report, report of each array, histogram
Pin = Callable[[_cuda.Device], Any]


def run(
    context: Any, function: str, lists: _Lists, factor: Factor | None, pin: Pin | None, options: dict[str, Any]
) -> Report:
    """Makes one C call for the host's arrays, and one for each device.

    `options` are the policy and the clamp, and the caller's want, histogram, per_tensor and loss. `pin` returns memory
    with the state that has the factor: a CUDA graph uses the factor in force at each replay.
    """
    want, per_tensor, loss = options["want"], options["per_tensor"], options.pop("loss")
    if not isinstance(want, int) or not 0 <= want < 2**32:
        raise TypeError(f"want={want!r}: expected a union of gradscaler.Want")
    call, writes, report = getattr(c, function), function != "gsc_measure", Report.__new__(Report)
    report.names, report.scale = lists.names, factor.scale if factor else 1.0
    report.grads = lists.out if writes else lists.grads
    if loss is not None:
        options["loss"] = _loss(loss)
    if options.pop("histogram"):
        options["histogram"] = report._words = bytearray(8 * c.GSC_HISTOGRAM_LENGTH)
    count = len(lists.ins)
    options["per_tensor"] = bytearray(max(count, 1) * _SIZE) if per_tensor else _take_buffer(count)
    groups = lists.groups or lists.on_host(writes) or lists.grouped(writes)
    if len(groups) == 1 and not isinstance(groups[0][1], _cuda.Lists):
        try:
            call(context, factor, groups[0][1], options, report)
            return report._keep_per_tensor(options["per_tensor"], per_tensor)
        except c.Error as error:
            late = error.field == "device" and lists.groups is None  # some arrays tell their device only now
            if not late or all(_cuda.device_of(array) is None for array in lists.ins):
                lists.explain(error)
                raise
        groups = lists.grouped(writes)
    if len(groups) > 1 and function == "gsc_unscale_accumulate":
        raise ValueError("unscale_accumulate, which adds all or nothing, takes arrays of one device")
    return _on_devices(context, call, lists, groups, factor, pin, options, per_tensor, report)


def copy_on_host(context: Any, state: State, lists: _Lists) -> bool:
    """Copies arrays unless the state skips its step. Returns False if some are on a device; then copies none."""
    groups = lists.groups or lists.on_host(True) or lists.grouped(True)
    if len(groups) > 1 or isinstance(groups[0][1], _cuda.Lists):
        return False
    try:
        c.gsc_copy_unless_skipped(context, state, groups[0][1])
    except c.Error as error:
        if error.field == "device" and any(_cuda.device_of(array) is not None for array in lists.ins):
            return False
        lists.explain(error)
        raise
    return True


def _on_devices(
    context: Any,
    call: Callable,
    lists: _Lists,
    groups: list[tuple[Sequence[int] | None, Any]],
    factor: Factor | None,
    pin: Pin | None,
    options: dict[str, Any],
    per_tensor: bool,
    report: Report,
) -> Report:
    """Fills in the report, or returns a LateReport, which waits for the devices when it is read.

    All arrays of CUDA devices are checked before the first device writes.
    """
    indices, parts, calls, names, in_force = None, [], [], report.names, factor
    loss = options.pop("loss", None)
    at = None if loss is None else _cuda.device_of(loss)
    ordinals = [getattr(group, "ordinal", None) for _, group in groups]
    if at is not None and at not in ordinals:
        raise ValueError(f"loss is on cuda:{at}, where no gradient is: pass it on a device of the gradients")

    def complete() -> tuple[Report, bool]:
        merged, captured = Report(), calls[0][1].captured  # not `report`, which would refer to itself
        merged.names, merged.scale = names, in_force.scale if in_force else 1.0
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
                    call(context, factor, group, own, part)
                    parts.append((indices, part, own["per_tensor"], own.get("histogram", b"")))
            for _, on_device in calls:
                memory = (pin(on_device.device), State.factor.offset) if on_device.captured and pin else None
                in_force = Factor.from_buffer(*memory) if memory else factor
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
