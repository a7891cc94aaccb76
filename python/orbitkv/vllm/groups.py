"""The engine's cache groups as scheduler and workers both see them. Positions and counts in hash blocks, as `Contract`.

Block tables of vLLM have a list for each group; ids are unique over all groups, and 0 is the block that holds nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import orbitkv

Run = tuple[int, int, int]  # group, first block, count
Rule = Literal["full_attention", "sliding_window", "recurrent", "chunked_local"]

# Boundaries whose whole demand is remembered: neighbouring blocks ask for the same ones.
DEMANDS = 256


@dataclass(frozen=True)
class Group:
    """`layer_specs`: of layers that differ; else `spec` is that of all.

    `exact`: a block holds a state only when a step ended where the block does. `volatile`: what a drafter keeps of a
    block's last token depends on the token behind it, which the block's name does not say.
    """

    block_tokens: int
    page_bytes: int  # of a layer with `spec`
    kind: str  # vLLM's name of it
    dtype: str
    spec: Any
    rule: Rule = "full_attention"
    span_tokens: int = 0  # of a window or chunk
    exact: bool = False
    volatile: bool = False
    layer_specs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def declared(self, layers: Sequence[orbitkv.Layer] = ()) -> orbitkv.Group:
        return orbitkv.Group(
            block_tokens=self.block_tokens, kind=self.rule, span_tokens=self.span_tokens, layers=layers
        )


class Groups:
    """The groups in vLLM's order.

    `retention_tokens`: how vLLM keeps blocks of windows and states: None all, 0 what a repeated prompt needs, else also
    what is needed every so many tokens.
    """

    def __init__(self, groups: Sequence[Group], hash_tokens: int = 0, retention_tokens: int | None = 0) -> None:
        self._groups = tuple(groups)
        self.volatile = any(group.volatile for group in groups)
        self._contract = orbitkv.Contract(self.declared(), hash_block_tokens=hash_tokens)
        self._whole_demand = lru_cache(DEMANDS)(lambda boundary: self._contract.demand(0, boundary))
        self.hash_tokens = self._contract.hash_block_tokens
        self.align_tokens = self._contract.alignment_blocks * self.hash_tokens
        self._ratios = [group.block_tokens // self.hash_tokens for group in groups]
        self.retention_tokens = retention_tokens
        # Of these groups a boundary does not need everything before it.
        self.sparse = [number for number, group in enumerate(groups) if group.rule != "full_attention"]
        # Every count of hash blocks is a boundary.
        self.plain = len(groups) == 1 and not self.sparse and self._ratios[0] == 1
        # Found hash blocks that are not offered: the last block of a drafter may be another continuation's.
        self.volatile_blocks = self.align_tokens // self.hash_tokens if self.volatile else 0

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def __getitem__(self, number: int) -> Group:
        return self._groups[number]

    def declared(self) -> list[orbitkv.Group]:
        return [group.declared() for group in self._groups]

    def last_boundary(self, tokens: int) -> int:
        """The largest one that a request of so many tokens can use: its last token is always computed."""
        return self._contract.last_boundary(tokens)

    def aligned(self, blocks: int) -> int:
        return blocks - blocks % (self.align_tokens // self.hash_tokens)

    def demand(self, prefix: int, boundary: int) -> list[Run]:
        """What the boundary needs of each group and the prefix does not have. `InvalidArgument` where none is."""
        return [run for run in self._contract.demand(prefix, boundary) if run[2]]

    def place(self, number: int, block: int) -> int:
        """The hash block that names a group's block."""
        return (block + 1) * self._ratios[number] - 1

    def chain(self, number: int, begin: int, end: int) -> tuple[int, int]:
        """The hash blocks that a group's blocks span."""
        return begin * self._ratios[number], end * self._ratios[number]

    def blocks(self, number: int, hash_blocks: int) -> int:
        """Whole blocks of a group in so many hash blocks."""
        return hash_blocks // self._ratios[number]

    @staticmethod
    def key(number: int, block_hash: bytes) -> bytes:
        """A block's name among the blocks of all groups."""
        return block_hash + bytes([number]) if number else block_hash

    def names(self, number: int, hashes: Sequence[bytes], begin: int, end: int) -> list[bytes]:
        """Of a group's blocks, the same. `hashes`: of the request, from its start."""
        ratio = self._ratios[number]
        plain = hashes[(begin + 1) * ratio - 1 : end * ratio : ratio]
        return [self.key(number, item) for item in plain] if number else list(plain)

    def keys(self, hashes: Sequence[bytes], first: int, runs: Iterable[Run]) -> list[bytes]:
        """Names of the blocks of the runs, in order. `hashes`: from position `first` on."""
        return [
            self.key(number, hashes[self.place(number, block) - first])
            for number, begin, count in runs
            for block in range(begin, begin + count)
        ]

    def keeps(self, number: int, block: int, prompt_tokens: int, junction_tokens: int = 0) -> bool:
        """Whether a complete block may let a later request go on.

        Of a window or a state that are the tails of the boundaries that vLLM itself keeps (the last one of the prompt,
        where prompts part, and every `retention_tokens`), and of all behind the prompt, for a conversation that goes
        on. What is not offered of a drafter's blocks makes a boundary before these the last one, so all are kept. Of
        chunks vLLM keeps all.
        """
        group = self._groups[number]
        if group.rule in ("full_attention", "chunked_local"):
            return True
        replay = self.last_boundary(prompt_tokens)
        begin_tokens = block * group.block_tokens
        every = self.retention_tokens
        if every is None or self.volatile or begin_tokens >= replay * self.hash_tokens:
            every = self.align_tokens
        boundaries = [replay, self.aligned(junction_tokens // self.hash_tokens)]
        if every:
            segments = (begin_tokens + group.block_tokens - 1) // every + 1
            boundaries.append(segments * every // self.hash_tokens)
        return any(self._needs(boundary, number, block) for boundary in boundaries if boundary)

    def holds(self, number: int, block: int, tokens: tuple[int, int], handed: Container[tuple[int, int]] = ()) -> bool:
        """Whether a block that is complete after a step has the content that its name says.

        `tokens`: computed before the step and after it. `handed`: (group, tokens) of states that the engine says are
        kept where no step ends.
        """
        group = self._groups[number]
        end = (block + 1) * group.block_tokens
        return not group.exact or end in tokens or (number, end) in handed

    def _needs(self, boundary: int, number: int, block: int) -> bool:
        _, first, count = self._whole_demand(boundary)[number]
        return first <= block < first + count
