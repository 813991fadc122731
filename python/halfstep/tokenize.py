"""Works a Hugging Face tokenizer folder for the C++ program, over standard input and output.

Started as `python -m halfstep.tokenize FOLDER`. The protocol is written down in
src/halfstep/data/pipe_tokenizer.h; little endian, every message is

    magic "hstk" | uint8 code | uint64 payload bytes | payload

This side greets first (vocabulary size, end-of-document id, special tokens in front of a text), then
answers one message per request until its input ends. The folder needs a tokenizer.json; the
end-of-document token is taken from tokenizer_config.json or special_tokens_map.json (`eos_token`), else
config.json (`eos_token_id`). Needs the package `tokenizers`, and `jinja2` for conversations.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import pathlib
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from halfstep.chat_template import ChatTemplate
from halfstep.folder import BadRequest, read_json, token_text

if TYPE_CHECKING:
    import tokenizers

MAGIC = b"hstk"
VERSION = 3
HEADER = struct.Struct("<4sBQ")
ENCODE, DECODE, CHAT, PROMPT = 1, 2, 3, 4
OK, BAD_REQUEST, MISSING_PACKAGE = 0, 1, 2


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """Makes a BadRequest of whatever the package raises: plain Exception, or a panic of its Rust half,
    which is no Exception."""
    try:
        yield
    except (BadRequest, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise BadRequest(f"{what}: {error}") from error


class FolderTokenizer:
    """The tokenizer of a Hugging Face folder: text to ids and back, nothing added, nothing cut.

    Raises BadRequest if the folder cannot be used and ImportError without `tokenizers`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        import tokenizers

        self._folder = pathlib.Path(folder)
        path = self._folder / "tokenizer.json"
        with _refused(f"cannot read {path.name}"):
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        # A tokenizer.json may carry the settings of somebody's fine-tuning.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._ids = frozenset(self._tokenizer.get_vocab(with_added_tokens=True).values())
        #: One more than the largest id (ids may have gaps).
        self.vocab_size: int = max(self._ids, default=-1) + 1
        if not 0 < self.vocab_size <= 2**31:
            raise BadRequest(f"cannot use {path.name}: {self.vocab_size} ids, expected 1 to 2^31")
        #: The id that ends a document, -1 if the folder names none.
        self.eod: int = find_eod(self._folder, self._tokenizer)
        #: The special tokens that the tokenizer itself puts in front of a text (a BOS; often none).
        self.prefix: list[int] = find_prefix(self._tokenizer)
        self._chat_template: ChatTemplate | None = None

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, without special tokens around it."""
        with _refused("the tokenizer failed"):
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_chats(self, conversations: list[dict[str, Any]]) -> list[tuple[list[int], bytes]]:
        """Ids of each conversation and, for each id, whether a model is to learn it (chat_template)."""
        return [self._template().encode(conversation) for conversation in conversations]

    def chat_prompt(self, message: str) -> tuple[list[int], int]:
        """The ids that ask for an answer to a message, and the token that ends the answer or -1."""
        return self._template().prompt(message)

    def _template(self) -> ChatTemplate:
        if self._chat_template is None:
            self._chat_template = ChatTemplate(self._folder, self._tokenizer)
        return self._chat_template

    def decode(self, texts: list[list[int]]) -> list[str]:
        """Text of each list of ids, special tokens written out."""
        for ids in texts:
            # A set, since asking the package for each token takes as long as decoding it.
            if not self._ids.issuperset(ids):
                unknown = next(token for token in ids if token not in self._ids)
                raise BadRequest(f"token {unknown} is not in the vocabulary of {self.vocab_size}")
        with _refused("the tokenizer failed"):
            return self._tokenizer.decode_batch(texts, skip_special_tokens=False)


def find_eod(folder: pathlib.Path, tokenizer: "tokenizers.Tokenizer") -> int:
    """The id of the end-of-document token of a folder, -1 if it has none.

    Raises BadRequest if a file names a token that the vocabulary does not have.
    """
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = token_text(read_json(folder / name).get("eos_token"))
        if token is not None:
            eod = tokenizer.token_to_id(token)
            if eod is None:
                raise BadRequest(f"{name}: eos_token {token!r} is not in the vocabulary")
            return eod
    eod = read_json(folder / "config.json").get("eos_token_id")
    if isinstance(eod, list):
        eod = eod[0] if eod else None
    if eod is None:
        return -1
    if not isinstance(eod, int) or isinstance(eod, bool):
        raise BadRequest(f"config.json: eos_token_id is {eod!r:.60}, expected a number")
    if not 0 <= eod < 2**31 or tokenizer.id_to_token(eod) is None:
        raise BadRequest(f"config.json: eos_token_id {eod} is not in the vocabulary")
    return eod


def find_prefix(tokenizer: "tokenizers.Tokenizer") -> list[int]:
    """The special tokens that a tokenizer's post-processor puts in front of every text."""
    with _refused("the tokenizer failed"):
        encoding = tokenizer.encode("a", add_special_tokens=True)
    count = next((i for i, special in enumerate(encoding.special_tokens_mask) if not special), 0)
    return encoding.ids[:count]


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


def _texts(payload: memoryview) -> list[str]:
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
    return texts


def _answer_encode(tokenizer: FolderTokenizer, payload: memoryview) -> bytes:
    answer = bytearray()
    for ids in tokenizer.encode(_texts(payload)):
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


def _answer_chat(tokenizer: FolderTokenizer, payload: memoryview) -> bytes:
    answer = bytearray()
    for ids, learned in tokenizer.encode_chats([json.loads(text) for text in _texts(payload)]):
        answer += struct.pack("<Q", len(ids)) + _ids_to_bytes(ids) + learned
    return bytes(answer)


def _answer_prompt(tokenizer: FolderTokenizer, payload: memoryview) -> bytes:
    answer = bytearray()
    for message in _texts(payload):
        ids, end = tokenizer.chat_prompt(message)
        answer += struct.pack("<Q", len(ids)) + _ids_to_bytes(ids) + struct.pack("<q", end)
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
    greeting = struct.pack("<IqqQ", VERSION, tokenizer.vocab_size, tokenizer.eod, len(tokenizer.prefix))
    _write(answers, OK, greeting + _ids_to_bytes(tokenizer.prefix))
    handlers = {ENCODE: _answer_encode, DECODE: _answer_decode, CHAT: _answer_chat, PROMPT: _answer_prompt}
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
        except ImportError as error:
            _write(answers, MISSING_PACKAGE, f"{sys.executable}: {error}".encode())
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
