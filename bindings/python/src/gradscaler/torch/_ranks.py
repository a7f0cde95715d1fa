# SPDX-License-Identifier: MIT
"""Gradients that are spread over ranks: shards of DTensors, and agreement in process groups.

Ranks gather their reports and merge them in rank order, so the result is bit-exact on all ranks. This takes one
collective for each dimension of a mesh. A rank's report for one mesh also says whether any gradient of this rank
overflowed or failed, so that all ranks of several meshes come to the same verdict. It also has a digest of rules and
state: if two ranks differ, no rank steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .. import _gradscaler as c
from .._policy import Policy
from .._report import Report
from .._structs import Status
from . import _device
from ._device import OVERFLOW, SIZE, STATUS, flag, merged, nothing, words

# The advice of the rank that has gradients in float16, and of all others: no other error on gradients has this status.
IN_FP16 = Status.ERROR_DTYPE
FP16_ADVICE = (
    "is in float16: keep the parameters in float32 and run the model under torch.autocast, or pass allow_fp16=True to "
    "GradScaler, though in place most of what scaling saved is lost again."
)
_VERDICT = slice(0, STATUS + 1)
_OF = slice(Report.digest.offset // 4, Report.loss_rank_plus_1.offset // 4 + 1)
_LOSS = slice(Report.loss.offset // 4, Report.loss.offset // 4 + 1)


def possible() -> bool:
    """Returns whether there can be DTensors."""
    return "torch.distributed.tensor" in sys.modules and dist.is_available() and dist.is_initialized()


def own() -> int:
    """Returns the rank of this process, or 0 if it is alone."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def count() -> int:
    """Returns the number of ranks, or 1 if this process is alone."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_spread(kinds: Iterable[type]) -> bool:
    return any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in kinds)


def meshes(tensors: Iterable[Any]) -> list[Any]:
    """Returns the meshes of these tensors, in the order of the parameters, which is the same on all ranks."""
    kind = torch.distributed.tensor.DTensor
    return list(dict.fromkeys(tensor.device_mesh for tensor in tensors if isinstance(tensor, kind)))


def reach_all(group: Any, meshes: Iterable[Any]) -> bool:
    """Returns whether all ranks see each other's reports: there is one rank, or the group or a mesh has all."""
    size = count()
    return size == 1 or any(each.size() == size for each in (group, *meshes) if each is not None)


def part(grad: Any, name: str) -> tuple[torch.Tensor, bool]:
    """Returns this rank's shard of a DTensor, and whether it counts: only the first of several copies does."""
    if any(placement.is_partial() for placement in grad.placements):
        raise ValueError(
            f"the gradient of {name} is {grad.placements}: it is an addend on each rank; redistribute it to Shard or "
            "Replicate, which adds it up, before it is unscaled"
        )
    at = grad.device_mesh.get_coordinate()
    pairs = zip(at or (), grad.placements, strict=False)
    first = at is not None and all(c == 0 for c, placement in pairs if placement.is_replicate())
    with torch.no_grad():  # with gradients, to_local returns a new tensor
        return grad.to_local(), first


def groups(mesh: Any) -> Sequence[Any]:
    """Returns this rank's process group for each dimension of a mesh."""
    return mesh.get_all_groups() if mesh.get_coordinate() is not None else ()


def gathered(report: torch.Tensor, group: Any) -> torch.Tensor | None:
    """Returns the reports, as bytes, of all ranks of a group in rank order; None if the group has one rank."""
    size = dist.get_world_size(group)
    if size == 1:
        return None
    device = report.device
    kinds = [each.type for each in (group or dist.group.WORLD)._device_types]
    if device.type not in kinds:  # gradients are offloaded, but the group communicates on devices
        device = torch.device(kinds[0], torch.get_device_module(kinds[0]).current_device() if kinds[0] != "cpu" else 0)
    own = report.to(device)
    every = own.new_empty(size * own.numel())
    dist.all_gather_into_tensor(every, own, group=group)
    return every.to(report.device)


def all_agree(flag: bool, meshes: Iterable[Any]) -> bool:
    """Returns whether the flag is set on all ranks of the meshes."""
    own = torch.tensor([flag], dtype=torch.uint8, device=_device.CPU)
    for every in (gathered(own, group) for mesh in meshes for group in groups(mesh)):
        own.mul_(flag if every is None else every.amin())
    return bool(own)


def set_rank(report: torch.Tensor, policy: Policy | None, state: Any) -> None:
    """Sets the rank of a report, and its digest; an invalid state makes it the report of a failed rank."""
    where = _device.writing_failures(report.device)
    try:
        c.gsc_report_set_rank(where, report, policy, state, dist.get_rank(), report)
    except c.Error as error:
        if error.status not in (Status.ERROR_REPORT, Status.ERROR_STATE, Status.ERROR_VERSION):
            raise


def united(every: torch.Tensor, policy: Policy | None = None) -> torch.Tensor:
    """Merges reports. If states differ, returns a failed report, as a device does: other groups still have to merge."""
    return merged(every, policy, writes=Status.ERROR_MISMATCH)


def joined(report: torch.Tensor, group: Any, copies: bool = False) -> torch.Tensor:
    """Merges the reports of a group; with `copies` the ranks have the same gradients, and the first rank's count."""
    every = gathered(report, group)
    if every is None:
        return report
    whole = united(every)
    if not copies:
        return whole
    first = every[:SIZE].clone()  # the squares of copies count once
    for which in _VERDICT, _OF, _LOSS:
        words(first)[which] = words(whole)[which]
    return first


def refusal(report: Report) -> str | None:
    """Returns why no rank may step, for an error's message; None if no rank failed."""
    rank = f"rank {report.status_rank_plus_1 - 1}" if report.status_rank_plus_1 else "a rank"
    if report.status == Status.OK:
        return None
    if report.status == IN_FP16:
        return f"Attempting to unscale FP16 gradients. A gradient of {rank} {FP16_ADVICE}"
    if report.status == Status.ERROR_MISMATCH:
        why = "has another policy or state than the ranks before it: load the same checkpoint on all ranks"
    else:
        why = f"could not unscale its gradients ({c.gsc_status_string(report.status)}); its own message says more"
    return f"{rank} {why}"


def agreed(
    parts: dict[Any, torch.Tensor],
    meshes: Sequence[Any],
    group: Any,
    sharded: bool,
    policy: Policy,
    state: Any,
    home: torch.device,
    losses: Sequence[torch.Tensor] = (),
) -> torch.Tensor:
    """Returns the report of all ranks. `parts` are this rank's reports by (mesh or None, whether they count).

    `losses` has the report of this rank's losses, if it was made.
    """
    local = torch.stack(list(parts.values())) if parts else torch.zeros((1, SIZE), dtype=torch.uint8, device=home)
    overflow, status = (words(local)[:, OVERFLOW] != 0).any(), words(local)[:, STATUS].amin()

    def own(mesh: Any) -> torch.Tensor:
        report = parts.get((mesh, True))
        report = nothing(home) if report is None else report.clone()
        flag(report, overflow, status)
        for each in losses:
            words(report)[_LOSS] = words(each[0])[_LOSS]
        set_rank(report, policy, state)
        return report

    reports = [own(None) if group is None else joined(own(None), group, copies=not sharded)]
    for mesh in meshes:
        report = own(mesh)
        for each in groups(mesh):
            report = joined(report, each)
        reports.append(report)
    return united(torch.cat(reports), policy)
