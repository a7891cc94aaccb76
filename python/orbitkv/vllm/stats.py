"""What OrbitKV counts, in vLLM's own metrics: the log line "KV Transfer metrics" and counters ``vllm:orbitkv_*``.

Each side counts for itself. At the end of a step a side hands over what it has counted since the step before; vLLM adds
the ranks' and the scheduler's parts up and carries them, as plain numbers by name, to its front end. Threads: one each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orbitkv.vllm.compat import KVConnectorPromMetrics, KVConnectorStats, PromCounter, is_registered

# Counts with a label have it in their names, behind this.
LABEL = "."
MISSES = "misses"
RESTORED_TOKENS = "restored_tokens"

# Name -> what it counts. The metric is called vllm:orbitkv_NAME.
COUNTERS = {
    "lookups": "Look-ups that the Cache Manager answered.",
    "lookup_hits": "Of those, with at least one block.",
    "lookups_given_up": "Look-ups without an answer in time; the requests were computed.",
    "lookups_loading": "Look-ups for which the Cache Manager loaded blocks first.",
    "loads": "Loads begun.",
    "loads_failed": "Loads that failed; their tokens were computed.",
    "offered_tokens": "Tokens of loads begun.",
    "saved_blocks": "Blocks that all ranks have stored.",
    "unsaved_blocks": "Blocks that were not stored: no room, or the engine reused their pages first.",
    "dropped_blocks": "Blocks that were not saved because too much was on its way already.",
    "republished_tokens": "Tokens of stored blocks that the engine had found and not computed.",
    "taken_jobs": "Saves given up because the engine reused their blocks first.",
    "restored_bytes": "Bytes copied into the engine's pages, of all ranks.",
    "restore_seconds": "Time that restores took, each from its start to its end, of all ranks.",
    "saved_bytes": "Bytes copied out of the engine's pages, of all ranks.",
}
# The same with one label each: its name, and what is counted.
LABELLED = {
    MISSES: ("reason", "Requests that were admitted without a token from OrbitKV, by reason."),
    RESTORED_TOKENS: ("source", "Tokens that requests were admitted with, by the tier that had them."),
}


class OrbitKVStats(KVConnectorStats):  # type: ignore[misc]
    """Counts of an interval. `data`: name, or name LABEL label value, -> number above zero."""

    data: dict[str, float]

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: Any) -> OrbitKVStats:
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def is_empty(self) -> bool:
        return not self.data

    def _labelled(self, name: str) -> dict[str, float]:
        prefix = name + LABEL
        return {key[len(prefix) :]: value for key, value in sorted(self.data.items()) if key.startswith(prefix)}

    def reduce(self) -> dict[str, Any]:
        """For the log line: what an operator asks first."""
        data = self.data
        line: dict[str, Any] = {
            "OrbitKV look-ups": data.get("lookups", 0),
            "hits": data.get("lookup_hits", 0),
        }
        for source, tokens in self._labelled(RESTORED_TOKENS).items():
            line[f"tokens from {source}"] = tokens
        for reason, count in self._labelled(MISSES).items():
            line[f"missed ({reason})"] = count
        line["saved blocks"] = data.get("saved_blocks", 0)
        if data.get("loads_failed"):
            line["failed loads"] = data["loads_failed"]
        if data.get("restore_seconds"):
            line["restored MB"] = round(data.get("restored_bytes", 0) / 1e6, 1)
            line["restore GB/s"] = round(data.get("restored_bytes", 0) / data["restore_seconds"] / 1e9, 2)
        return line


class OrbitKVPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The same as Prometheus counters, with vLLM's labels of the engine."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._engines = per_engine_labelvalues
        counter = metric_types[PromCounter]
        self._plain = {
            name: counter(name=f"vllm:orbitkv_{name}", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        self._labelled = {
            name: counter(name=f"vllm:orbitkv_{name}", documentation=text, labelnames=[*labelnames, label])
            for name, (label, text) in LABELLED.items()
        }
        for values in per_engine_labelvalues.values():
            for metric in self._plain.values():
                metric.labels(*values)  # is there, with 0, from the start

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self._engines[engine_idx]
        for key, count in transfer_stats_data.items():
            name, _, label = key.partition(LABEL)
            if label and name in self._labelled:
                self._labelled[name].labels(*values, label).inc(count)
            elif name in self._plain:
                self._plain[name].labels(*values).inc(count)


class Transfers:
    """What a worker copies."""

    def __init__(self) -> None:
        self._counts = {"restored_bytes": 0.0, "restore_seconds": 0.0, "saved_bytes": 0.0}
        self._began: dict[int, float] = {}  # by the client's job
        self._meter = Meter()

    def began(self, job: int, now: float) -> None:
        """Of a restore."""
        self._began[job] = now

    def ended(self, completion: Any, now: float) -> None:
        if completion.kind == "publish":
            self._counts["saved_bytes"] += completion.bytes
            return
        self._counts["restored_bytes"] += completion.bytes
        self._counts["restore_seconds"] += now - self._began.pop(completion.job, now)

    def take_stats(self) -> OrbitKVStats | None:
        return self._meter.take(self._counts)


class Meter:
    """Makes intervals of counts that only grow."""

    def __init__(self) -> None:
        self._told: tuple[Mapping[str, float], ...] = ()
        # Under MultiConnector the front end finds this class by its registered name, and ends without it.
        self._silent = not is_registered()

    def take(self, *parts: Mapping[str, float]) -> OrbitKVStats | None:
        """What was added since the last call, or None. `parts`: the same ones each time, without a common name."""
        if self._silent or parts == self._told:
            return None
        told: Sequence[Mapping[str, float]] = self._told or [{} for _ in parts]
        self._told = tuple(dict(part) for part in parts)
        added = {
            name: count - before.get(name, 0)
            for part, before in zip(parts, told, strict=True)
            for name, count in part.items()
            if count != before.get(name, 0)
        }
        return OrbitKVStats(data=added) if added else None
