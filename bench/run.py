"""Runs every benchmark, prints the rows and writes them to one JSON file. Run by `./dev bench`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench")]

GROUPS = ("native", "python", "engine", "sglang")


def native_rows(build: Path) -> list[dict[str, Any]]:
    program = build / "bench" / "orbitkv-bench"
    manager = build / "apps" / "orbitkv-manager"
    done = subprocess.run([str(program), "--manager", str(manager)], stdout=subprocess.PIPE, text=True, check=True)
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


def sglang_rows(model: Path, small_model: Path) -> list[dict[str, Any]]:
    """Of the environment that has SGLang."""
    import sglang_rig

    result: list[dict[str, Any]] = []
    environment = os.environ | sglang_rig.environment()
    for program, arguments in (("sglang_linker.py", ()), ("sglang_rows.py", (str(model), str(small_model)))):
        command = [str(sglang_rig.python()), str(ROOT / "bench" / program), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        result += json.loads(done.stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="folder of the release build")
    parser.add_argument("--output", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--model", type=Path, default=Path("out/models/smollm2"))
    parser.add_argument("--small-model", type=Path, default=Path("out/models/seeded"))
    parser.add_argument("--only", choices=GROUPS, action="append", help="run only this group (may be repeated)")
    options = parser.parse_args()
    chosen = options.only or GROUPS
    rows: list[dict[str, Any]] = []
    if "native" in chosen:
        print("native: channel, look-up and copies", flush=True)
        rows += native_rows(options.build)
    if "python" in chosen:
        import python_ipc
        import python_rows

        print("python: look-up and restore through the client API, round trips beside iceoryx2", flush=True)
        rows += python_rows.rows()
        rows += python_ipc.rows()
    if "engine" in chosen:
        import callback_share
        import engine_cost
        import engine_hits
        import engine_overhead
        import engine_ttft

        print("engine: vLLM with the connector on and off, and restoring (about ten minutes)", flush=True)
        rows += engine_ttft.rows(options.model)
        rows += engine_hits.rows(options.model)
        rows += engine_overhead.rows(options.model)
        rows += callback_share.rows(options.model)
        rows += engine_cost.rows(options.small_model)
    if "sglang" in chosen:
        print("sglang: SGLang with the linker on and off, and restoring (about five minutes)", flush=True)
        rows += sglang_rows(options.model, options.small_model)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{'name':<38}{'value':>12} {'unit':<6}{'baseline':>44}{'':>12}{'ratio':>9}")
    for row in rows:
        baseline = row.get("baseline") or ""
        value = row.get("baseline_value")
        ratio = row.get("ratio")
        print(
            f"{row['name']:<38}{row['value']:>12.3f} {row['unit']:<6}{baseline:>44}"
            f"{'' if value is None else f'{value:.3f}':>12}{'' if ratio is None else f'{ratio:.3f}':>9}"
        )
    print(f"\nwritten: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
