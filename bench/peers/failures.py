"""Suite D: what each peer does when something breaks. Lower is better everywhere but in saves into a full pool.

For each peer one server and a client that stays. Another client is killed in the middle of a save; then the one that
stays saves the same blocks, whose answer must be true; the pool runs full; in the end the server is killed, and what it
leaves in shared memory is counted. What a killed server means to a live engine is in suite E.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from data_path import Client
from harness.children import ChildError
from harness.processes import shared_memory, wait_until
from peer import BLOCK_TOKENS, BLOCKS, SIZES, Config, Peer, failure_text
from report import Record, RowKind

POOL_BYTES = 1 << 30
GEOMETRY = SIZES["1M"]  # a save of 256 blocks takes a quarter of the pool
WARM_PROMPTS = [1, 2, 3]
FULL_PROMPTS = list(range(20, 28))
# Of the time that a save takes, when its process is killed: another share in each pass.
SHARES = (0.5, 0.3, 0.7)
RESIDUE_WAIT_S = 5.0
# As /proc/net/tcp6 writes ::1, and what begins an IPv4 address there.
LOOPBACK_6 = "00000000000000000000000001000000"
MAPPED = "0000000000000000FFFF0000"
LISTENS = "0A"

KINDS = [
    RowKind("D", "half_save.wrong", "blocks", "lower", "wrong blocks of a save whose process was killed in its middle"),
    RowKind("D", "half_save.lost", "blocks", "lower", "then saved by another one: reported as stored, not readable"),
    RowKind("D", "half_save.refused", "blocks", "lower", "then saved by another one: reported as not stored"),
    RowKind("D", "full.accepted", "%", "higher", f"of saves of {BLOCKS} x 1M into a full pool, found right after"),
    RowKind("D", "full.save", "GB/s", "higher", "rate of these saves, by what is found"),
    RowKind("D", "residue.names", "names", "lower", "names in shared memory after the server was killed"),
    RowKind("D", "listen.beyond_loopback", "sockets", "lower", "listening sockets that other hosts could reach"),
]


@dataclass
class Outcome:
    values: dict[str, float] = field(default_factory=dict)
    whys: dict[str, str] = field(default_factory=dict)


def sockets_of(pids: list[int]) -> set[str]:
    """Inodes of the sockets that these processes have."""
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def is_loopback(address: str) -> bool:
    """127.0.0.0/8 or ::1, in the kernel's words of four bytes with the lowest one first."""
    if address == LOOPBACK_6:
        return True
    return (len(address) == 8 or address.startswith(MAPPED)) and address.endswith("7F")


def beyond_loopback(table: str, inodes: set[str]) -> list[str]:
    """Of a table as in /proc/net/tcp, the addresses on which these sockets listen for more than this host."""
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != LISTENS or fields[9] not in inodes:
            continue
        if not is_loopback(fields[1].rsplit(":", 1)[0]):
            found.append(fields[1])
    return found


def listening(pids: list[int]) -> int:
    inodes = sockets_of(pids)
    return sum(len(beyond_loopback(Path(f"/proc/net/{name}").read_text(), inodes)) for name in ("tcp", "tcp6"))


def half_save(peer: Peer, stays: Client, folder: Path, after_s: float, outcome: Outcome) -> None:
    """Another process is killed in the middle of a save; the one that stays saves the same blocks."""
    prompt = 10
    with Client(peer, folder / "victim.log") as victim:
        victim.call("open", geometry=asdict(GEOMETRY))
        victim.call("save", prompts=[4])
        victim.send(["save_and_die", {"prompt": prompt, "after_s": after_s}])
        try:
            victim.receive()
        except ChildError:
            pass
    found = stays.call("lookups", prompts=[prompt], times=1)["found"][0]
    if found == BLOCKS:
        outcome.whys["half_save.lost"] = "the save had ended before the kill"
        return
    before = stays.call("load", prompts=[prompt])
    outcome.values["half_save.wrong"] = 0 if before["right"][0] else before["loaded"][0]
    stored = stays.call("save", prompts=[prompt])["stored"][0]
    after = stays.call("load", prompts=[prompt])
    readable = after["loaded"][0] if after["right"][0] else 0
    outcome.values["half_save.lost"] = max(0, stored - readable)
    outcome.values["half_save.refused"] = BLOCKS - stored


def full_pool(stays: Client, outcome: Outcome) -> None:
    """Twice what the pool holds; counts from where it is full, and what is found right after its save."""
    found, seconds = [], []
    for prompt in FULL_PROMPTS:
        saved = stays.call("save", prompts=[prompt])
        looked_up = stays.call("lookups", prompts=[prompt], times=1)
        found.append(min(saved["stored"][0], looked_up["found"][0]))
        seconds.append(saved["seconds"][0])
    into_full = slice(len(FULL_PROMPTS) // 2, None)
    blocks = sum(found[into_full])
    outcome.values["full.accepted"] = 100 * blocks / (len(found[into_full]) * BLOCKS)
    outcome.values["full.save"] = blocks * GEOMETRY.block_bytes / (1e9 * sum(seconds[into_full]))
    last = stays.call("load", prompts=FULL_PROMPTS[-1:])
    if not last["right"][0]:
        raise ChildError("blocks that were saved into a full pool are wrong")


def kill_all(peer: Peer) -> None:
    """As a crash: nothing cleans up after it."""
    for pid in peer.pids():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not peer.pids(), 10.0)


def measure(peer: Peer, number: int, folder: Path) -> tuple[Outcome, str]:
    """One pass over one peer; the text of what failed, if anything did."""
    outcome = Outcome()
    try:
        peer.start(Config(folder, POOL_BYTES, block_tokens=BLOCK_TOKENS))
        with Client(peer, folder / "stays.log") as stays:
            stays.call("open", geometry=asdict(GEOMETRY))
            normal_s = statistics.median(stays.call("save", prompts=WARM_PROMPTS)["seconds"][1:])
            outcome.values["listen.beyond_loopback"] = listening([*peer.pids(), stays.pid])
            half_save(peer, stays, folder, SHARES[number % len(SHARES)] * normal_s, outcome)
            full_pool(stays, outcome)
            named = shared_memory([*peer.pids(), stays.pid])
            kill_all(peer)
            stays.kill()
        wait_until(lambda: not any(path.exists() for path in named), RESIDUE_WAIT_S)
        left = [path for path in named if path.exists()]
        outcome.values["residue.names"] = len(left)
        for path in left:
            path.unlink()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return outcome, failure_text(error)
    finally:
        peer.close()
    return outcome, ""


def records(peer: str, number: int, outcome: Outcome, failure: str) -> Iterator[Record]:
    for kind in KINDS:
        value = outcome.values.get(kind.name)
        why = outcome.whys.get(kind.name, "") or ("" if value is not None else failure)
        if value is not None or why:
            yield Record(kind.name, peer, number, value, why)
