"""Tokens per second of `halfstep train` against transformers + torch.optim.AdamW(fused=True).

Same model (a Qwen3 of 1.1 M parameters), batch and thread count; bytes of this repository's own text as
data. The three are run in turn for several rounds, so that a machine that changes speed changes it for
all. A round's figure is the median of its steps; the comparison uses each program's best round.

    python benchmarks/train_speed.py [--json FILE] [--check]

--check exits with 1 if halfstep is slower than the better of transformers in FP32 and in BF16.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, HIDDEN, FFN, HEADS, GROUPS, HEAD_DIM, VOCAB = 4, 128, 384, 4, 2, 32, 257
SEQ, BATCH, STEPS = 128, 16, 25


def halfstep_round(flags, text, threads):
    with tempfile.TemporaryDirectory() as log_dir:
        subprocess.run(
            [ROOT / "build" / "halfstep", "train", "--num-layers", str(LAYERS), "--hidden-size", str(HIDDEN),
             "--ffn-hidden-size", str(FFN), "--num-attention-heads", str(HEADS), "--group-query-attention",
             "--num-query-groups", str(GROUPS), "--kv-channels", str(HEAD_DIM), "--qk-layernorm",
             "--seq-length", str(SEQ), "--micro-batch-size", str(BATCH), "--train-iters", str(STEPS),
             "--lr", "1e-3", "--tokenizer", "byte", "--data", text, "--split", "100,0,0", "--bf16",
             "--num-threads", str(threads), "--log-interval", "1", "--log-dir", log_dir, "--quiet", *flags],
            check=True, stdout=subprocess.DEVNULL)
        events = map(json.loads, (pathlib.Path(log_dir) / "log.jsonl").read_text().splitlines())
        steps = [e for e in events if e["event"] == "step"][5:]
    return {"step_ms": statistics.median(e["step_ms"] for e in steps),
            "optimizer_ms": statistics.median(e["optimizer_ms"] for e in steps)}


def transformers_round(dtype_name, threads):
    """Runs in a process of its own: see main."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        num_hidden_layers=LAYERS, hidden_size=HIDDEN, intermediate_size=FFN, num_attention_heads=HEADS,
        num_key_value_heads=GROUPS, head_dim=HEAD_DIM, vocab_size=VOCAB, max_position_embeddings=SEQ,
        tie_word_embeddings=True, attn_implementation="sdpa")
    model = transformers.Qwen3ForCausalLM(config).to(getattr(torch, dtype_name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(0, 256, (BATCH, SEQ))
    times, optimizer_times = [], []
    for _ in range(STEPS):
        start = time.perf_counter()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before_step = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
        optimizer_times.append(time.perf_counter() - before_step)
    return {"step_ms": 1000 * statistics.median(times[5:]),
            "optimizer_ms": 1000 * statistics.median(optimizer_times[5:])}


def run_transformers(dtype_name, threads):
    out = subprocess.run([sys.executable, __file__, "--transformers", dtype_name, "--threads", str(threads)],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--transformers", choices=["float32", "bfloat16"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.transformers:
        print(json.dumps(transformers_round(args.transformers, args.threads)))
        return 0

    o2 = ["--o2-optimizer", "--o2-gradient", "--no-gradient-accumulation-fusion", "--reuse-fp32-param"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        for path in sorted((ROOT / "docs").rglob("*.md")):
            text.write(path.read_text())
        text.flush()
        programs = {
            "halfstep, O2": lambda: halfstep_round(o2, text.name, args.threads),
            "halfstep, FP32 state": lambda: halfstep_round([], text.name, args.threads),
            "transformers, FP32": lambda: run_transformers("float32", args.threads),
            "transformers, BF16": lambda: run_transformers("bfloat16", args.threads),
        }
        rounds = {name: [] for name in programs}
        for _ in range(args.rounds):
            for name, run in programs.items():
                rounds[name].append(run())

    best = {name: min(r, key=lambda x: x["step_ms"]) for name, r in rounds.items()}
    print(f"{'':24}{'tok/s':>10}{'step ms':>10}{'optimizer ms':>14}   (best of {args.rounds} rounds, {args.threads} threads)")
    for name, r in best.items():
        print(f"{name:24}{1000 * SEQ * BATCH / r['step_ms']:>10,.0f}{r['step_ms']:>10.1f}{r['optimizer_ms']:>14.2f}")
    theirs = min(best[name]["step_ms"] for name in best if name.startswith("transformers"))
    speedup = theirs / best["halfstep, O2"]["step_ms"]
    print(f"halfstep O2 is {speedup:.2f} times as fast as the better of transformers' two")
    if args.json:
        record = {"threads": args.threads, "tokens_per_step": SEQ * BATCH, "best": best, "rounds": rounds,
                  "speedup": speedup}
        pathlib.Path(args.json).write_text(json.dumps(record, indent=1) + "\n")
    return 1 if args.check and speedup < 1 else 0


if __name__ == "__main__":
    sys.exit(main())
