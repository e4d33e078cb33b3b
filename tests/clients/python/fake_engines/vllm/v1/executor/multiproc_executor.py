"""The executor of several ranks, whose threads stand for processes. As vLLM's, it reads the ranks' replies in
order and stops at the first error: the replies after it stay for the RPC that follows."""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, Sequence


class _Rank:
    def __init__(self, make_worker: Callable[[], Any]) -> None:
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._make_worker = make_worker
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        worker = self._make_worker()
        for method, args, kwargs in iter(self.calls.get, None):
            try:
                self.replies.put((True, worker.execute_method(method, *args, **kwargs)))
            except Exception as error:
                self.replies.put((False, error))


class MultiprocExecutor:
    """Lifecycle: collective_rpc from one thread; shutdown."""

    def __init__(self, make_workers: Sequence[Callable[[], Any]]) -> None:
        """Args:
        make_workers: each is called on its rank's thread.
        """
        self._ranks = [_Rank(make) for make in make_workers]

    def collective_rpc(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        for rank in self._ranks:
            rank.calls.put((method, args, kwargs))
        results = []
        for rank in self._ranks:
            fine, result = rank.replies.get(timeout=60)
            if not fine:
                raise RuntimeError(f"Worker failed with error '{result}'") from result
            results.append(result)
        return results

    def shutdown(self) -> None:
        for rank in self._ranks:
            rank.calls.put(None)
        for rank in self._ranks:
            rank.thread.join(20)
