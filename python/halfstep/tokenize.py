"""Works a Hugging Face tokenizer folder for the C++ program, over standard input and output.

Started as `python -m halfstep.tokenize FOLDER`. The protocol is written down in
src/halfstep/data/pipe_tokenizer.h; little endian, every message is

    magic "hstk" | uint8 code | uint64 payload bytes | payload

This side greets first (vocabulary size, end-of-document id), then answers one message per request
until its input ends. The folder needs a tokenizer.json; the end-of-document token is taken from
tokenizer_config.json or special_tokens_map.json (`eos_token`), else config.json (`eos_token_id`).
Needs the package `tokenizers` and nothing else.
"""

from __future__ import annotations

import array
import json
import os
import pathlib
import struct
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import tokenizers

MAGIC = b"hstk"
VERSION = 2
HEADER = struct.Struct("<4sBQ")
ENCODE, DECODE = 1, 2
OK, BAD_REQUEST, MISSING_PACKAGE = 0, 1, 2


class BadRequest(Exception):
    """What was asked for cannot be done; the message goes to the user."""


class FolderTokenizer:
    """The tokenizer of a Hugging Face folder: text to ids and back, nothing added, nothing cut.

    Raises BadRequest if the folder cannot be used and ImportError without `tokenizers`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        import tokenizers

        path = pathlib.Path(folder) / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise BadRequest(f"cannot read {path.name}: {error}") from error
        # A tokenizer.json may carry the settings of somebody's fine-tuning.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._ids = frozenset(self._tokenizer.get_vocab(with_added_tokens=True).values())
        #: One more than the largest id (ids may have gaps).
        self.vocab_size: int = max(self._ids, default=-1) + 1
        #: The id that ends a document, -1 if the folder names none.
        self.eod: int = find_eod(pathlib.Path(folder), self._tokenizer)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, without special tokens around it."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, texts: list[list[int]]) -> list[str]:
        """Text of each list of ids, special tokens written out."""
        for ids in texts:
            # A set, since asking the package for each token takes as long as decoding it.
            if not self._ids.issuperset(ids):
                unknown = next(token for token in ids if token not in self._ids)
                raise BadRequest(f"token {unknown} is not in the vocabulary of {self.vocab_size}")
        return self._tokenizer.decode_batch(texts, skip_special_tokens=False)


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadRequest(f"cannot read {path.name}: {error}") from error
    if not isinstance(content, dict):
        raise BadRequest(f"cannot read {path.name}: expected a JSON object")
    return content


def find_eod(folder: pathlib.Path, tokenizer: "tokenizers.Tokenizer") -> int:
    """The id of the end-of-document token of a folder, -1 if it has none.

    Raises BadRequest if a file names a token that the vocabulary does not have.
    """
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read_json(folder / name).get("eos_token")
        if isinstance(token, dict):  # an AddedToken
            token = token.get("content")
        if token is not None:
            eod = tokenizer.token_to_id(token)
            if eod is None:
                raise BadRequest(f"{name}: eos_token {token!r} is not in the vocabulary")
            return eod
    eod = _read_json(folder / "config.json").get("eos_token_id")
    if isinstance(eod, list):
        eod = eod[0] if eod else None
    if eod is None:
        return -1
    if tokenizer.id_to_token(eod) is None:
        raise BadRequest(f"config.json: eos_token_id {eod} is not in the vocabulary")
    return eod


def _ids_to_bytes(ids: list[int]) -> bytes:
    numbers = array.array("i", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _bytes_to_ids(data: memoryview) -> list[int]:
    numbers = array.array("i", data.tobytes())
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _answer_encode(tokenizer: FolderTokenizer, payload: memoryview) -> bytes:
    (count,) = struct.unpack_from("<Q", payload, 0)
    at, texts = 8, []
    for number in range(count):
        (size,) = struct.unpack_from("<Q", payload, at)
        at += 8 + size
        try:
            texts.append(str(payload[at - size : at], "utf-8"))
        except UnicodeDecodeError as error:
            which = f"text {number}: " if count > 1 else ""
            raise BadRequest(f"{which}not UTF-8 at byte {error.start}") from error
    answer = bytearray()
    for ids in tokenizer.encode(texts):
        answer += struct.pack("<Q", len(ids)) + _ids_to_bytes(ids)
    return bytes(answer)


def _answer_decode(tokenizer: FolderTokenizer, payload: memoryview) -> bytes:
    (count,) = struct.unpack_from("<Q", payload, 0)
    at, texts = 8, []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", payload, at)
        at += 8 + 4 * size
        texts.append(_bytes_to_ids(payload[at - 4 * size : at]))
    answer = bytearray()
    for text in tokenizer.decode(texts):
        content = text.encode("utf-8")
        answer += struct.pack("<Q", len(content)) + content
    return bytes(answer)


def _write(output: BinaryIO, code: int, payload: bytes) -> None:
    output.write(HEADER.pack(MAGIC, code, len(payload)))
    output.write(payload)
    output.flush()


def serve(folder: str, requests: BinaryIO, answers: BinaryIO) -> None:
    """Greets on `answers`, then answers `requests` until they end."""
    try:
        tokenizer = FolderTokenizer(folder)
    except ImportError as error:
        _write(answers, MISSING_PACKAGE, f"{sys.executable}: {error}".encode())
        return
    except BadRequest as error:
        _write(answers, BAD_REQUEST, str(error).encode())
        return
    _write(answers, OK, struct.pack("<Iqq", VERSION, tokenizer.vocab_size, tokenizer.eod))
    handlers = {ENCODE: _answer_encode, DECODE: _answer_decode}
    while header := requests.read(HEADER.size):
        magic, code, size = HEADER.unpack(header)
        if magic != MAGIC or code not in handlers:
            raise RuntimeError(f"not a request: {header!r}")
        payload = memoryview(requests.read(size))
        if len(payload) != size:
            return  # the other side died in the middle
        try:
            answer = handlers[code](tokenizer, payload)
        except BadRequest as error:
            _write(answers, BAD_REQUEST, str(error).encode())
        else:
            _write(answers, OK, answer)


def main() -> int:
    """Entry point of `python -m halfstep.tokenize FOLDER`."""
    if len(sys.argv) != 2:
        print("usage: python -m halfstep.tokenize FOLDER", file=sys.stderr)
        return 2
    # Whatever a library prints must not end up between the messages.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin.buffer, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
