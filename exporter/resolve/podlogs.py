"""Names of pods and containers from the kubelet's log folders, for nodes without access to its socket or the API.

The kubelet keeps `pods/<namespace>_<pod>_<uid>/<container>/` and links
`containers/<pod>_<namespace>_<container>-<container id>.log` under /var/log. Kubernetes names hold no underscore.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_LIMIT = 16_384
"""Entries of a folder that are read: far more than a node can hold, a bound for folders of another kind."""
_SETTLED_NS = 1_000_000_000
"""Age of the last change of a folder from which on a further one has another time: times are those of a tick."""
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_POD = re.compile(rf"(?P<namespace>{_NAME})_(?P<pod>{_NAME})_(?P<uid>[0-9a-f-]{{32,36}})")
_CONTAINER = re.compile(rf"(?P<pod>{_NAME})_(?P<namespace>{_NAME})_(?P<container>{_NAME})-(?P<id>[0-9a-f]{{64}})\.log")


@dataclass(frozen=True, slots=True)
class ContainerNames:
    """The names of a container in Kubernetes: `pod`, `namespace` and `container`; empty where unknown."""

    pod: str = ""
    namespace: str = ""
    container: str = ""


class PodLogs:
    """The names in one log folder. Listings are kept until the folder changes. Safe from any thread."""

    def __init__(self, logs: Path) -> None:
        self._pods = _Listing(logs / "pods", _POD, "uid")
        self._containers = _Listing(logs / "containers", _CONTAINER, "id")

    def names(self, container_id: str, pod_uid: str) -> ContainerNames:
        """Return the names of a container by the ids in its cgroup path; empty when unknown. Never raises."""
        if container_id and (names := self._containers.get(container_id)):
            return names
        return (self._pods.get(pod_uid) if pod_uid else None) or ContainerNames()


class _Listing:
    """The entries of one folder with names that match `pattern`, by the pattern's group `key`."""

    def __init__(self, folder: Path, pattern: re.Pattern[str], key: str) -> None:
        self._folder, self._pattern, self._key = folder, pattern, key
        self._lock = threading.Lock()
        self._changed = -1
        self._names: dict[str, ContainerNames] = {}

    def get(self, identifier: str) -> ContainerNames | None:
        with self._lock:
            if identifier not in self._names:
                self._refresh()
            return self._names.get(identifier)

    def _refresh(self) -> None:
        try:
            changed = self._folder.stat().st_mtime_ns
            if changed == self._changed:
                return
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, _LIMIT)]
        except OSError:
            return
        found = {}
        for name in names:
            if match := self._pattern.fullmatch(name):
                parts = match.groupdict()
                found[parts[self._key]] = ContainerNames(parts["pod"], parts["namespace"], parts.get("container", ""))
        settled = time.time_ns() - changed > _SETTLED_NS
        self._changed, self._names = changed if settled else -1, found
