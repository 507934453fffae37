"""Fewer bytes between hosts without losing a bit: what the codec makes of real gradients, beside other ways.

    python benchmarks/codec.py [--imdb ARCHIVE --mnist DIR] [--rounds 5] [--quick] [--out DIR]

Gradients of four models on real data (`real_gradients`), early and late in their training, in pieces of 1 MB. `planes`
is `unisono.collectives.coding.codec`. The others were candidates: zstd and lz4 (the system's libraries, left out where
there are none) over all four byte planes, or over the plane of first bytes with the others as they are; that plane as
numbers of 4 bits into a table of its 15 commonest bytes. A sample is one round over the pieces, one thread.

Without both, as in a quick look, the data are invented.
"""

import ctypes
import ctypes.util
import statistics
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import in_turn, parser_of, rounds_of, save, slug
from real_gradients import gradients
from results import Bar, Result

from unisono.collectives.coding.codec import decode, encode, room

PIECE, PIECES = 1 << 18, 12
STEPS = {"SimpleCNN 0.4 M": (1, 300), "GatedCNN 1.1 M": (1, 100), "MLP 7.9 M": (1, 60), "GPT 10 M": (1, 20)}
QUICK = {"SimpleCNN 0.4 M": (1, 2), "GatedCNN 1.1 M": (1,)}
Way = tuple[Callable[[np.ndarray], object], Callable[[object], np.ndarray], Callable[[object], int]]


def planes_way() -> Way:
    into, out = torch.empty(room(torch.empty(PIECE)), dtype=torch.uint8), torch.empty(PIECE)

    def unpack(message: object) -> np.ndarray:
        decode(message, target := out[: int.from_bytes(message[8:16].numpy().tobytes(), "little")])
        return target.numpy().view(np.uint8)

    return lambda data: encode(torch.from_numpy(data.view(np.float32)), into), unpack, len


def library_way(pack: Callable[[bytes], bytes], unpack: Callable[[bytes, int], bytes], *, only_first: bool) -> Way:
    """Return the way that packs all byte planes, or that of the first bytes alone."""

    def split(data: np.ndarray) -> tuple[int, bytes, bytes]:
        shuffled = np.ascontiguousarray(data.reshape(-1, 4).T[::-1])
        rest = shuffled[1:].tobytes() if only_first else b""
        return len(data), pack((shuffled[0] if only_first else shuffled).tobytes()), rest

    def join(message: object) -> np.ndarray:
        size, packed, rest = message
        shuffled = np.frombuffer(unpack(packed, size // 4 if only_first else size) + rest, np.uint8)
        return np.ascontiguousarray(shuffled.reshape(4, -1)[::-1].T).reshape(-1)

    return split, join, lambda message: len(message[1]) + len(message[2])


def table_way() -> Way:
    """Return the way whose first bytes become numbers of 4 bits; 15 stands for a byte that follows."""

    def pack(data: bytes) -> bytes:
        plane = np.frombuffer(data, np.uint8)
        known = np.argsort(-np.bincount(plane[::8], minlength=256), kind="stable")[:15].astype(np.uint8)
        table = np.full(256, 15, np.uint8)
        table[known] = np.arange(15)
        codes = np.take(table, np.resize(plane, len(plane) + len(plane) % 2))
        rare = plane[codes[: len(plane)] == 15]
        return known.tobytes() + (codes[::2] << 4 | codes[1::2]).tobytes() + rare.tobytes()

    def unpack(data: bytes, size: int) -> bytes:
        packed = np.frombuffer(data, np.uint8)
        half = -(-size // 2)
        pairs = packed[15 : 15 + half]
        codes = np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:size]
        found = np.take(np.append(packed[:15], np.uint8(0)), codes)
        found[codes == 15] = packed[15 + half :]
        return found.tobytes()

    return library_way(pack, unpack, only_first=True)


def system_library(name: str) -> ctypes.CDLL | None:
    found = ctypes.util.find_library(name)
    return None if found is None else ctypes.CDLL(found)


def ways() -> dict[str, Way]:
    """Return every way that can be tried here."""
    found = {"planes": planes_way(), "4 bits": table_way()}
    zstd, lz4 = system_library("zstd"), system_library("lz4")
    if zstd is not None:
        zstd.ZSTD_compress.restype = zstd.ZSTD_decompress.restype = ctypes.c_size_t
        size_t = ctypes.c_size_t

        def with_level(level: int) -> Callable[[bytes], bytes]:
            def pack(data: bytes) -> bytes:
                out = ctypes.create_string_buffer(room_of := len(data) + len(data) // 128 + 512)
                size = zstd.ZSTD_compress(out, size_t(room_of), data, size_t(len(data)), level)
                return out.raw[:size]

            return pack

        def unpack(data: bytes, size: int) -> bytes:
            out = ctypes.create_string_buffer(size)
            zstd.ZSTD_decompress(out, size_t(size), data, size_t(len(data)))
            return out.raw

        for level in (-5, -1, 1, 3):
            found[f"zstd {level}, all planes"] = library_way(with_level(level), unpack, only_first=False)
            found[f"zstd {level}, first bytes"] = library_way(with_level(level), unpack, only_first=True)
    if lz4 is not None:

        def pack_lz4(data: bytes) -> bytes:
            out = ctypes.create_string_buffer(room_of := len(data) + len(data) // 255 + 16)
            size = lz4.LZ4_compress_default(data, out, len(data), room_of)
            return out.raw[:size]

        def unpack_lz4(data: bytes, size: int) -> bytes:
            out = ctypes.create_string_buffer(size)
            lz4.LZ4_decompress_safe(data, out, len(data), size)
            return out.raw

        found["lz4, all planes"] = library_way(pack_lz4, unpack_lz4, only_first=False)
    found["zlib 1, all planes"] = library_way(lambda data: zlib.compress(data, 1),
                                              lambda data, _: zlib.decompress(data), only_first=False)  # fmt: skip
    return found


def entropies(values: np.ndarray) -> dict[str, float]:
    """Return the share of zeros, and the bits of news in each byte of the other numbers, the first byte first."""
    others = values[values.view(np.uint32) != 0].view(np.uint8)
    facts = {"zeros": round(1 - len(others) / values.nbytes, 3)}
    for place in range(4):
        count = np.bincount(others[3 - place :: 4], minlength=256)
        share = count[count > 0] / max(1, count.sum())
        facts[f"bits of byte {place + 1}"] = round(float(-(share * np.log2(share)).sum()), 2)
    return facts


def take(way: Way, pieces: list[np.ndarray]) -> tuple[float, float, float]:
    """Return times fewer bytes, and MB/s of packing and unpacking, all of the pieces; checks every bit."""
    pack, unpack, length = way
    packing = unpacking = coded = 0.0
    for piece in pieces:
        began = time.perf_counter()
        message = pack(piece)
        between = time.perf_counter()
        back = unpack(message)
        unpacking += time.perf_counter() - between
        packing += between - began
        coded += length(message)
        assert np.array_equal(back, piece)
    raw = sum(piece.nbytes for piece in pieces) / 1e6
    return raw * 1e6 / coded, raw / packing, raw / unpacking


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--imdb", type=Path, help="archive of the reviews")
    parser.add_argument("--mnist", type=Path, help="directory of the digits")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found, known, steps = [], ways(), QUICK if given.quick else STEPS
    for taken in gradients(given.imdb, given.mnist, steps):
        values = taken.values.numpy()
        chosen = np.linspace(0, max(0, -(-len(values) // PIECE) - 1), PIECES).astype(int)
        pieces = [values[at * PIECE : (at + 1) * PIECE].view(np.uint8) for at in sorted(set(chosen.tolist()))]
        is_compared = taken.kind == "partial" and taken.step == steps[taken.job][-1]
        tried = known if is_compared else {"planes": known["planes"]}
        times = in_turn({name: partial(take, way, pieces) for name, way in tried.items()}, rounds_of(given))
        for name, samples in times.items():
            ratios, packed, unpacked = (list(each) for each in zip(*samples, strict=True))
            found.append(
                Result.of(
                    slug(f"{taken.job} {taken.step} {taken.kind} {name}"),
                    ratios,
                    topic="Codec",
                    what=f"times fewer bytes, {name}: {taken.job}, step {taken.step}, {taken.kind}",
                    unit="times fewer",
                    bar=Bar(at_least=1.12) if name == "planes" else None,
                    settings={
                        "packs, MB/s": round(statistics.median(packed)),
                        "unpacks, MB/s": round(statistics.median(unpacked)),
                        **(entropies(values) if name == "planes" else {}),
                    },
                )
            )
    save(given, found)


if __name__ == "__main__":
    main()
