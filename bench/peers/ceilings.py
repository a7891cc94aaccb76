"""What the machine can do right now, without any cache: taken before each pass, and compared between passes.

A pass in which the machine did something else as well says little about a cache. It shows in how fast plain memory is
copied and how much goes over loopback.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from peer import BLOCKS, HOST, SIZES, Geometry, gbps
from report import CEILING, Record

# A pass is off when a ceiling differs from the median of all passes by more than this share of it.
OFF = 0.3
LOOPBACK = "loopback"


def copy_gbps(geometry: Geometry) -> float:
    """The same pages copied by one thread from one process's memory to itself, in mixed order."""
    import numpy as np

    source = np.ones((BLOCKS, geometry.block_bytes), dtype=np.uint8)
    target = np.zeros_like(source)
    order = np.random.default_rng(3).permutation(BLOCKS)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        for number, page in enumerate(order):
            target[number] = source[page]
        seconds.append(time.perf_counter() - begin)
    return gbps(geometry, seconds[1:])


def loopback_gbps(size: int = 512 << 20) -> float:
    """One stream over TCP from one thread to another."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]

        def send() -> None:
            piece = bytes(1 << 20)
            with socket.create_connection((HOST, port)) as stream:
                for _ in range(size // len(piece)):
                    stream.sendall(piece)

        sender = threading.Thread(target=send)
        sender.start()
        connection, _ = listener.accept()
        buffer = bytearray(1 << 20)
        begin = time.perf_counter()
        with connection:
            while connection.recv_into(buffer):
                pass
        seconds = time.perf_counter() - begin
        sender.join()
    return size / seconds / 1e9


def measure() -> dict[str, float]:
    """GB/s by what is moved."""
    return {size: copy_gbps(geometry) for size, geometry in SIZES.items()} | {LOOPBACK: loopback_gbps()}


def off(passes: Sequence[Mapping[str, float]]) -> list[int]:
    """The passes in which the machine was another one than in most of them."""
    found = []
    for number, mine in enumerate(passes):
        for name, value in mine.items():
            middle = statistics.median(ceilings[name] for ceilings in passes)
            if abs(value - middle) > OFF * middle:
                found.append(number)
                break
    return found


def records(number: int, found: Mapping[str, float]) -> Iterator[Record]:
    """The column of the data path's table that no peer has."""
    for size in SIZES:
        yield Record(f"save.{size}", CEILING, number, found[size])
        yield Record(f"load.{size}", CEILING, number, found[size])
    yield Record(LOOPBACK, CEILING, number, found[LOOPBACK])
