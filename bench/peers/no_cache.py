"""vLLM without a connector: what every cache is compared with."""

from __future__ import annotations

from peer import Config, Peer


class NoCache(Peer):
    name = "none"
    label = "no connector"

    def start(self, config: Config) -> None:
        pass
