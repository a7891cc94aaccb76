"""Replays the recorded traces against every eviction policy: a table and a JSON file. Run by `./dev bench-policy`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TRACES = Path(__file__).resolve().parent / "traces"
SIZES = ("1000", "3000", "10000", "30000")
POLICIES = ("reuse", "lru", "slru", "s3-fifo", "w-tinylfu", "arc", "belady")
WORKLOADS = ("flood", "shift", "prompts", "agents")


def replay(program: Path, source: list[str], policies: tuple[str, ...]) -> list[dict[str, Any]]:
    command = [str(program), "replay", *source, "--policy", *policies, "--blocks", *SIZES, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def table(rows: list[dict[str, Any]], field: str) -> None:
    cells = list(dict.fromkeys((row["trace"], row["blocks"]) for row in rows))
    value = {(row["policy"], row["trace"], row["blocks"]): float(row[field]) for row in rows}
    print(f"{field:<18}" + "".join(f"{f'{trace[:6]} {blocks}':>14}" for trace, blocks in cells) + f"{'mean':>9}")
    fixed = [policy for policy in POLICIES if policy not in ("reuse", "belady")]
    lines = {policy: [value[(policy, *cell)] for cell in cells] for policy in POLICIES}
    lines["best fixed"] = [max(value[(policy, *cell)] for policy in fixed) for cell in cells]
    lines["reuse / best fixed"] = [ours / best for ours, best in zip(lines["reuse"], lines["best fixed"], strict=True)]
    for name, line in lines.items():
        print(f"{name:<18}" + "".join(f"{one:>14.4f}" for one in line) + f"{sum(line) / len(line):>9.4f}")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="folder of the release build")
    parser.add_argument("--output", type=Path, default=Path("out/policy.json"))
    parser.add_argument("--workloads", action="store_true", help="also the generated workloads (printed, not written)")
    options = parser.parse_args()
    program = options.build / "bench" / "orbitkv-bench"
    rows: list[dict[str, Any]] = []
    for trace in ("conversation", "synthetic"):
        rows += replay(program, ["--trace", str(TRACES / f"{trace}.trace")], POLICIES)
    for field in ("hit_ratio", "saved_flops_ratio", "us_per_block"):
        table(rows, field)
    if options.workloads:
        made = [row for name in WORKLOADS for row in replay(program, ["--workload", name], POLICIES)]
        table(made, "hit_ratio")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
