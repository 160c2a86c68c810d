"""Find the rank that made a step fail, so that the errors of all ranks name it."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import distributed

from fxpress._distributed.errors import PipelineError, described
from fxpress._distributed.pipeline.agreement import join_round, out_of_reach, text_of
from fxpress._torch.distributed import store_of

_BEAT = 0.5  # seconds between heartbeats
_MAX_SEARCH = 5.0  # seconds that a failed rank searches for the cause


class Watch:
    """Sends this rank's heartbeats, and finds the rank that made an operation fail.

    `patience` is the timeout of communication; the rest of `timeout` is for finding failed ranks.
    """

    def __init__(self, group: Any, names: list[str], timeout: float) -> None:
        self._rank, self._names = distributed.get_rank(group), names
        self._search = min(_MAX_SEARCH, timeout / 2)
        self._beat = min(_BEAT, self._search / 10)
        self.patience = timeout - self._search
        self._step, self._doing, self._since = 0, "", time.monotonic()
        self._failure = ""
        try:  # each clone has its own connection, so that no request waits for another
            self._key = f"watch/{join_round(group)}"
            self._store = store_of(group).clone()
            own = self._store.clone()
            self._send_beat(own, 0)
            own.check([f"{self._key}/beat/{self._rank}"])  # waits until the store has the heartbeat
        except RuntimeError as error:
            raise PipelineError(out_of_reach(names)) from error
        self._stopped = threading.Event()
        beats = threading.Thread(
            target=self._send_beats, args=(own,), daemon=True, name="fxpress watch"
        )
        beats.start()

    def doing(self, what: str) -> None:
        """Record what this rank is doing; "" if it waits for others."""
        self._doing, self._since = what, time.monotonic()

    def close(self) -> None:
        """Stop the heartbeats."""
        self._stopped.set()

    def _send_beats(self, store: Any) -> None:
        number = 0
        with contextlib.suppress(RuntimeError):  # the store is closed
            while not self._stopped.wait(self._beat):
                number += 1
                self._send_beat(store, number)

    def _send_beat(self, store: Any, number: int) -> None:
        busy = time.monotonic() - self._since if self._doing else 0.0
        beat = {"number": number, "step": self._step, "doing": self._doing, "busy": busy}
        store.set(f"{self._key}/beat/{self._rank}", json.dumps(beat))

    @contextlib.contextmanager
    def kept(self) -> Iterator[Watch]:
        """Run a block, and stop the heartbeats if it raises."""
        try:
            yield self
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Run a block; raise its failure as a PipelineError that names the rank and the cause."""
        if self._failure:
            raise PipelineError(self._failure)
        try:
            yield
        except Exception as error:
            self._failure = self._in_time(functools.partial(self._explain, error))
            self.close()
            raise PipelineError(self._failure) from error
        finally:
            self._doing = ""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Run a block as the next step, and explain its failure."""
        self._step += 1
        with self.explained():
            yield

    def settled(self, text: str, *, is_late: bool) -> str:
        """Return the error that all ranks raise: the first cause that any rank has found."""

        def find() -> str:
            try:
                return self._agreed((self._find_failed_rank() if is_late else None) or text)
            except RuntimeError:
                return out_of_reach(self._names)

        return self._in_time(find)

    def _in_time(self, find: Callable[[], str]) -> str:
        """Return the result of `find`, or an error if the store does not answer in time."""
        found: list[str] = []
        search = threading.Thread(target=lambda: found.append(find()), daemon=True)
        search.start()
        search.join(self._search)
        return found[0] if found else out_of_reach(self._names)

    def _explain(self, error: Exception) -> str:
        """Return the cause of an error, which all ranks report."""
        own, text = self._names[self._rank], described(_first(error))
        try:
            if len(self._names) == 1 or not _is_of_communication(error):
                found = f"{own}: {text}"
            else:
                found = self._find_failed_rank() or f"{own} cannot reach another rank: {text}"
            return self._agreed(found)
        except RuntimeError:
            return out_of_reach(self._names)

    def _agreed(self, found: str) -> str:
        """Write a cause into the store unless a rank has written one; return the stored cause."""
        return str(self._store.compare_set(f"{self._key}/cause", "", found).decode())

    def _find_failed_rank(self) -> str | None:
        """Find out from the cause and the heartbeats in the store how another rank has failed."""
        others = [rank for rank in range(len(self._names)) if rank != self._rank]
        start = time.monotonic()
        before = self._beats(others)
        read = time.monotonic()
        # `rest` is the time to end the wait, read the heartbeats again and write the cause. On a
        # slow link, these requests need twice the time of the first read of the heartbeats.
        rest = max(self._search * 0.4, self._search * 0.1 + (read - start) * 2)
        end = max(start + self._search - rest, read + self._beat * 3)  # time for two heartbeats
        cause = text_of(self._store, f"{self._key}/cause", end - read)
        if cause is not None:
            return cause
        after = self._beats(others)
        for rank in others:
            if before[rank] == after[rank]:
                return f"{self._names[rank]} has died: it stopped sending heartbeats"
        busy = {rank: beat["busy"] for rank, beat in after.items() if beat["doing"]}
        if busy:
            rank = max(busy, key=busy.__getitem__)
            beat = after[rank]
            return (
                f"{self._names[rank]} hangs in step {beat['step']}, {beat['doing']}: "
                f"no progress for {beat['busy']:.0f} s"
            )
        behind = min(others, key=lambda rank: after[rank]["step"])
        if after[behind]["step"] < self._step:
            return f"{self._names[behind]} did not begin step {self._step}"
        return None

    def _beats(self, ranks: list[int]) -> dict[int, dict[str, Any]]:
        """Return the last heartbeat of each rank. Every rank has sent at least one."""
        keys = [f"{self._key}/beat/{rank}" for rank in ranks]
        # Use one request if possible, because each rank reads the keys of all others.
        several = self._store.has_extended_api()
        beats = self._store.multi_get(keys) if several else map(self._store.get, keys)
        return {rank: json.loads(beat) for rank, beat in zip(ranks, beats, strict=True)}


def _is_of_communication(error: BaseException) -> bool:
    """Return whether an exception comes from communication with another rank."""
    error = _first(error)
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)
    )


# Substrings that identify errors of Gloo and of stores, which are plain RuntimeErrors.
_WORDS = ("gloo/", "Connection closed by peer", "Connection reset by peer", "Broken pipe", "[c10d]")


def _first(error: BaseException) -> BaseException:
    """Return the first cause of an exception, because torch wraps some exceptions."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
