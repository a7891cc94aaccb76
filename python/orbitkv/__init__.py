"""OrbitKV: keeps completed KV-cache blocks outside the inference engine.

A client talks to the Cache Manager of this host::

    options = orbitkv.ClientOptions(
        socket="/run/orbitkv/manager.sock", instance="engine-1", role="both",
        computation_digest=..., representation_digest=...,
    )
    client = orbitkv.Client(options)
    client.register_layout([orbitkv.Layer.of(array) for array in pages], block_tokens=32)
    job = client.publish(orbitkv.BlockHashes(hashes), block_ids)

Importing this package imports neither numpy nor torch nor an engine.
"""

from orbitkv._native import (
    Answer,
    BlockHashes,
    CancelToken,
    Client,
    Completion,
    Contract,
    DigestBuilder,
    Error,
    ForkedError,
    InvalidArgument,
    LayoutError,
    UnavailableError,
    __version__,
    computation_digest,
    identify_weights,
    representation_digest,
    status,
)
from orbitkv.layout import Group, Layer
from orbitkv.options import ClientOptions
from orbitkv.weights import weights_digest

__all__ = [
    "Answer",
    "BlockHashes",
    "CancelToken",
    "Client",
    "ClientOptions",
    "Completion",
    "Contract",
    "DigestBuilder",
    "Error",
    "ForkedError",
    "Group",
    "InvalidArgument",
    "Layer",
    "LayoutError",
    "UnavailableError",
    "__version__",
    "computation_digest",
    "identify_weights",
    "representation_digest",
    "status",
    "weights_digest",
]
