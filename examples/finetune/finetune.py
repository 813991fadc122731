"""Fine-tunes a small model end to end, with nothing downloaded: from a Hugging Face folder and examples to
a model that answers, with what it says and its held-out loss before and after.

    .venv/bin/python examples/finetune/finetune.py

The model and its tokenizer are made here, as stand-ins for those of the reader: a BPE and a Qwen3-shaped
model trained for some hundred steps on the source of Python's standard library, exported as a Hugging Face
folder. The task: from the first line of a function to the first line of its docstring. README.md, beside
this file, goes through the steps.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pathlib
import random
import shutil
import subprocess
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
HALFSTEP = os.environ.get("HALFSTEP_BINARY", ROOT / "build" / "halfstep")
END = "<|endoftext|>"

MODEL = """
  --num-layers 4 --hidden-size 128 --ffn-hidden-size 384 --num-attention-heads 4 --kv-channels 32
  --group-query-attention --num-query-groups 2 --qk-layernorm --seq-length 256 --micro-batch-size 8
  --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-warmup-fraction .03 --adam-beta2 0.95 --weight-decay 0.1
  --split 100,0,0 --eval-iters 0 --seed 42 --bf16 --reuse-fp32-param
""".split()
# What a user of a model that nearly fills the memory switches on: 10 bytes per parameter instead of 18.
O2 = "--bf16 --o2-optimizer --o2-gradient --no-gradient-accumulation-fusion --reuse-fp32-param".split()
FINETUNE = """
  --seq-length 256 --micro-batch-size 4 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction .03
  --adam-beta2 0.95 --weight-decay 0.01 --split 100,0,0 --eval-iters 0 --seed 1
""".split()
SIZES = {"full": {"vocab": 2000, "base_steps": 300, "steps": 150, "files": None, "examples": 4000},
         "smoke": {"vocab": 500, "base_steps": 20, "steps": 20, "files": 60, "examples": 120}}


def halfstep(*args, capture=False):
    command = [str(arg) for arg in (HALFSTEP, *args)]
    print(f"\n$ halfstep {' '.join(command[1:])}", flush=True)
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE if capture else None).stdout


def standard_library():
    """The .py files of the standard library, tests and installed packages aside, in a mixed, fixed order."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    skip = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    files = sorted(p for p in root.rglob("*.py") if not skip & set(p.relative_to(root).parts))
    random.Random(0).shuffle(files)
    return files


def make_tokenizer(files, vocab_size, folder):
    """A byte-level BPE, in a folder as `tokenizers` and `transformers` read it."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([str(file) for file in files], trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def docstring_examples(file):
    """{"prompt", "completion"} of every function in a file that has a docstring."""
    source = file.read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        first_line = (ast.get_docstring(node) or "").strip().split("\n")[0]
        if first_line and len(first_line) < 160:
            yield {"prompt": f"def {node.name}({ast.unparse(node.args)[:160]}):\n", "completion": first_line}


def write_examples(files, path, limit):
    examples = [example for file in files for example in docstring_examples(file)][:limit]
    path.write_text("".join(json.dumps(example) + "\n" for example in examples))
    return examples


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs" / "finetune")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: shows that it works, and no more")
    options = parser.parse_args()
    size = SIZES["smoke" if options.smoke else "full"]
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)

    # Files whose functions are held out are kept from the first model as well.
    files = standard_library()[: size["files"]]
    held_out, seen = files[: len(files) // 10], files[len(files) // 10 :]
    (out / "seen.txt").write_text("".join(f"{file}\n" for file in seen))
    make_tokenizer(seen, size["vocab"], out / "tokenizer")

    halfstep("train", *MODEL, "--data", f"@{out / 'seen.txt'}", "--tokenizer", out / "tokenizer",
             "--train-iters", size["base_steps"], "--log-interval", 50, "--quiet", "--save", out / "base")
    halfstep("convert", "--load", out / "base", "--save-hf", out / "base_hf")

    train = write_examples(seen, out / "train.jsonl", size["examples"])
    test = write_examples(held_out, out / "test.jsonl", size["examples"] // 4)
    print(f"\n{len(train)} examples to learn from, {len(test)} held out, such as\n  {json.dumps(test[0])}")

    halfstep("train", "--load-hf", out / "base_hf", "--tokenizer", out / "base_hf", *O2, *FINETUNE,
             "--data", out / "train.jsonl", "--train-iters", size["steps"], "--log-interval", 25,
             "--save", out / "tuned")
    halfstep("convert", "--load", out / "tuned", "--save-hf", out / "tuned_hf")

    rows = {}
    for name in ("base_hf", "tuned_hf"):
        report = halfstep("eval", "--load-hf", out / name, "--data", out / "test.jsonl", "--seq-length", 256, "--json",
                          capture=True)
        rows[name] = {"loss": json.loads(report)["loss"], "says": []}
        for example in test[:3]:
            said = halfstep("generate", "--load-hf", out / name, "--prompt", example["prompt"], "--max-new-tokens", 24,
                            capture=True)
            rows[name]["says"].append(said[len(example["prompt"]) :].strip().split("\n")[0])

    before, after = rows["base_hf"], rows["tuned_hf"]
    print(f"\n{'':18}{'before':>10}{'after':>10}\n{'held-out loss':18}{before['loss']:10.3f}{after['loss']:10.3f}")
    for example, old, new in zip(test, before["says"], after["says"]):
        print(f"\n{example['prompt'].strip()}\n  written  {example['completion']}\n  before   {old}\n  after    {new}")
    (out / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\nThe fine-tuned model, for `transformers` and everything that reads its folders: {out / 'tuned_hf'}")
    if not after["loss"] < before["loss"]:
        raise SystemExit("the held-out loss did not fall")


if __name__ == "__main__":
    main()
