"""The environment of vLLM processes on CPUs: nothing from a network, no thread bound to a processor."""

from __future__ import annotations

VLLM = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Of engines with small models, beside others on few processors: one thread, and block hashes that all of them repeat.
SMALL_ENGINE = VLLM | {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "PYTHONHASHSEED": "0",
}
# Scheduler and worker in the process that made the engine.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
