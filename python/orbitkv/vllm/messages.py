"""What scheduler and workers tell each other through vLLM, once per step. Everything here is pickled."""

from __future__ import annotations

from dataclasses import dataclass, field

from orbitkv.vllm.compat import KVConnectorMetadata, KVConnectorWorkerMetadata
from orbitkv.vllm.groups import Run
from orbitkv.vllm.lora import Adapter
from orbitkv.vllm.shards import ShardGrant


@dataclass
class Load:
    """Blocks of one request to restore under a grant. Grant 0: the grant could not be asked for, the load fails."""

    req_id: str
    grant: int
    incarnation: bytes
    hashes: bytes  # of the hash blocks up to the boundary, concatenated
    block_ids: list[int]  # of what the boundary demands, group by group
    epoch: bytes = b""
    shards: list[ShardGrant] = field(default_factory=list)  # where each shard has a Manager of its own
    prefix: int = 0  # hash blocks before the first hash
    runs: list[Run] = field(default_factory=list)  # which blocks these are
    adapter: Adapter | None = None  # that the blocks were computed with

    def grant_of(self, shard: int) -> ShardGrant:
        if self.grant and self.shards:
            return self.shards[shard]
        return ShardGrant(self.grant, self.incarnation)


@dataclass
class Save:
    """One run of consecutive complete blocks of one request's group to publish."""

    job: int
    first_depth: int  # hash blocks before the first hash
    parent: bytes
    hashes: bytes  # of the hash blocks that the run spans
    block_ids: list[int]
    prompt_tokens: int
    answer_tokens: int
    group: int = 0
    first_block: int = 0  # of the group
    adapter: Adapter | None = None


@dataclass
class Metadata(KVConnectorMetadata):  # type: ignore[misc]
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    taken_jobs: list[int] = field(default_factory=list)  # saves whose blocks this step gives to someone else
    epoch: bytes = b""  # of the namespace; another one after each reset
    idle: bool = False  # the step computes nothing


@dataclass
class SaveReport:
    """How one save ended on one rank. `incarnation` is empty when it reached no Manager."""

    incarnation: bytes
    stored: list[bool]  # per block: readable in the Manager now


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    saves: dict[int, list[SaveReport]] = field(default_factory=dict)  # by job, one report per rank
    failed_hashes: set[bytes] = field(default_factory=set)  # keys (Groups.key) that could not be restored
    weights_changed: bool = False  # since the epoch began
    adapters: dict[int, bytes] = field(default_factory=dict)  # loaded since the last report, by number: their content

    def __bool__(self) -> bool:
        return bool(self.saves or self.failed_hashes or self.weights_changed or self.adapters)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        assert isinstance(other, WorkerMetadata)
        saves = {job: list(reports) for job, reports in self.saves.items()}
        for job, reports in other.saves.items():
            saves.setdefault(job, []).extend(reports)
        adapters = self.adapters | other.adapters
        for number in self.adapters.keys() & other.adapters.keys():
            if self.adapters[number] != other.adapters[number]:
                adapters[number] = b""  # replaced while the ranks loaded it
        return WorkerMetadata(
            saves,
            self.failed_hashes | other.failed_hashes,
            self.weights_changed or other.weights_changed,
            adapters,
        )
