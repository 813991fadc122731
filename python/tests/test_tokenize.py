"""halfstep.tokenize: the child that works Hugging Face tokenizers for the C++ program."""

import io
import json
import struct
import subprocess
import sys
import unicodedata

import pytest

import golden_corpus
from conftest import EOD
from halfstep import tokenize


def message(code, payload):
    return tokenize.HEADER.pack(tokenize.MAGIC, code, len(payload)) + payload


def encode_request(*texts):
    body = b"".join(struct.pack("<Q", len(t)) + t for t in texts)
    return message(tokenize.ENCODE, struct.pack("<Q", len(texts)) + body)


def decode_request(*texts):
    body = b"".join(struct.pack(f"<Q{len(ids)}i", len(ids), *ids) for ids in texts)
    return message(tokenize.DECODE, struct.pack("<Q", len(texts)) + body)


def converse(folder, requests):
    """The (code, payload) of each message that serve() writes."""
    output = io.BytesIO()
    tokenize.serve(str(folder), io.BytesIO(requests), output)
    rest, answers = output.getvalue(), []
    while rest:
        magic, code, size = tokenize.HEADER.unpack_from(rest)
        assert magic == tokenize.MAGIC
        answers.append((code, rest[tokenize.HEADER.size :][:size]))
        rest = rest[tokenize.HEADER.size + size :]
    return answers


def test_the_corpus_is_as_large_as_promised():
    assert len(golden_corpus.strings()) >= 10_000
    categories = {unicodedata.category(c) for c in golden_corpus.category_edges()}
    assert len(categories) == 29  # all of the standard's 30 but surrogates, which are no text


def test_encodes_and_decodes_like_the_package(bpe, bpe_folder):
    tokenizer = tokenize.FolderTokenizer(bpe_folder)
    texts = list(golden_corpus.strings())
    ids = tokenizer.encode(texts)
    for text, own in zip(texts, ids, strict=True):
        assert own == bpe.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == texts


def test_greets_then_answers(bpe, bpe_folder):
    ids = bpe.encode("don't", add_special_tokens=False).ids
    requests = encode_request(b"don't", b"") + decode_request(ids, [], ids[:1])
    greeting, encoded, decoded = converse(bpe_folder, requests)
    assert greeting == (
        tokenize.OK, struct.pack("<IqqQi", 3, 1000, bpe.token_to_id(EOD), 1, bpe.token_to_id(EOD)))
    assert encoded == (tokenize.OK, struct.pack(f"<Q{len(ids)}iQ", len(ids), *ids, 0))
    first = bpe.decode(ids[:1]).encode()
    texts = [b"don't", b"", first]
    assert first and b"don't".startswith(first)
    assert decoded == (tokenize.OK, b"".join(struct.pack("<Q", len(t)) + t for t in texts))


def test_bad_requests_are_answered_and_do_not_end_it(bpe_folder):
    requests = (
        encode_request(b"good", b"ab\xff")
        + decode_request([5], [6, 1000])
        + decode_request([-1])
        + encode_request(b"good")
    )
    _, not_utf8, unknown, negative, good = converse(bpe_folder, requests)
    assert not_utf8 == (tokenize.BAD_REQUEST, b"text 1: not UTF-8 at byte 2")
    assert unknown == (tokenize.BAD_REQUEST, b"token 1000 is not in the vocabulary of 1000")
    assert negative == (tokenize.BAD_REQUEST, b"token -1 is not in the vocabulary of 1000")
    assert good[0] == tokenize.OK


def test_a_request_cut_short_ends_it_quietly(bpe_folder):
    assert len(converse(bpe_folder, encode_request(b"good")[:-1])) == 1


def test_garbage_ends_it(bpe_folder):
    with pytest.raises(RuntimeError, match="not a request"):
        converse(bpe_folder, b"x" * 13)


def test_truncation_and_padding_of_the_folder_are_off(bpe, bpe_folder, tmp_path):
    content = json.loads((bpe_folder / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": EOD,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    text = "nothing is cut and nothing is added"
    ids = tokenize.FolderTokenizer(tmp_path).encode([text])[0]
    assert ids == bpe.encode(text, add_special_tokens=False).ids
    assert len(ids) > 4


def test_special_tokens_in_front_are_those_of_the_post_processor(bpe_folder, wide_folder, tmp_path):
    assert tokenize.FolderTokenizer(bpe_folder).prefix == [0]  # as Llama's BOS
    assert tokenize.FolderTokenizer(wide_folder).prefix == []
    content = json.loads((bpe_folder / "tokenizer.json").read_text())
    content["post_processor"]["single"].reverse()  # behind the text, as an EOS
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert tokenize.FolderTokenizer(tmp_path).prefix == []


@pytest.mark.parametrize(
    ("files", "eod"),
    [
        ({}, -1),
        ({"tokenizer_config.json": {"eos_token": EOD}}, 0),
        ({"tokenizer_config.json": {"eos_token": {"content": EOD, "lstrip": False}}}, 0),
        ({"tokenizer_config.json": {"eos_token": None}, "config.json": {"eos_token_id": 7}}, 7),
        ({"special_tokens_map.json": {"eos_token": EOD}, "config.json": {"eos_token_id": 7}}, 0),
        ({"config.json": {"eos_token_id": [8, 9]}}, 8),
        ({"config.json": {"eos_token_id": []}}, -1),
    ],
)
def test_where_the_end_of_document_comes_from(bpe, tmp_path, files, eod):
    bpe.save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert tokenize.FolderTokenizer(tmp_path).eod == eod


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"tokenizer_config.json": '{"eos_token": "<none>"}'}, "'<none>' is not in the vocabulary"),
        ({"config.json": '{"eos_token_id": 1000}'}, "1000 is not in the vocabulary"),
        ({"tokenizer_config.json": "{"}, "cannot read tokenizer_config.json"),
        ({"config.json": "[]"}, "expected a JSON object"),
        ({"tokenizer.json": "{}"}, "cannot read tokenizer.json"),
    ],
)
def test_folders_that_contradict_themselves_are_refused(bpe, tmp_path, files, complaint):
    bpe.save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    ((code, payload),) = converse(tmp_path, b"")
    assert code == tokenize.BAD_REQUEST
    assert complaint in payload.decode()


def test_printing_libraries_do_not_disturb_the_pipe(bpe_folder):
    # print() to file descriptor 1 inside the child, between the messages.
    script = (
        "import os, sys, halfstep.tokenize as t\n"
        "real = t.serve\n"
        "t.serve = lambda *a: (os.write(1, b'noise'), print('noise', flush=True), real(*a))\n"
        f"sys.argv = ['tokenize', {str(bpe_folder)!r}]\n"
        "sys.exit(t.main())\n"
    )
    child = subprocess.run([sys.executable, "-c", script], input=b"", capture_output=True, check=True)
    assert child.stdout.startswith(tokenize.MAGIC)
    assert child.stderr.count(b"noise") == 2
