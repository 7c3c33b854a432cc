"""Restores what an interrupted loop changes in its stage.

After a loop has been left early, counters and cached features are in the state of the middle of the
loop, so that the next run would take other steps from the cache.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

MOST_CONTAINERS = 50_000
LARGEST_CONTAINER = 4096  # larger ones, such as vocabularies, are not examined
NUMBERS = (bool, int, float, complex, str, bytes)
OF_MODULES = frozenset(vars(torch.nn.Module())) - {"training"}
MISSING = object()

Place = tuple[int, Any]  # id of a container, and a key of it; the key of a list is None


class LoopState:
    """Restores the values that each run of a loop changes in a stage, after each run.

    Values are attributes, and items of dictionaries and lists, of the objects below the roots. A
    value is restored if two runs in a row have changed it, or if one run has created an object that
    the next run has changed. Objects that only the first run creates, such as a table of
    frequencies, stay. Contents of tensors are not restored.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self.roots = list(roots)
        self.before = _Snapshot(self.roots)
        self.changed: dict[Place, Any] = {}
        self.made: dict[int, tuple[Place, Any]] = {}
        """Containers that a run has made: the place that it put them into, and what was there."""
        self.kept: dict[Place, Any] = {}

    def run_ended(self) -> None:
        """Put back what has changed in two runs; called after each of them."""
        now = _Snapshot(self.roots)
        before, holders = self.before.values, self.before.containers
        changed: dict[Place, Any] = {}
        for place in {**before, **now.values}:
            was = before.get(place, MISSING)
            if place[0] not in holders or same(was, now.values.get(place, MISSING)):
                continue
            changed[place] = was
            if place[0] in self.made:
                self.kept.setdefault(*self.made[place[0]])
            elif place in self.changed:
                self.kept.setdefault(place, self.changed[place])
        for id_ in now.containers:
            if id_ not in holders:
                self._note_made(id_, now, changed)
        self.changed = changed
        for (id_, key), value in self.kept.items():
            # A run can replace an object that it has changed before.
            container = now.containers.get(id_, self.before.containers.get(id_))
            if container is not None:
                with contextlib.suppress(Exception):  # the container does not allow the change
                    _put(container, key, value)
        self.before = _Snapshot(self.roots)
        # A container that no longer exists can have the same id as a later one.
        holders = self.before.containers
        self.made = {id_: made for id_, made in self.made.items() if id_ in holders}
        self.kept = {place: value for place, value in self.kept.items() if place[0] in holders}

    def _note_made(self, id_: int, now: _Snapshot, changed: dict[Place, Any]) -> None:
        """Find the place in a container of the last run through which a new one is reached."""
        place = now.holder[id_]
        while place is not None and place[0] not in self.before.containers:
            place = now.holder[place[0]]
        if place is None:
            return
        if place[0] in self.made:
            self.made[id_] = self.made[place[0]]
        elif place in changed:
            self.made[id_] = place, changed[place]


class _Snapshot:
    """The values of all containers below some roots: attributes of objects, dicts, and lists."""

    def __init__(self, roots: list[Any]) -> None:
        self.containers: dict[int, Any] = {}
        self.holder: dict[int, Place | None] = {}
        self.values: dict[Place, Any] = {}
        queue: collections.deque[tuple[Any, Place | None]] = collections.deque(
            (root, None) for root in roots
        )
        while queue and len(self.containers) < MOST_CONTAINERS:
            value, place = queue.popleft()
            if issubclass(type(value), tuple):
                queue.extend((item, place) for item in value)
                continue
            try:
                container = _container_of(value)
                if container is None or id(container) in self.containers:
                    continue
                items = list(_items_of(container, value))
            except Exception:  # a proxy without an object, or a mapping that refuses to be read
                continue
            self.containers[id(container)] = container
            self.holder[id(container)] = place
            for key, item in items:
                here = id(container), key
                self.values[here] = item
                queue.append((item, here))


def _container_of(value: Any) -> Any:
    """The dictionary or list with the values of an object; None if nothing is put back in it."""
    if isinstance(value, (dict, list, collections.deque)):
        return value if len(value) <= LARGEST_CONTAINER else None
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is not dict or isinstance(value, (type, types.ModuleType)):
        return None
    if isinstance(value, (torch.Tensor, types.FunctionType)):
        return None
    if isinstance(value, (torch.nn.Module, types.SimpleNamespace)):
        return attributes
    package = str(type(value).__module__).partition(".")[0]
    if package in ("torch", "stagespan") or (
        package in sys.stdlib_module_names and package != "__main__"
    ):
        return None  # locks, queues, what torch keeps for itself
    return attributes


def _items_of(container: Any, owner: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(container, dict):
        yield None, tuple(container)
        return
    is_module = isinstance(owner, torch.nn.Module)
    for key, item in list(container.items()):
        if not is_module or key not in OF_MODULES or key in ("_modules", "_buffers"):
            yield key, item


def _put(container: Any, key: Any, value: Any) -> None:
    if key is None and not isinstance(container, dict):
        container.clear()
        container.extend(value)
    elif value is MISSING:
        container.pop(key, None)
    else:
        container[key] = value


def same(value: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal numbers or texts, or tuples of such."""
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if issubclass(type(value), tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return issubclass(type(value), NUMBERS) and bool(value == other)
