"""Suite C: what each peer still serves from its SSD after the process that has the data was killed.

For each way to come back a server of its own: one process saves and ends, everything is given time to reach the SSD,
then the data's owner is killed, and started again at once (quick) or after a while (slow). Whoever tells others about a
dead process by a time limit has not noticed the quick restart. So what is served counts once such limits are over.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from data_path import Client
from failures import Outcome
from harness.children import ChildError
from harness.processes import wait_until
from peer import BLOCK_TOKENS, BLOCKS, SIZES, Config, Peer, failure_text, gbps
from report import Record, RowKind

POOL_BYTES = 1 << 30
GEOMETRY = SIZES["1M"]
# The first one is looked for until it is there; the others are left alone until all are loaded.
PROMPTS = [1, 2, 3]
SAVED_BYTES = len(PROMPTS) * BLOCKS * GEOMETRY.block_bytes
DURABLE_LIMIT_S = 45.0
AWAY_S = {"quick": 0.0, "slow": 30.0}
# Longer than the longest time limit of a peer, Mooncake's 10 s for a client that is silent.
WATCH_S = 20.0

KINDS = [
    RowKind(
        "C", "ssd.durable_s", "s", "lower", f"from the save of {len(PROMPTS)} x {BLOCKS} x 1M until the SSD has them"
    ),
    RowKind("C", "ssd.quick.served", "%", "higher", f"of these, served {WATCH_S:.0f} s after a kill and start at once"),
    RowKind("C", "ssd.quick.first_s", "s", "lower", "from that start to the first hit"),
    RowKind("C", "ssd.slow.served", "%", "higher", f"the same, the start {AWAY_S['slow']:.0f} s after the kill"),
    RowKind("C", "ssd.slow.first_s", "s", "lower", "from that start to the first hit"),
    RowKind("C", "ssd.load", "GB/s", "higher", f"load {BLOCKS} x 1M from the SSD, after the slow restart"),
]


def drop_cached(folder: Path) -> None:
    """What the kernel keeps of these files in memory is written and forgotten."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def save(peer: Peer, config: Config, outcome: Outcome) -> None:
    with Client(peer, config.folder / "saver.log") as saver:
        saver.call("open", geometry=asdict(GEOMETRY))
        stored = saver.call("save", prompts=PROMPTS)["stored"]
        if set(stored) != {BLOCKS}:
            raise ChildError(f"of {BLOCKS} blocks it stored {min(stored)}")
        begin = time.monotonic()
        if wait_until(lambda: peer.ssd_bytes(config) >= SAVED_BYTES, DURABLE_LIMIT_S, 0.1):
            outcome.values.setdefault("ssd.durable_s", time.monotonic() - begin)
        else:
            share = 100 * peer.ssd_bytes(config) / SAVED_BYTES
            outcome.whys["ssd.durable_s"] = f"after {DURABLE_LIMIT_S:.0f} s {share:.0f} % were there"


def served(peer: Peer, config: Config, name: str, outcome: Outcome) -> None:
    """The next life: what it has, and when it is first found."""
    began = time.monotonic()
    peer.start(config)
    with Client(peer, config.folder / "loader.log") as loader:
        loader.call("open", geometry=asdict(GEOMETRY))

        def found() -> bool:
            return bool(loader.call("lookups", prompts=PROMPTS[:1], times=1)["found"][0] > 0)

        if wait_until(found, WATCH_S, 0.05):
            outcome.values[f"ssd.{name}.first_s"] = time.monotonic() - began
        else:
            outcome.whys[f"ssd.{name}.first_s"] = f"no hit within {WATCH_S:.0f} s"
        time.sleep(max(0.0, began + WATCH_S - time.monotonic()))
        loaded = loader.call("load", prompts=PROMPTS[1:] + PROMPTS[:1])
    if not all(loaded["right"]):
        raise ChildError("it served bytes that are not those that were saved")
    outcome.values[f"ssd.{name}.served"] = 100 * sum(loaded["loaded"]) / (len(PROMPTS) * BLOCKS)
    if name == "slow" and set(loaded["loaded"]) == {BLOCKS}:
        outcome.values["ssd.load"] = gbps(GEOMETRY, loaded["seconds"][: len(PROMPTS) - 1])


def measure(make: Callable[[], Peer], folder: Path, ssd: Path) -> tuple[Outcome, str]:
    """One pass over one peer; the text of what failed, if anything did."""
    outcome = Outcome()
    failures = []
    for name, away_s in AWAY_S.items():
        config = Config(folder / name, POOL_BYTES, BLOCK_TOKENS, ssd / name)
        peer = make()
        try:
            config.folder.mkdir(parents=True)
            ssd.joinpath(name).mkdir(parents=True)
            peer.start(config)
            save(peer, config, outcome)
            peer.crash()
            drop_cached(ssd / name)
            time.sleep(away_s)
            served(peer, config, name, outcome)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            failures.append(failure_text(error))
            for row in (f"ssd.{name}.served", f"ssd.{name}.first_s"):
                outcome.whys.setdefault(row, failures[-1])
        finally:
            peer.close()
    return outcome, "; ".join(failures)


def records(peer: str, number: int, outcome: Outcome, failure: str) -> Iterator[Record]:
    for kind in KINDS:
        value = outcome.values.get(kind.name)
        why = outcome.whys.get(kind.name, "") or ("" if value is not None else failure or "nothing was served")
        yield Record(kind.name, peer, number, value, why)
