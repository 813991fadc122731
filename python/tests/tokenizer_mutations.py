"""Damaged tokenizer folders, and a program that tries them.

`python tokenizer_mutations.py FOLDER FIRST COUNT` mutates the files of FOLDER by the seeds FIRST,
FIRST + 1, … and serves each result.

A program of its own, since a fault in the Rust half of `tokenizers` could end the process. It prints
one JSON object: how many folders were read and how many refused, and what is wrong.
"""

from __future__ import annotations

import copy
import io
import json
import pathlib
import random
import signal
import struct
import sys
import tempfile
from typing import Any

from halfstep import tokenize

SECONDS_PER_FOLDER = 20
SPECIAL: list[Any] = [
    None, True, 0, -1, 1.5, 2**31, 2**32, 2**63, 2**64, 1e300, "", "a", "\0", "BPE", "WordLevel",
    "Unigram", "ByteLevel", [], {}, [[]], ["a", 1], "(" * 50, "(a*)*$", "\\p{L}+",
]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    out = []
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            out.append((value, key))
            out += _places(value[key])
    return out


def _mutate_json(document: Any, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 4)):
        places = _places(document)
        # Half of the time in what is small: the vocabulary and the merges are most of the file.
        if rng.random() < 0.5:
            places = [(container, key) for container, key in places if len(container) < 50]
        if not places:
            return
        container, key = rng.choice(places)
        choice = rng.randrange(5)
        if choice == 0:
            del container[key]
        elif choice == 1:
            source, at = rng.choice(places)
            container[key] = copy.deepcopy(source[at])
        elif choice == 2 and isinstance(container[key], int):
            container[key] = container[key] + rng.choice([-1, 1, 2**16, 2**31, 2**32])
        elif choice == 3 and isinstance(container[key], str):
            text, at = container[key], rng.randint(0, len(container[key]))
            insert = rng.choice(["", "\0", "ä", "(", "x" * 300])
            container[key] = text[:at] + insert + text[at + 1 :]
        else:
            container[key] = copy.deepcopy(rng.choice(SPECIAL))


def mutate(content: bytes, rng: random.Random) -> bytes:
    """A few changes: to the JSON most of the time, else to the bytes."""
    if rng.random() < 0.75:
        document = json.loads(content)
        _mutate_json(document, rng)
        return json.dumps(document).encode()
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        insert = rng.choice([b"", b"{", b'"', b"\xff", b"9" * 20])
        data[at : at + rng.choice([0, 1, 1, 40])] = insert
    return bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.2 else data)


def damage(source: pathlib.Path, target: pathlib.Path, seed: int) -> None:
    """Copies a folder's JSON files, one of them mutated."""
    rng = random.Random(seed)
    files = sorted(source.glob("*.json"))
    chosen = rng.choice(files)
    for file in files:
        content = file.read_bytes()
        (target / file.name).write_bytes(mutate(content, rng) if file == chosen else content)


def _requests() -> bytes:
    texts = [b"don't stop", b"", "naïve \U0001f600".encode()]
    encode = b"".join(struct.pack("<Q", len(t)) + t for t in texts)
    decode = struct.pack("<QQ3i", 1, 3, 5, 6, 7)
    return b"".join(
        tokenize.HEADER.pack(tokenize.MAGIC, code, len(body)) + body
        for code, body in [
            (tokenize.ENCODE, struct.pack("<Q", len(texts)) + encode),
            (tokenize.DECODE, decode),
        ]
    )


def serve(folder: pathlib.Path) -> list[int]:
    """The codes of the answers of a child for this folder."""
    output = io.BytesIO()
    tokenize.serve(str(folder), io.BytesIO(_requests()), output)
    rest, codes = output.getvalue(), []
    while rest:
        _, code, size = tokenize.HEADER.unpack_from(rest)
        codes.append(code)
        rest = rest[tokenize.HEADER.size + size :]
    return codes


def main() -> None:
    source, first, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    result: dict[str, Any] = {"read": 0, "refused": 0, "wrong": []}
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            damage(source, folder, seed)
            signal.alarm(SECONDS_PER_FOLDER)  # a hang ends the program
            try:
                codes = serve(folder)
            except BaseException as error:  # Rust's panics are no Exception
                result["wrong"].append(f"seed {seed}: {type(error).__name__}: {error}"[:300])
                continue
            finally:
                signal.alarm(0)
            if codes and codes[0] == tokenize.OK and len(codes) == 3:
                result["read"] += 1
            elif codes == [tokenize.BAD_REQUEST]:
                result["refused"] += 1
            else:
                result["wrong"].append(f"seed {seed}: answers {codes}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
