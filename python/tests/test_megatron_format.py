"""Our .bin/.idx files against megatron-core's own reader and writer, in both directions."""

import json
import warnings

import numpy
import pytest
import torch

with warnings.catch_warnings():
    # It tells what accelerators it misses; we only want its file format.
    warnings.simplefilter("ignore")
    from megatron.core.datasets import indexed_dataset as megatron


@pytest.fixture
def documents():
    """600 documents of up to 50 tokens below 60000, some of them empty."""
    random = numpy.random.default_rng(1)
    return [random.integers(0, 60_000, size=random.integers(0, 50)) for _ in range(600)]


def write_with_megatron(prefix, dtype, documents, cut=None):
    """One sequence per document, or sequences of at most `cut` tokens."""
    builder = megatron.IndexedDatasetBuilder(str(prefix) + ".bin", dtype=dtype)
    for ids in documents:
        pieces = [len(ids)]
        if cut is not None:
            pieces = [min(cut, len(ids) - at) for at in range(0, len(ids), cut)]
        builder.add_document(numpy.asarray(ids), pieces)
    builder.finalize(str(prefix) + ".idx")


def export(halfstep, prefix):
    output = prefix.with_suffix(".jsonl")
    halfstep("data", "export", prefix, "--output", output)
    return [json.loads(line)["ids"] for line in output.read_text().splitlines()]


def both_files(prefix):
    return [prefix.with_suffix(suffix).read_bytes() for suffix in (".bin", ".idx")]


@pytest.mark.parametrize("dtype", [numpy.uint16, numpy.int32, numpy.int64])
@pytest.mark.parametrize("cut", [None, 16])
def test_we_read_what_megatron_writes(halfstep, tmp_path, documents, dtype, cut):
    prefix = tmp_path / "theirs"
    write_with_megatron(prefix, dtype, documents, cut)
    assert export(halfstep, prefix) == [list(ids) for ids in documents]
    report = json.loads(halfstep("data", "verify", prefix, "--vocab-size", 60_000, "--json").stdout)
    assert report["dtype"] == dtype.__name__
    assert report["documents"] == len(documents)
    assert report["tokens"] == sum(map(len, documents))
    assert report["max_id"] == max(max(ids, default=0) for ids in documents)


def test_megatron_reads_what_we_write(halfstep, tmp_path):
    texts = ["first", "zweites äöü", "3"]
    source, prefix = tmp_path / "in.jsonl", tmp_path / "ours"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    halfstep("data", "build", "--input", source, "--output-prefix", prefix)
    theirs = megatron.IndexedDataset(str(prefix))
    assert [theirs[i].tolist() for i in range(len(theirs))] == [[*t.encode(), 256] for t in texts]
    assert theirs.document_indices.tolist() == [0, 1, 2, 3]
    assert theirs.index.dtype == numpy.uint16


def test_megatron_reads_32_bit_ids(halfstep, tmp_path, wide_folder):
    source, prefix = tmp_path / "in.jsonl", tmp_path / "ours"
    source.write_text('{"text": "a b"}\n{"text": "b"}\n')
    halfstep(
        "data", "build", "--input", source, "--output-prefix", prefix,
        "--tokenizer", wide_folder, "--no-append-eod",
    )  # fmt: skip
    theirs = megatron.IndexedDataset(str(prefix))
    assert theirs.index.dtype == numpy.int32
    assert [theirs[i].tolist() for i in range(len(theirs))] == [[0, 70000], [70000]]


def test_the_same_documents_make_the_same_bytes(halfstep, tmp_path):
    texts = [f"document {i} " * (i % 7 + 1) for i in range(300)]
    source, ours, theirs = tmp_path / "in.jsonl", tmp_path / "ours", tmp_path / "theirs"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    halfstep("data", "build", "--input", source, "--output-prefix", ours)
    write_with_megatron(theirs, numpy.uint16, [[*text.encode(), 256] for text in texts])
    assert both_files(ours) == both_files(theirs)


def test_merging_makes_the_same_bytes(halfstep, tmp_path, documents):
    parts = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    write_with_megatron(parts[0], numpy.int32, documents[:100])
    write_with_megatron(parts[1], numpy.int32, documents[100:], cut=16)
    write_with_megatron(parts[2], numpy.int32, documents[:1])
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    halfstep("data", "merge", "--input", *parts, "--output-prefix", ours)
    builder = megatron.IndexedDatasetBuilder(str(theirs) + ".bin", dtype=numpy.int32)
    for part in parts:
        builder.add_index(str(part))
    builder.finalize(str(theirs) + ".idx")
    assert both_files(ours) == both_files(theirs)
    other = tmp_path / "other"
    write_with_megatron(other, numpy.uint16, documents[:1])
    process = halfstep(
        "data", "merge", "--input", parts[0], other, "--output-prefix", ours, exit_code=3
    )
    assert "uint16, expected int32" in process.stderr


def test_multimodal_pairs_are_refused(halfstep, tmp_path):
    prefix = tmp_path / "theirs"
    builder = megatron.IndexedDatasetBuilder(str(prefix) + ".bin", numpy.int32, multimodal=True)
    builder.add_item(torch.tensor([1, 2, 3]))
    builder.end_document()
    builder.finalize(str(prefix) + ".idx")
    assert "multimodal" in halfstep("data", "verify", prefix, exit_code=3).stderr
