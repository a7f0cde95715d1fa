# SPDX-License-Identifier: MIT
"""The order in which the backward pass makes gradients: the first bad gradient in it is the cause of an overflow."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import Any


def backward_order(roots: Iterable[Any]) -> list[int]:
    """Returns the ids of the parameters in the order in which a backward pass from these nodes makes their gradients.

    A shared parameter is there twice: at the first and at the last addend of its gradient. This follows torch's engine:
    of the nodes that have all their inputs, the one that forward made last runs first. If several have the same number,
    such as the parameters of one compiled graph, the last one runs first. After a backward pass the graph can still be
    walked: torch frees the saved tensors, not the edges.
    """
    finished = list(roots)
    missing, unseen = Counter(finished), list(dict.fromkeys(finished))
    seen = set(unseen)
    while unseen:
        for node in _following(unseen.pop()):
            missing[node] += 1
            if node not in seen:
                seen.add(node)
                unseen.append(node)
    order, begun, ready, count = [], set(), [], 0
    while True:
        for node in finished:
            missing[node] -= 1
            if type(node).__name__ == "AccumulateGrad" and (not missing[node] or node not in begun):
                begun.add(node)
                order.append(id(node.variable))
            elif not missing[node]:
                count += 1
                heapq.heappush(ready, (-node._sequence_nr(), count, node))
        if not ready:
            return order
        finished = _following(heapq.heappop(ready)[-1])[::-1]


def _following(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def appended(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Returns the order of two backward passes, one after the other: a parameter counts at its last gradient."""
    again = set(after)
    return [*(each for each in before if each not in again), *after]


def settled(order: Sequence[int], bad: Set[int]) -> list[int]:
    """Returns the order with each parameter once, where the last addend of its gradient was made.

    If a shared parameter is bad there, but the one before it is finite, no overflow has come down to it: then it counts
    at the first addend.
    """
    last = {each: i for i, each in enumerate(order)}
    at_last = sorted(last, key=last.__getitem__)
    early = {each for before, each in itertools.pairwise(at_last) if each in bad and before not in bad}
    return list(dict.fromkeys(each for i, each in enumerate(order) if i == last[each] or each in early))


def positions(parameters: Sequence[int], order: Iterable[int]) -> list[int]:
    """Returns the positions of the parameters in this order; both are ids.

    The order lacks parameters in reentrant checkpoints. They follow the known parameter that is registered after them.
    """
    rank, places, last = {each: i for i, each in enumerate(order)}, {}, -1
    for i in reversed(range(len(parameters))):
        places[i] = last = rank.get(parameters[i], last)
    return sorted(places, key=places.__getitem__)


class Orders:
    """The orders of earlier backward passes, for a loss that is gone when its overflow is read."""

    def __init__(self) -> None:
        self._learned: list[int] = []
        self.is_learning, self.is_stale = False, True

    def begin_step(self) -> None:
        self.is_learning = self.is_stale or not self._learned
        self.is_stale = False

    def learn(self, root: Any) -> None:
        """Walks the graph of a loss in the first step and in the first step after an overflow."""
        if root is not None:
            order = backward_order([root])
            self.is_learning = not set(order) <= set(self._learned)  # further micro-batches add nothing
            self._learned = appended(self._learned, order)

    def best(self, known: list[int], bad: Set[int]) -> list[int]:
        """Returns the order that has all bad parameters: `known`, or else the learned one."""
        return self._learned if bad <= set(self._learned) and not bad <= set(known) else known
