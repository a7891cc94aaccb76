"""Starts and stops the real processes that the demo, the benchmarks and the tests run: Managers and vLLM servers."""
