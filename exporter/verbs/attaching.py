"""Attaching to RDMA providers: the functions to probe are found when the first process uses a provider.

Targets finds libibverbs by its symbols and providers by what they import of it. Where a provider's functions are
depends on the libibverbs that its process has mapped too. Functions that the file does not show are learnt from
processes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from exporter.bpf.libbpf import Link
from exporter.bpf.library import Library
from exporter.bpf.probe import Probes
from exporter.bpf.safety import Protection
from exporter.bpf.shares import Shares, User
from exporter.bpf.uprobe import close_all
from exporter.verbs import control, doctor
from exporter.verbs.code.analysis import Analysis
from exporter.verbs.code.providers import ProviderFunctions
from exporter.verbs.code.tables import SET_OPS
from exporter.verbs.functions import ALLOC_PD, POLLED, operation
from exporter.verbs.learning import Addresses, Learning, Pointers
from exporter.verbs.poll_sampling import Windows
from exporter.verbs.probed import Provider

_ATTEMPTS = 10
"""Searches for functions in one file, as the processes of one user have it."""
_MOST_TRIED = 1024
"""Processes of which one is chosen for another search."""
_MOST_USERS = 1 << 14
_VERBS = "libibverbs"

log = logging.getLogger(__name__)


class Attaching:
    """An interest for Targets, in front of the probes and the windows. `protection` is that of Probes.

    Threads hold no lock while they search files: Targets' thread would wait for them, and so would all jobs.
    """

    def __init__(
        self,
        probes: Probes,
        windows: Windows,
        protection: Callable[[int], Protection | None],
        proc: Path,
        sys: Path,
        pointers: Pointers,
    ) -> None:
        self.symbols: Collection[str] = frozenset({*control.FUNCTIONS, ALLOC_PD})
        self.imports: Collection[str] = frozenset({SET_OPS})
        self._probes, self._windows, self._protection, self._proc = probes, windows, protection, proc
        self.pointers = pointers
        self.shares = Shares(proc)
        self.learning = Learning(self.shares, proc)
        self.analysis = Analysis(proc, sys, self.shares, self._analysed)
        self._lock = threading.RLock()
        self.providers: dict[int, Provider] = {}

    def attach(self, library: Library) -> Link:
        links = []
        if SET_OPS in library.imports or not Path(library.path).name.startswith(_VERBS):
            with self._lock:
                self.providers[id(library)] = Provider(library)
            links.append(Link(lambda: self.release(library)))
        if library.functions:
            links.append(self._probes.attach(library))
        return Link(partial(close_all, links))

    def process_started(self, pid: int, library: Library, from_first_call: bool) -> None:
        with self._lock:
            provider = self.providers.get(id(library))
            if provider and len(provider.users) < _MOST_USERS:
                provider.users[pid] = self._protection(pid)
                for part in provider.parts:
                    self._windows.review(part)
                    self._probes.process_started(pid, part, from_first_call)
                if not self.search(provider, pid):
                    self._learn_all(provider, pid)
        if library.functions:
            self._probes.process_started(pid, library, from_first_call)

    def processes_ended(self, pids: Collection[int]) -> None:
        self._forget(pids)
        self._probes.processes_ended(pids)

    def processes_replaced(self, pids: Collection[int]) -> Collection[int]:
        self._forget(pids)
        return self._probes.processes_replaced(pids)

    def retry(self) -> None:
        """Search providers again that were mapped before libibverbs was, and learn from postponed processes."""
        with self._lock:
            for provider in self.providers.values():
                any(self.search(provider, pid) for pid in islice(provider.users, _MOST_TRIED))
            postponed = self.learning.postponed()
            used = [(provider, provider.users.keys() & postponed) for provider in self.providers.values()]
        for provider, pids in used:
            for pid in pids:
                self._learn_all(provider, pid)

    def learn(self, pid: int, addresses: Addresses) -> None:
        """Probe the functions that a context of the process calls, if they are certain and were not known."""
        for provider, found in self.learning.functions(pid, addresses, self._all()):
            with self._lock:
                if not self._is_there(provider):
                    continue
                self._take(provider, found, self.shares.user(pid))
                if found.functions:
                    provider.learnt, provider.problem = True, ""
                elif not provider.learnt:
                    _, sentence, remedy = doctor.describe(provider.library.path, found)
                    provider.problem = f"{sentence}; {remedy}"

    def learn_extended(self, pid: int, addresses: Addresses) -> None:
        """Probe the calls that a queue pair or completion queue of the process has, if they are certain."""
        for provider, found in self.learning.calls(pid, addresses, self._all()):
            with self._lock:
                if not self._is_there(provider):
                    continue
                probed = len(provider.parts)
                left = self._take(provider, found, self.shares.user(pid))
                more = dict.fromkeys(left, "More versions than are probed.")
                provider.refused = provider.refused | dict(found.refused) | more  # another thread may be reading it
                if len(provider.parts) > probed:
                    self.pointers.observed()

    def _all(self) -> list[Provider]:
        with self._lock:
            return list(self.providers.values())

    def _is_there(self, provider: Provider) -> bool:
        """Return whether a provider is not released: its descriptor may be another file's by now."""
        return self.providers.get(id(provider.library)) is provider

    def _learn_all(self, provider: Provider, pid: int) -> None:
        """Learn from the pointers that the BPF programs have seen of a process so far."""
        if not provider.whole:
            self.learning.restart(pid)
            for addresses in self.pointers.contexts(pid):
                self.learn(pid, addresses)
        for addresses in self.pointers.objects(pid):
            self.learn_extended(pid, addresses)

    def users(self, part: Library) -> list[Protection]:
        """Return the protection of the processes that use a provider, as far as it is known."""
        providers = list(self.providers.values())  # no lock: windows hold theirs
        found = [provider for provider in providers if provider.probes(part)]
        return [protected for provider in found for protected in list(provider.users.values()) if protected]

    def problems(self) -> Iterator[str]:
        """Yield sentences on functions of providers that are not found. Waits for no search."""
        for provider in list(self.providers.values()):
            if problem := provider.problem:
                yield problem
            if refused := provider.refused:
                yield f"{provider.library.path}: {doctor.refusals(refused)}"

    def search(self, provider: Provider, pid: int) -> bool:
        """Request a search of the file as this process has it, and return whether there will be one.

        `_analysed` receives the result.
        """
        if provider.searched:
            return False
        user = self.shares.user(pid)
        if provider.attempts[user] >= _ATTEMPTS:
            return False
        if len(provider.attempts) >= _MOST_USERS:
            provider.attempts.clear()
        provider.attempts[user] += 1
        if provider.found is None and not provider.learnt:
            provider.problem = f"{provider.library.path}: its functions are being looked for"
        self.analysis.want(provider.library, pid)
        return True

    def _analysed(self, library: Library, found: ProviderFunctions) -> None:
        with self._lock:
            provider = self.providers.get(id(library))
            if provider is None or provider.library is not library:
                return  # as _is_there
            provider.found = found
            whole, sentence, remedy = doctor.describe(library.path, found)
            if not provider.learnt:
                provider.problem = "" if whole else f"{sentence}; {remedy}"
            if "post_send" in found.functions:
                self._take(provider, found, None)
            users = [*provider.users]
        for pid in users:
            self._learn_all(provider, pid)

    def _take(self, provider: Provider, found: ProviderFunctions, user: User | None) -> Collection[str]:
        """Probe the functions that are not probed yet, for all the processes that use the provider.

        `user` is the one of the process that has shown them, if any.

        Returns the operations that have more versions than are probed.
        """
        part, left = provider.part(found, user)
        if part:
            self._probe(provider, part)
        return left

    def _probe(self, provider: Provider, part: Library) -> None:
        provider.parts.append(part)
        polled = [name for name in part.functions if operation(name) in POLLED]
        if polled:
            for name, placement in self._windows.add(part, polled).items():
                self._probes.account(operation(name), placement, returns=bool(POLLED[operation(name)].returns))
        provider.links.append(self._probes.attach(part))
        for pid in provider.users:
            self._probes.process_started(pid, part, from_first_call=False)
        log.info("probing an RDMA provider", extra={"library": provider.library.path})

    def _forget(self, pids: Collection[int]) -> None:
        with self._lock:
            for provider in self.providers.values():
                known = provider.users.keys() & pids
                for pid in known:
                    del provider.users[pid]
                for part in provider.parts if known else ():
                    self._windows.review(part)
            self.learning.forget(pids)

    def release(self, library: Library) -> None:
        self.analysis.forget(library)
        with self._lock:
            provider = self.providers.pop(id(library), None)
        if provider:
            for part in provider.parts:
                self._windows.remove(part)
            close_all(provider.links)
