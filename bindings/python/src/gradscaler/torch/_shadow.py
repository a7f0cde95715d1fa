# SPDX-License-Identifier: MIT
"""Gradients that are divided and checked while backward() still runs, when the cache still has them.

While `with scaler.shadow(optimizer)` is open, hooks divide each gradient as soon as it is whole or, with
DistributedDataParallel, each bucket as soon as the ranks have reduced it, so that they agree on its report, too.
unscale_ then merges the reports in the order of the parameters, which gives the bits of one call
(core/numerics.md), and divides what backward() did not reach.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState
from torch.utils.weak import WeakIdKeyDictionary

from .. import _gradscaler as c
from .. import _scaler as base
from .._scaler import Policy, Report
from .._structs import Merge, Want
from .._structs import Report as Place
from . import _place
from ._grads import Lot
from ._place import CPU, PLAIN, SIZE, merged, on

if TYPE_CHECKING:
    from ._scaler import GradScaler

_NORM, _PARTS = int(Want.NORM), int(Merge.PARTS)
_COUNTS, _FIRST = (Place.nan_count.offset // 8, Place.inf_count.offset // 8), Place.first_tensor.offset // 8
_shadows: WeakIdKeyDictionary = WeakIdKeyDictionary()  # scaler: {optimizer: Shadow}
_pending: WeakIdKeyDictionary = WeakIdKeyDictionary()  # scaler: the Shadows with gradients that unscale_ has not seen
_buckets: WeakIdKeyDictionary = (
    WeakIdKeyDictionary()
)  # a DistributedDataParallel model: ({id of parameter: Record}, comm_hook)


class Room:
    """Rows for the reports of gradients on a device, in one buffer, so that a hook launches no more than its call."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.rows = torch.empty((count, SIZE), dtype=torch.uint8, device=device)
        self.device, self.taken, self.stream = device, 0, _place.stream(_place.ordinal(device))

    def take(self, count: int) -> torch.Tensor:
        self.taken += count
        return self.rows[self.taken - count : self.taken]

    def used_now(self, *others: torch.Tensor) -> None:
        """Of its memory, and that of tensors made when it was: another stream may use it."""
        if _place.stream(_place.ordinal(self.device)) != self.stream:
            for tensor in (self.rows, *others):
                _place.keep(tensor, self.device)


class Record:
    """What the hooks of one optimizer know. It holds no parameter, so that they keep none alive."""

    def __init__(self) -> None:
        self.scaler: GradScaler | None = None  # while the shadow is open
        self.reports: dict[
            int, Any
        ] = {}  # of the gradients that are divided, by id of the parameter; of a device: there
        self.marks: dict[int, tuple[weakref.ref, int, int]] = {}  # what these gradients were then, by the same ids
        self.factors: dict[torch.device, Any] = {}  # what they were divided by
        self.rooms: dict[torch.device, list[Room]] = {}
        self.devices: set[torch.device] = set()  # of the parameters, but the host
        self.count = 0  # of the parameters
        self.reduced: set[int] = set()  # ids of the parameters whose gradients come in buckets
        self.on_host: Any = None  # of these the one that is read most
        self.threads = False
        self.options: dict[str, Any] = {}
        self.refused: torch.dtype | None = None
        self.whose: tuple[weakref.ref, weakref.ref] | None = None

    def open(self, scaler: GradScaler, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> None:
        self.scaler, self.reports, self.marks, self.factors, self.on_host = scaler, {}, {}, {}, None
        self.rooms, self.count = {}, len(parameters)
        self.devices = {parameter.device for parameter in parameters if not _place.on_host(parameter)}
        self.whose = weakref.ref(scaler), weakref.ref(optimizer)
        self.threads = torch.get_num_threads() > 1
        self.options = {"policy": scaler._policy, "want": scaler._want | _NORM}
        self.refused = None if scaler._allow_fp16 else torch.float16
        self.prepare()

    def prepare(self) -> None:
        """Factors and room where the gradients will be, before backward() begins: its hooks run on any streams."""
        if self.scaler._scale is not None and not self.reports:
            for device in self.devices:
                self.factors.pop(device, None)
                if self.factor(device) is not None and device not in self.rooms:
                    self.rooms[device] = [Room(device, self.count)]

    def room(self, device: torch.device, count: int) -> Room:
        rooms = self.rooms.setdefault(device, [])
        if not rooms or rooms[-1].taken + count > len(rooms[-1].rows):  # gradients came again after zero_grad()
            rooms.append(Room(device, max(count, self.count)))
        return rooms[-1]

    def factor(self, device: torch.device) -> Any:
        """None where unscale_ will say why there is none, or would have to wait for it."""
        found = self.factors.get(device)
        if found is None and self.scaler._scale is not None:
            self.scaler._check_scale_growth_tracker("shadow")
            if device.type == self.scaler._scale.device.type:
                found = self.factors[device] = self.scaler._factor(device)
                self.on_host = self.factors.get(CPU)
        return found

    def divide(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Divides gradients of one device. Those it leaves alone unscale_ divides, or says why not."""
        device = gradients[0].device
        factor = self.factor(device)
        if factor is None or any(gradient.dtype is self.refused for gradient in gradients):
            return
        with contextlib.suppress(c.Error):  # then nothing is written
            count, policy, want = len(gradients), self.options["policy"], self.options["want"]
            lot = Lot(device, list(gradients), range(count))
            if _place.ordinal(device) is None:
                lot.run(True, factor, policy, want)
                rows: Iterable = [Place.from_buffer_copy(lot.each, i * SIZE) for i in range(count)]
            else:
                room = self.room(device, count)
                room.used_now(factor)
                block = room.take(count)
                lot.run(True, factor, policy, want, block)
                rows = block.unbind()
            self.reports |= {id(parameter): row for parameter, row in zip(parameters, rows, strict=True)}

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether its gradient is divided: one that is gone, by zero_grad(), is forgotten."""
        if parameter.grad is None:
            self.reports.pop(id(parameter), None)
        return id(parameter) in self.reports

    def mark(self, key: int, gradient: torch.Tensor) -> None:
        self.marks[key] = weakref.ref(gradient), gradient._version, gradient.data_ptr()

    def is_of(self, key: int, gradient: torch.Tensor | None) -> bool:
        """Whether this is the tensor that was divided, whatever was written into it since."""
        return gradient is not None and key in self.marks and self.marks[key][0]() is gradient

    def changed(self, parameters: Iterable[torch.Tensor]) -> set[int]:
        """The ids of those into whose divided gradients something was written since, so that the reports are old.

        A tensor in the place of a divided one is refused: whether it has the scale still, none can tell.
        """
        found = set()
        for parameter in parameters:
            key = id(parameter)
            if key in self.reports:
                gradient = _local(parameter.grad)
                if not self.is_of(key, gradient):
                    raise RuntimeError(
                        f"the gradient of {self.name(parameter)} is another tensor than the one that shadow() has "
                        "divided by the scale, so whether this one is divided cannot be told: write into a gradient in "
                        "place, p.grad.copy_(...), where it has no scale any more."
                    )
                if self.marks[key][1:] != (gradient._version, gradient.data_ptr()):
                    found.add(key)
        return found

    def name(self, parameter: torch.Tensor) -> str:
        scaler, optimizer = (reference() for reference in self.whose)
        if scaler is not None and optimizer is not None:
            there = (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
            for each, name in zip(there, scaler._names_of(optimizer), strict=True):
                if each is parameter:
                    return name
        return f"a parameter of shape {tuple(parameter.shape)}"


def _local(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """The memory of this rank's part of a gradient; None where it is not that of a plain tensor, or not its value."""
    if type(gradient) in PLAIN:
        return gradient
    local = getattr(gradient, "_local_tensor", None)
    if type(local) not in PLAIN or any(placement.is_partial() for placement in gradient.placements):
        return None
    return local


class Shadow:
    """The hooks on the parameters of one optimizer; closed ones cost less than 1 us each."""

    def __init__(self) -> None:
        self.record = Record()
        self.hooked: dict[int, Any] = {}  # by id of the parameter, which its node keeps alive
        self.handles: list[Any] = []
        weakref.finalize(self, _remove, self.handles)

    def hook(self, parameter: torch.Tensor) -> None:
        record, own, key, place, unscale = self.record, weakref.ref(parameter), id(parameter), Place(), c.gsc_unscale

        def before(_: Any) -> None:
            if key in record.reports and record.has(own()):
                raise RuntimeError(
                    f"backward() has come again to {record.name(own())}, whose gradient shadow() has divided by the "
                    "scale: open `with scaler.shadow(optimizer)` only for the last backward() before step(), or let go "
                    "of the gradients first, by zero_grad()."
                )

        def after(parameter: torch.Tensor) -> None:  # runs for each gradient, so it is short
            if key in record.reports:  # FSDP2 calls only this one
                if record.is_of(key, _local(parameter.grad)):
                    before(None)
                del record.reports[key]
            if record.scaler is None or key in record.reduced:
                return
            gradient = parameter.grad
            if type(gradient) is not torch.Tensor:
                gradient = _local(gradient)
                if gradient is None:
                    return
            if not _place.on_host(gradient):
                record.divide((parameter,), (gradient,))
                return record.mark(key, gradient)
            factor, both = record.on_host or record.factor(CPU), [gradient]
            if factor is None or gradient.dtype is record.refused:
                return
            try:
                at = on(CPU, gradient.numel() * gradient.itemsize) if record.threads else None
                unscale(at, factor, (both, both), record.options, place)
            except c.Error:  # nothing is written, and unscale_ says why
                return
            record.reports[key] = place
            record.mark(key, gradient)

        node = torch.autograd.graph.get_gradient_edge(parameter).node
        self.hooked[key] = node
        self.handles.append(node.register_prehook(before))
        self.handles.append(parameter.register_post_accumulate_grad_hook(after))


def _remove(handles: Iterable[Any]) -> None:
    for handle in handles:
        handle.remove()


class Block(contextlib.AbstractContextManager[None]):
    """GradScaler.shadow, which see. It may be opened for one step after another."""

    def __init__(
        self,
        scaler: GradScaler,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        comm_hook: tuple[Any, Callable] | None,
    ) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(f"shadow() takes an optimizer, whose gradients it divides, not {type(optimizer).__name__}")
        if not isinstance(model, torch.nn.Module | None):
            raise TypeError(
                f"model is of type {type(model).__name__}: expected a torch.nn.Module, the model in "
                "DistributedDataParallel, or None"
            )
        self.arguments = scaler, optimizer, model, comm_hook

    def __enter__(self) -> None:
        if self.arguments[0].is_enabled():
            _open(*self.arguments)

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        scaler, optimizer, _, _ = self.arguments
        if scaler.is_enabled():
            _close(scaler, _shadows[scaler][optimizer], optimizer if kind is None else None)


def _open(
    scaler: GradScaler,
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None,
    comm_hook: tuple[Any, Callable] | None,
) -> None:
    state = scaler._per_optimizer_states.get(id(optimizer))
    stage = state["stage"] if state else OptState.READY
    if stage is not OptState.READY:
        after = "unscale_()" if stage is OptState.UNSCALED else "step()"
        raise RuntimeError(f"shadow() is being called after {after}: open it for the backward() before that.")
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    own = _shadows.setdefault(scaler, WeakIdKeyDictionary()).setdefault(optimizer, Shadow())
    record = own.record
    if record.scaler is not None:
        raise RuntimeError("shadow() is open for this optimizer already.")
    if record.reports and any(record.has(parameter) for parameter in parameters):
        raise RuntimeError(
            "shadow() has been used on this optimizer since its last step(): open it only for the last backward() "
            "before step(). The gradients are as they were; zero_grad() drops them."
        )
    record.reduced = _reduced(model, comm_hook, parameters, record)
    for parameter in parameters:
        if id(parameter) not in own.hooked:
            own.hook(parameter)
    record.open(scaler, optimizer, parameters)


def _close(scaler: GradScaler, own: Shadow, reduced: torch.optim.Optimizer | None) -> None:
    """`reduced`: the optimizer, if buckets of its gradients have been written back by now."""
    record = own.record
    record.scaler = None
    for group in reduced.param_groups if reduced is not None and record.reduced else ():
        for parameter in group["params"]:
            gradient = _local(parameter.grad)
            if gradient is not None and id(parameter) in record.reduced:
                record.mark(id(parameter), gradient)
    if record.reports and own not in _pending.setdefault(scaler, []):
        _pending[scaler].append(own)


def _reduced(
    model: torch.nn.Module | None,
    comm_hook: tuple[Any, Callable] | None,
    parameters: Sequence[torch.Tensor],
    record: Record,
) -> set[int]:
    """The ids of the parameters whose gradients come in buckets of DistributedDataParallel."""
    ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not ranks or torch.distributed.get_world_size() == 1:
        return set()
    if model is None and any(type(parameter) in PLAIN for parameter in parameters):
        raise ValueError(
            "model is missing: where there are several ranks, pass shadow(optimizer, model), with the "
            "DistributedDataParallel model, whose gradients are to be divided after they are reduced."
        )
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return set()
    records, registered = _buckets.get(model, (None, None))
    if records is not None and comm_hook not in (None, registered):
        raise ValueError("comm_hook is another than that of the first shadow() with this model, which keeps it.")
    if records is None:
        if model._comm_hooks:
            raise ValueError(
                "the model has a communication hook, and DistributedDataParallel takes one: do not register yours, but "
                "pass comm_hook=(state, hook) to shadow(), which calls it first."
            )
        records = {}
        state, reduce = comm_hook or (model.process_group, _allreduce())
        model.register_comm_hook((records, state, reduce), _reduce_and_take)
        _buckets[model] = records, comm_hook
    ignored = set(model.parameters_to_ignore)
    reduced = {id(parameter) for name, parameter in model.module.named_parameters() if name not in ignored}
    records |= {id(parameter): record for parameter in parameters if id(parameter) in reduced}
    return reduced


def _allreduce() -> Callable:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    return allreduce_hook


def _reduce_and_take(state, bucket):  # DistributedDataParallel refuses annotations that are texts
    """A communication hook: what the ranks have reduced is the same on all of them, and so is what is found in it."""
    records, inner, reduce = state
    parameters, buffer, views = bucket.parameters(), bucket.buffer(), bucket.gradients()
    places = [(view.storage_offset() - buffer.storage_offset(), view.numel()) for view in views]

    def take(future: torch.futures.Future) -> torch.Tensor:
        value = future.value()
        value = value[0] if isinstance(value, list | tuple) else value
        ours: dict[int, tuple[list, list]] = {}
        for parameter, (start, count) in zip(parameters, places, strict=True):
            record = records.get(id(parameter))
            if record is not None and record.scaler is not None:
                group = ours.setdefault(id(record), (record, [], []))
                group[1].append(parameter)
                group[2].append(value[start : start + count])
        for record, owners, gradients in ours.values():
            record.divide(owners, gradients)
        return value

    return reduce(inner, bucket).then(take)


def prepare(scaler: GradScaler) -> None:
    """For backward(), now that there is a scale."""
    for own in _shadows.get(scaler, {}).values():
        if own.record.scaler is not None:
            own.record.prepare()


def divided(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> Record | None:
    """The record of gradients that unscale_ finds divided; None if there are none.

    Found by the parameters: shadow() may have been given a wrapper of the optimizer, as accelerate has them.
    """
    for own in _pending.get(scaler, ()):
        reports = own.record.reports
        if reports and any(id(p) in reports for group in optimizer.param_groups for p in group["params"]):
            return own.record
    return None


def let_go(scaler: GradScaler, record: Record, optimizer: torch.optim.Optimizer) -> None:
    """Of the reports that unscale_ has read, and those of parameters that a bucket had and nothing used."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            record.reports.pop(id(parameter), None)
    record.rooms = {}
    _pending[scaler] = [own for own in _pending[scaler] if own.record.reports]


def finish(
    record: Record,
    parameters: Sequence[torch.Tensor],
    changed: set[int],
    lot: Lot,
    factor: Any,
    policy: Policy,
    want: int,
) -> None:
    """In place of lot.run: divides those of its gradients that are left, and merges all reports in their order.

    `parameters` are those that have gradients; those in `changed` are divided, and checked anew.
    """
    on_device = _place.ordinal(lot.device) is not None
    want, keys = want | _NORM, [id(parameters[i]) for i in lot.indices]
    found = [record.reports.get(key) for key in keys]
    left = [position for position, report in enumerate(found) if report is None]
    anew = [position for position, key in enumerate(keys) if key in changed]
    for positions, by in (left, record.factors.get(lot.device, factor)), (anew, None):
        if positions:
            rest = Lot(lot.device, [lot.tensors[position] for position in positions], range(len(positions)))
            rest.run(by is not None, by, policy, want)
            for position, row in zip(positions, rest.reports(lot.device), strict=True):
                found[position] = row if on_device else Place.from_buffer_copy(bytes(row.numpy()))
    if on_device:
        for room in record.rooms.get(lot.device, ()):
            room.used_now()
        rows = torch.stack(found)
        words = rows.view(torch.int64)
        bad = sum(words[:, count] for count in _COUNTS) > 0
        words[:, _FIRST] = torch.arange(len(found), device=lot.device) * bad
        lot.report, lot.each = merged(rows, policy), rows.view(-1)
        return
    lot.report, lot.each = Report.__new__(Report), base._borrow(len(found))
    for position, report in enumerate(found):
        if report.nan_count + report.inf_count:
            report.first_tensor = position
        lot.each[position * SIZE : (position + 1) * SIZE] = bytes(report)
    c.gsc_report_merge(None, memoryview(lot.each)[: len(found) * SIZE], _PARTS, policy, lot.report)
