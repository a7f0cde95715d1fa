# SPDX-License-Identifier: MIT
"""What a look at the gradients of one optimizer found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._report import Report
from . import _place
from ._grads import Lot, Sorted
from ._names import Owners, at


class FoundInf(dict[torch.device, torch.Tensor]):
    """found_inf by device, as in torch's class: one tensor is kept, and any other device gets a copy of it."""

    def __missing__(self, device: torch.device) -> torch.Tensor:
        for tensor in self.values():
            return tensor.to(device)
        raise KeyError(device)


_FOUND_INF = tuple(torch.full((), value, dtype=torch.float32, device=_place.CPU) for value in (0.0, 1.0))


class Found:
    """A report, on a device its bytes, and what reading it needs."""

    verdict: FoundInf  # which others may have written since
    optimizer: Callable[[], Any]
    norm: torch.Tensor | None = None  # before clipping
    clip: Any = None  # the factor of max_norm, if the gradients were multiplied by it
    scale: Any = 1.0  # on a device a tensor
    captured = False  # in a graph, each replay of which finds anew
    alike = True  # whether other ranks have parameters of the same names
    seen: Report | None = None
    owners: Owners = []
    # Shares of the norm's square: of each gradient, and what is usual.
    shares: tuple[torch.Tensor, torch.Tensor] | None = None

    def __init__(self, report: Any, lots: list[Lot], rest: Sorted | None = None) -> None:
        self.report, self.lots, self.rest = report, lots, rest
        if isinstance(report, torch.Tensor):
            self.found_inf = report.view(torch.float32)[0]
        else:
            self.found_inf = _FOUND_INF[report.overflow].clone()
        self._version = None if self.found_inf.is_inference() else self.found_inf._version

    def rules(self, found_inf: list[torch.Tensor]) -> bool:
        """Whether this is found_inf, and nobody has written it since."""
        if len(found_inf) != 1 or found_inf[0] is not self.found_inf or self._version is None:
            return False
        return self.found_inf._version == self._version

    def read(self, names: Callable[[], list[str]]) -> Report:
        """The report with names, for which a device is waited for."""
        if self.seen is None or self.captured:
            report = self.report
            if isinstance(report, torch.Tensor):
                report = Report.from_bytes(_place.data(report))
            if report.overflow:
                known = dict(count for lot in self.lots for count in lot.counts())
                called = names()
                report._bad = {at(called, i): count for i, count in known.items() if count}
                report.names = called if self.alike or report.bad else ()
            report.scale = float(self.scale)
            self.seen = report
        return self.seen

    def release(self) -> None:
        """Lets go of the gradients, which live as long as their parameters have them."""
        self.rest = None
        for lot in self.lots:
            lot.release(self.seen is not None)
