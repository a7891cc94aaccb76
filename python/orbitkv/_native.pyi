from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from orbitkv.layout import Group, Layer
from orbitkv.options import ClientOptions

__version__: str

JobState = Literal["pending", "enqueued", "drained-ok", "drained-failed"]
Generations = int | Sequence[int] | None

class Error(Exception): ...
class InvalidArgument(Error): ...  # noqa: N818
class LayoutError(Error): ...
class ForkedError(Error): ...
class UnavailableError(Error): ...

class BlockHashes:
    """Block hashes prepared once; slices (step 1) share their memory.

    Args:
        data: n * hash_bytes bytes, or a list of hashes.
        hash_bytes: length of one hash, 1 to 32.
    """

    def __init__(self, data: bytes | Sequence[bytes], hash_bytes: int = 32) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> BlockHashes: ...
    @overload
    def __getitem__(self, key: int) -> bytes: ...
    def extend(self, items: Sequence[bytes]) -> None: ...

class Contract:
    """What an engine with these cache groups needs at a boundary. Positions and counts in hash blocks.

    A block of a group is named by the last hash block inside it. At a boundary, every group ends a block.

    Args:
        groups: in the order of their numbers.
        hash_block_tokens: 0 is the greatest common divisor of the groups' block sizes.
    """

    def __init__(self, groups: Sequence[Group], *, hash_block_tokens: int = 0) -> None: ...
    @property
    def hash_block_tokens(self) -> int: ...
    @property
    def alignment_blocks(self) -> int: ...  # between two boundaries
    def last_boundary(self, tokens: int) -> int:
        """The largest one that a request of so many tokens may be offered: its last token is always computed."""
    def demand(self, prefix_blocks: int, boundary_blocks: int) -> list[tuple[int, int, int]]:
        """What an engine that has the prefix lacks at the boundary: (group, first, count) for each group.

        Blocks are counted from the prompt's start.

        Raises:
            InvalidArgument: no boundary behind the prefix.
        """
    def key_position(self, group: int, block: int) -> int:
        """The hash block that names a block of the group."""

class Answer:
    @property
    def found_blocks(self) -> int: ...  # hash blocks behind the prefix that the engine has
    @property
    def lease(self) -> int: ...  # 0 when nothing was found
    @property
    def boundaries(self) -> list[int]: ...  # the block counts that may be taken, ascending
    @property
    def tiers(self) -> list[str]: ...  # of a discovery, for each block: "pool", "behind" (to be loaded) or "absent"
    @property
    def loaded_blocks(self) -> int: ...  # of found_blocks, the last ones, that were read from behind the pool for this
    @property
    def reason(self) -> str:
        """Why this many.

        found, absent (never seen, as far as the Manager remembers), evicted, no namespace, over budget, incomplete (all
        was asked for, or the first block lacks a part), too late (loading had not ended),
        recompute (the rest is computed sooner than loaded), down, timed out, refused, not admitted (of a claim: nothing
        is kept), or loading: no answer yet, ask again.
        """

class Completion:
    @property
    def job(self) -> int: ...
    @property
    def kind(self) -> Literal["publish", "restore"]: ...
    @property
    def tag(self) -> int: ...
    @property
    def ok(self) -> bool: ...
    @property
    def outcomes(self) -> bytes:
        """One byte per block, in the order of the job's block ids.

        1 stored, 2 already there, 3 not kept, 4 restored, 5 mismatch (withdrawn), 6 failed, 7 stale (not copied: a
        page of the job had got another generation before its copy began).
        """
    @property
    def bytes(self) -> int: ...  # copied
    @property
    def error(self) -> str: ...  # one line, empty when ok

class Client:
    """Threads: every method from any. Only the documented waits block, without the GIL."""

    def __init__(self, options: ClientOptions) -> None: ...
    @property
    def state(self) -> Literal["down", "up", "suspect"]: ...
    @property
    def incarnation(self) -> bytes: ...  # 16 bytes, empty while down; another one for each Manager life
    def wait_up(self, timeout_s: float) -> bool: ...
    def register_layout(self, layers: Sequence[Layer], *, block_tokens: int) -> None:
        """Of an engine with one cache group of full attention."""
    def register_groups(self, groups: Sequence[Group], *, hash_block_tokens: int = 0) -> None:
        """All cache groups, in the order of their numbers; hash_block_tokens as of `Contract`."""
    def query(
        self,
        request_id: str,
        hashes: BlockHashes,
        *,
        prefix_blocks: int = 0,
        attempt: int = 0,
        wait_s: float = 200e-6,
        load_wait_s: float = 0.0,
        load_wait_is_compute_time: bool = False,
        mode: Literal["longest", "all", "discovery", "selected"] = "longest",
        views: Sequence[tuple[int, int, int]] = (),
    ) -> Answer | None:
        """Looks the blocks of a request up.

        Args:
            request_id: one lease per id; an answer replaces the one before.
            hashes: of all full hash blocks of the request; with one group of full attention, of all full blocks.
            prefix_blocks: of these, the engine has the first ones.
            attempt: counts the logical look-ups of one request.
            wait_s: how long this call waits for the answer.
            load_wait_s: how long the Manager may load blocks that are not in its memory; 0 to 60.
            load_wait_is_compute_time: load_wait_s was measured as the time to compute all blocks behind the prefix;
                what takes longer to load is not offered.
            mode: "longest": the longest usable prefix; "all": all of it or nothing; "discovery": what could be had,
                without a lease; "selected": exactly the blocks of `views`, all or nothing.
            views: (cache group, first, count) of each run of selected blocks: the index behind the prefix of the hash
                that names the first one, and how many. With several groups they are all that a boundary demands.

        Returns:
            None, or an answer "loading": not answered yet; call again with the same request id. None says that the
            Manager has said nothing so far.
        """
    def warm_up(self, request_id: str, hashes: BlockHashes, *, prefix_blocks: int = 0) -> None:
        """Posts the wish that what is missing be loaded when the Manager has time. Nothing is leased.

        Raises:
            UnavailableError: no Manager.
            Error: the rings are full, or the Manager is of an older version.
        """
    def prepare(
        self,
        request_id: str,
        hashes: BlockHashes,
        *,
        consumer: str,
        prefix_blocks: int = 0,
        load_wait_s: float = 10.0,
    ) -> int:
        """Posts the order to load blocks and keep them until `consumer` claims them; returns a ticket. As `warm_up`."""
    def claim(self, consumer: str, *, most_blocks: int, ticket: int = 0, wait_s: float = 200e-6) -> Answer | None:
        """The leased answer to what was prepared for this consumer, in whichever process of the instance.

        `most_blocks` of the preparation; `ticket` of this client's own `prepare`, 0 for whatever is kept.

        Returns:
            As `query`; the reason is "not admitted" when nothing is kept (any more): then ask an ordinary question.
        """
    def cancel_prepared(self, ticket: int) -> None: ...
    def cancel_query(self, request_id: str) -> None: ...
    def begin_restore(self, lease: int, blocks: int, ranks: Sequence[int] = (0,)) -> int:
        """Posts the begin and returns the grant id, 0 when it could not be posted. `blocks`: one of the boundaries."""
    def release_lease(self, lease: int) -> None: ...
    def release_grant(self, grant: int) -> None: ...
    def restore(
        self,
        grant: int,
        hashes: BlockHashes,
        block_ids: Sequence[int] | Any,
        *,
        prefix_blocks: int = 0,
        incarnation: bytes = b"",
        tag: int = 0,
        generations: Generations = None,
    ) -> int:
        """Starts to bring exactly the granted blocks into these pages; returns the job.

        Args:
            grant: that `begin_restore` returned, in whichever process of the instance.
            hashes: behind the prefix, up to the boundary that the restore was begun with.
            block_ids: one for each block that the boundary demands (`Contract.demand`), group by group in that order.
                With one group of full attention: one for each hash.
            prefix_blocks: hash blocks before the first hash, as in the query.
            incarnation: of the Manager that granted; another one fails the job at once.
            tag: of the completion.
            generations: of the pages: one number for all, or one for each block; None checks nothing.
        """
    def publish(
        self,
        hashes: BlockHashes,
        block_ids: Sequence[int] | Any,
        *,
        runs: Sequence[tuple[int, int, int]] = (),
        first_depth: int = 0,
        parent: bytes = b"",
        prompt_tokens: int = 0,
        answer_tokens: int = 0,
        tag: int = 0,
        generations: Generations = None,
    ) -> int | None:
        """Starts to save blocks; returns the job, or None when too many wait (counted).

        Args:
            hashes: of consecutive hash blocks.
            block_ids: one for each block, in the order of the runs.
            runs: (group, first, count) of the blocks, counted from the prompt's start, in prefix order; without runs
                all that lie in the hashes whole. The hashes begin no later than each run's first block.
            first_depth: hash blocks before the first hash.
            parent: the hash before the first one.
            prompt_tokens: of the request, for the eviction policy, as answer_tokens.
            answer_tokens: generated so far.
            tag: of the completion.
            generations: as for `restore`.
        """
    def renew_pages(self, block_ids: Sequence[int] | Any, generation: int, *, group: int = 0) -> None:
        """Says that these pages of a group have a new use: the generation must rise; all are 0 at first.

        A job that named another generation and has not begun to copy is dropped. One that is `enqueued` has begun: wait
        for it before the pages are used.

        Raises:
            InvalidArgument: a block outside the layout, or a generation that does not rise; nothing was changed.
        """
    def job_state(self, job: int) -> JobState:
        """pending: no page was touched; enqueued: bytes may be moving; drained: the completion is there.

        Raises:
            Error: no job of this client, or its completion was taken more than 4,096 jobs ago.
        """
    def wait_job(self, job: int, timeout_s: float) -> JobState:
        """The state when the job is drained or the time is over. Changes nothing about who owns which page."""
    def wait_layers(self, job: int, known: int, timeout_s: float) -> int:
        """Layers of a restore that are in their pages and verified.

        Returns when they are more than `known`, the job is drained or the time is over. Counted through its groups in
        the order of its blocks, and through the layers of each as registered, up to the first that is not there. A job
        that fails later may have reported layers, and its pages are not to be used.
        """
    def cancel_publish(self, job: int) -> bool:
        """True: no page of the job was read and none will be."""
    def wait_sources_free(self, jobs: Sequence[int], timeout_s: float) -> bool:
        """True when no job reads its pages any more; queued ones are dropped, running copies are waited for."""
    def poll(self) -> list[Completion]: ...
    def completion_fd(self) -> int: ...  # readable while a completion waits; belongs to the client
    def counters(self) -> dict[str, int]: ...
    def close(self, timeout_s: float = 5.0) -> None:
        """Saves what is queued within the timeout, finishes copies, ends the sessions. Idempotent.

        Raises when a device does not finish its copies: their pages must not be used again in this process.
        """

class CancelToken:
    def __init__(self) -> None: ...
    def cancel(self) -> None: ...
    @property
    def cancelled(self) -> bool: ...

class DigestBuilder:
    """SHA-256 over named fields, in order, each framed by its type and lengths."""

    def __init__(self, domain: str) -> None: ...
    def add(self, name: str, value: bytes | str | int | bool | None) -> DigestBuilder: ...
    def digest(self) -> bytes: ...

def computation_digest(fields: Mapping[str, Any]) -> bytes: ...
def representation_digest(fields: Mapping[str, Any]) -> bytes: ...
def identify_weights(
    path: str, *, load_format: str = "", model_id: str = "", cancel: CancelToken | None = None
) -> str: ...
def status(socket: str, timeout_s: float = 2.0) -> dict[str, Any]: ...
