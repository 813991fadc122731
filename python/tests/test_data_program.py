"""`halfstep data` from outside: exact ids through the pipe, bad lines, bounded memory, exit codes."""

import json
import os
import stat
import subprocess
import sys

import pytest

import golden_corpus
from conftest import EOD

BAD_INPUT = 3
USAGE = 2


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    return path


def export(halfstep, prefix, *args):
    output = prefix.with_suffix(".exported.jsonl")
    halfstep("data", "export", prefix, "--output", output, *args)
    return [json.loads(line) for line in output.read_bytes().splitlines()]


@pytest.fixture
def build(halfstep, tmp_path):
    """Builds tmp_path/out from JSONL of the given texts, returns the prefix."""

    def run(texts, *args, **kwargs):
        source = write_jsonl(tmp_path / "in.jsonl", texts)
        prefix = tmp_path / "out"
        halfstep("data", "build", "--input", source, "--output-prefix", prefix, *args, **kwargs)
        return prefix

    return run


def test_ids_through_the_pipe_equal_the_package(halfstep, build, bpe, bpe_folder):
    # Documents without text are left out.
    texts = [text for text in golden_corpus.strings() if text]
    prefix = build(texts, "--tokenizer", bpe_folder)
    documents = export(halfstep, prefix)
    assert len(documents) == len(texts)
    eod = bpe.token_to_id(EOD)
    for text, document in zip(texts, documents, strict=True):
        assert document["ids"] == [*bpe.encode(text, add_special_tokens=False).ids, eod], repr(text)
    back = export(halfstep, prefix, "--tokenizer", bpe_folder)
    assert [document["text"] for document in back] == texts
    halfstep("data", "verify", prefix, "--vocab-size", 1000, "--eod", eod)


def test_bytes_come_back(halfstep, build):
    texts = [text for text in golden_corpus.strings() if text]
    prefix = build(texts, "--tokenizer", "byte")
    documents = export(halfstep, prefix)
    for text, document in zip(texts, documents, strict=True):
        assert document["ids"] == [*text.encode(), 256]
    back = export(halfstep, prefix, "--tokenizer", "byte")
    assert [document["text"] for document in back] == texts


def test_without_end_markers(halfstep, build):
    prefix = build(["ab", "c"], "--no-append-eod")
    assert export(halfstep, prefix) == [{"ids": [97, 98]}, {"ids": [99]}]
    process = halfstep("data", "verify", prefix, "--eod", 256, exit_code=BAD_INPUT)
    assert "document 0 does not end with the end marker 256" in process.stderr


def test_any_other_file_is_one_document(halfstep, tmp_path):
    files = [tmp_path / "a.py", tmp_path / "b.txt"]
    files[0].write_bytes(b"x = 1\n\n\xff")
    files[1].write_bytes(b"two\nlines")
    prefix = tmp_path / "out"
    halfstep("data", "build", "--input", *files, "--output-prefix", prefix)
    expected = [{"ids": [*file.read_bytes(), 256]} for file in files]
    assert export(halfstep, prefix) == expected
    # JSON cannot hold the first one as text.
    process = halfstep(
        "data", "export", prefix, "--tokenizer", "byte", "--output", tmp_path / "e", exit_code=BAD_INPUT
    )
    assert "document 0 is not UTF-8" in process.stderr
    assert not (tmp_path / "e").exists()


BAD_LINES = '{"text": "one"}\n{"text": "two"}\n{"text": "thr\n{"text": "four"}\n'


def test_a_bad_line_is_named_and_nothing_is_written(halfstep, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(BAD_LINES)
    before = sorted(tmp_path.iterdir())
    process = halfstep(
        "data", "build", "--input", source, "--output-prefix", tmp_path / "out", exit_code=BAD_INPUT
    )
    assert "in.jsonl:3" in process.stderr
    assert "--on-bad-line skip" in process.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_skipped_lines_are_counted_and_listed(halfstep, tmp_path):
    source, prefix = tmp_path / "in.jsonl", tmp_path / "out"
    source.write_text(BAD_LINES)
    command = ["data", "build", "--input", source, "--output-prefix", prefix, "--on-bad-line", "skip"]
    process = halfstep(*command)
    assert "skipped 1 bad lines" in process.stdout
    (listed,) = map(json.loads, (tmp_path / "out.bad.jsonl").read_text().splitlines())
    assert (listed["file"], listed["line"]) == (str(source), 3)
    assert listed["content"] == '{"text": "thr'
    texts = [d["text"] for d in export(halfstep, prefix, "--tokenizer", "byte")]
    assert texts == ["one", "two", "four"]
    # A later build without bad lines leaves no list that speaks of them.
    source.write_text('{"text": "one"}\n')
    halfstep(*command)
    assert not (tmp_path / "out.bad.jsonl").exists()


def test_text_that_is_not_utf8_is_named(halfstep, tmp_path, bpe_folder):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    process = halfstep(
        "data", "build", "--input", tmp_path / "good.txt", tmp_path / "bad.txt",
        "--output-prefix", tmp_path / "out", "--tokenizer", bpe_folder, exit_code=BAD_INPUT,
    )  # fmt: skip
    assert "bad.txt" in process.stderr
    assert "not UTF-8 at byte 2" in process.stderr


def test_ids_above_65535_are_stored_in_32_bits(halfstep, build, wide_folder):
    prefix = build(["a b"], "--tokenizer", wide_folder, "--no-append-eod")
    assert export(halfstep, prefix) == [{"ids": [0, 70000]}]
    assert json.loads(halfstep("data", "verify", prefix, "--json").stdout) == {
        "documents": 1, "empty_documents": 0, "sequences": 1, "tokens": 2,
        "dtype": "int32", "max_id": 70000,
    }  # fmt: skip
    process = halfstep("data", "verify", prefix, "--vocab-size", 70000, exit_code=BAD_INPUT)
    assert "token 70000 at position 1" in process.stderr


def test_16_bits_are_refused_for_a_larger_vocabulary(halfstep, build):
    prefix = build(["a"])
    process = halfstep("data", "verify", prefix, "--vocab-size", 151936, exit_code=BAD_INPUT)
    assert "uint16 holds ids up to 65535" in process.stderr


def test_a_folder_without_end_marker_needs_the_flag(halfstep, tmp_path, wide_folder):
    source = write_jsonl(tmp_path / "in.jsonl", ["a"])
    process = halfstep(
        "data", "build", "--input", source, "--output-prefix", tmp_path / "out",
        "--tokenizer", wide_folder, exit_code=BAD_INPUT,
    )  # fmt: skip
    assert "--no-append-eod" in process.stderr


def interpreter_without_packages(tmp_path, python_path):
    """A Python that finds only the modules under python_path."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={python_path} exec {sys.executable} -S "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def test_a_missing_package_comes_with_the_pip_line(halfstep, tmp_path, bpe_folder, build):
    import halfstep as package

    python_path = os.path.dirname(os.path.dirname(package.__file__))
    env = {"HALFSTEP_PYTHON": interpreter_without_packages(tmp_path, python_path)}
    source = write_jsonl(tmp_path / "in.jsonl", ["a"])
    command = ["data", "build", "--input", source, "--output-prefix", tmp_path / "out"]
    process = halfstep(*command, "--tokenizer", bpe_folder, exit_code=BAD_INPUT, env=env)
    assert "pip install tokenizers" in process.stderr
    env = {"HALFSTEP_PYTHON": interpreter_without_packages(tmp_path, tmp_path)}
    process = halfstep(*command, "--tokenizer", bpe_folder, exit_code=BAD_INPUT, env=env)
    assert "No module named" in process.stderr
    assert "HALFSTEP_PYTHON" in process.stderr
    env = {"HALFSTEP_PYTHON": str(tmp_path / "nowhere")}
    process = halfstep(*command, "--tokenizer", bpe_folder, exit_code=BAD_INPUT, env=env)
    assert "cannot start" in process.stderr


def test_flags_that_do_not_exist_and_missing_files(halfstep, tmp_path):
    halfstep("data", "build", "--inputs", "x", exit_code=USAGE)
    halfstep("data", exit_code=USAGE)
    process = halfstep("data", "verify", tmp_path / "none", exit_code=BAD_INPUT)
    assert "none.bin" in process.stderr
    process = halfstep(
        "data", "build", "--input", tmp_path / "none.txt", "--output-prefix", tmp_path / "out",
        exit_code=BAD_INPUT,
    )  # fmt: skip
    assert "none.txt" in process.stderr


PEAK_OF_CHILD = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_bytes(*command):
    """Peak resident memory of one process, started by a small one: a child counts its parent's pages
    until it has become the program."""
    command = [sys.executable, "-S", "-c", PEAK_OF_CHILD, *map(str, command)]
    return int(subprocess.run(command, check=True, capture_output=True).stdout) * 1024


def test_memory_does_not_grow_with_the_data(tmp_path):
    # Both fill several batches of 4096 documents, so the larger one should need nothing more. With
    # its ids in memory it would need 4 bytes × 65 ids × 187 000 documents = 49 MB more, with its text
    # 12 MB. Allowed: 4 MB, for an allocator that grows in other places.
    line = json.dumps({"text": "x" * 64}) + "\n"
    peaks = []
    for name, lines in (("small", 13_000), ("large", 200_000)):
        source, prefix = tmp_path / f"{name}.jsonl", tmp_path / name
        source.write_text(line * lines)
        command = ["data", "build", "--input", source, "--output-prefix", prefix]
        peaks.append(peak_bytes(os.environ["HALFSTEP_BINARY"], *command))
    assert peaks[1] - peaks[0] < 4e6
