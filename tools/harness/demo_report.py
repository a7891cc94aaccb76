"""What the demos of all engines say at their end: a table, bars, and what went wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .chat_server import Reply
from .demo_stage import median


@dataclass
class Run:
    """One prompt length. Times are milliseconds to the first token.

    `warm_ttft_ms` and `restored_ttft_ms` are the medians of the samples below, which were taken in turn in the same
    restarted engine; `warm_before_ttft_ms` is the median of the engine that was killed, `restored_first_ttft_ms` the
    first request of this prompt after the restart. `target_ttft_ms` is warm + twice the copy time of the restored bytes
    + 10 ms.
    """

    prompt_tokens: int
    cold_ttft_ms: float
    warm_before_ttft_ms: float
    warm_ttft_ms: float
    restored_ttft_ms: float
    restored_first_ttft_ms: float
    restored_tokens: int
    restored_bytes: int
    target_ttft_ms: float
    target_met: bool
    identical: bool
    logprobs_identical: bool
    warm_samples_ms: list[float]
    restored_samples_ms: list[float]


def describe(
    cold: Reply,
    warm_before: list[Reply],
    warm: list[Reply],
    restored: list[Reply],
    restored_tokens: int,
    restored_bytes: int,
    speed_gbps: float,
) -> Run:
    """All replies to one prompt. `restored`: the first one, then those that were taken in turn with `warm`."""
    warm_ms, restored_ms = median(warm), median(restored[1:])
    target_ms = warm_ms + 2 * restored_bytes / (speed_gbps * 1e6) + 10
    everything = [cold, *warm_before, *restored, *warm]
    return Run(
        prompt_tokens=cold.prompt_tokens,
        cold_ttft_ms=round(cold.ttft_ms, 1),
        warm_before_ttft_ms=round(median(warm_before), 1),
        warm_ttft_ms=round(warm_ms, 1),
        restored_ttft_ms=round(restored_ms, 1),
        restored_first_ttft_ms=round(restored[0].ttft_ms, 1),
        restored_tokens=restored_tokens,
        restored_bytes=restored_bytes,
        target_ttft_ms=round(target_ms, 1),
        target_met=restored_ms <= target_ms,
        identical=all(reply.text == cold.text for reply in everything),
        logprobs_identical=all(reply.logprobs == warm_before[-1].logprobs for reply in everything[1:]),
        warm_samples_ms=[round(reply.ttft_ms, 1) for reply in warm],
        restored_samples_ms=[round(reply.ttft_ms, 1) for reply in restored[1:]],
    )


def print_table(runs: list[Run], restart: dict[str, Any], survived: dict[str, dict[str, Any]]) -> None:
    head = ("tokens", "cold ms", "warm ms", "restored ms", "target ms", "speed-up", "MB restored", "text")
    print("\n" + "".join(f"{title:>14}" for title in head))
    for run in runs:
        cells = (
            str(run.prompt_tokens),
            f"{run.cold_ttft_ms:.1f}",
            f"{run.warm_ttft_ms:.1f}",
            f"{run.restored_ttft_ms:.1f}",
            f"{run.target_ttft_ms:.1f}" + ("" if run.target_met else " missed"),
            f"{run.cold_ttft_ms / max(run.restored_ttft_ms, 0.1):.1f}x",
            f"{run.restored_bytes / 1e6:.1f}",
            "identical" if run.identical else "DIFFERENT",
        )
        print("".join(f"{cell:>14}" for cell in cells))
    longest = max(run.cold_ttft_ms for run in runs)
    print("\ntime to the first token")
    for run in runs:
        for name, value in (("cold", run.cold_ttft_ms), ("warm", run.warm_ttft_ms), ("restored", run.restored_ttft_ms)):
            print(f"{run.prompt_tokens:6d} {name:>9} {'█' * max(1, round(60 * value / longest))} {value:.0f} ms")
    print(
        f"\nManager killed under the engine: text {'identical' if restart['identical_while_down'] else 'DIFFERENT'} "
        f"while it was down, reconnected {restart['reconnect_s']} s after the new one was ready, "
        f"{restart['republished_tokens']} tokens published again, {restart['restored_tokens']} restored"
    )
    for name, row in survived.items():
        print(
            f"{name.replace('_', ' ')}: Manager killed, ready again after {row['recovery_s']} s, "
            f"{row['restored_tokens']} tokens restored, text {'identical' if row['identical'] else 'DIFFERENT'}"
        )


def failures(runs: list[Run], restart: dict[str, Any], survived: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    for run in runs:
        if not run.identical:
            found.append(f"the text at {run.prompt_tokens} tokens differs")
        if not run.logprobs_identical:
            found.append(f"the logprobs at {run.prompt_tokens} tokens differ between warm and restored")
        if run.restored_tokens == 0:
            found.append(f"nothing was restored at {run.prompt_tokens} tokens")
    if not restart["identical_while_down"] or not restart["identical_restored"]:
        found.append("the text differs around the Manager's restart")
    if restart["restored_tokens"] == 0 or restart["republished_tokens"] == 0:
        found.append("nothing was restored after the Manager's restart")
    if restart["reconnect_s"] <= 0:
        found.append("the engine did not come back to the new Manager")
    for name, row in survived.items():
        if not row["identical"]:
            found.append(f"{name}: the text differs")
        if row["restored_tokens"] < restart["republished_tokens"] // 2:
            found.append(f"{name}: {row['restored_tokens']} of {restart['republished_tokens']} tokens restored")
    return found


def finish(
    path: Path,
    runs: list[Run],
    restart: dict[str, Any],
    survived: dict[str, dict[str, Any]],
    left: list[str],
) -> int:
    """Writes and prints everything; the exit status. `left`: what the run left behind."""
    result = {"runs": [asdict(run) for run in runs], "manager_restart": restart, **survived}
    path.write_text(json.dumps(result, indent=1) + "\n")
    print_table(runs, restart, survived)
    problems = failures(runs, restart, survived) + [f"left behind: {entry}" for entry in left]
    for problem in problems:
        print(f"demo failed: {problem}", file=sys.stderr)
    print(f"\nwritten: {path}")
    return 1 if problems else 0
