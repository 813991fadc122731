"""What data parallelism costs and keeps, on several processes of this machine over loopback.

overlap   steps with and without --overlap-grad-reduce --overlap-param-gather, in pairs, and the time that
          reduction, optimizer step and gather take beside what their bytes take at the wire's speed
gradient  --o2-gradient against FP32 gradients on 4 ranks: 300 steps of the demo's model, beside runs
          whose initial FP32 weights differ by one unit in the last place

    python benchmarks/data_parallel.py {overlap,gradient} [--json FILE] [--check]

--check exits with 1 if overlap costs more than 5 % (median of the pairs), or if the loss with BF16 gradients
lies outside the spread of the equal runs (docs/testing.md) or the wire does not halve.
"""

import argparse
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = """--num-layers 4 --hidden-size 128 --ffn-hidden-size 384 --num-attention-heads 4 --kv-channels 32
  --group-query-attention --num-query-groups 2 --qk-layernorm""".split()
RUN = """--seq-length 128 --tokenizer byte --split 100,0,0 --eval-iters 0 --bf16 --matmul-precision fp32
  --adam-beta2 0.95 --weight-decay 0.1 --seed 42 --num-threads 1 --log-interval 1 --quiet""".split()
O2 = "--o2-optimizer --o2-gradient --no-gradient-accumulation-fusion --reuse-fp32-param".split()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ranks(size, command):
    """Runs `command` on `size` ranks; returns rank 0's standard output."""
    port = str(free_port())
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {
            "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1"})
        for rank in range(size)]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"exit codes {[p.returncode for p in processes]} of {' '.join(map(str, command))}")
    return outputs[0]


def train(size, *flags):
    """The log's steps."""
    with tempfile.TemporaryDirectory() as log_dir:
        ranks(size, [ROOT / "build" / "halfstep", "train", *RUN, *map(str, flags), "--log-dir", log_dir])
        events = map(json.loads, (pathlib.Path(log_dir) / "log.jsonl").read_text().splitlines())
        return [e for e in events if e["event"] == "step"]


def wire(size):
    """Runs in processes of its own: α and β of a Gloo all-to-all, from torch.distributed."""
    import time

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    times = {}
    for parts in (1 << 10, 1 << 21):
        send, receive = torch.zeros(parts * size, dtype=torch.uint8), torch.empty(parts * size, dtype=torch.uint8)
        best = math.inf
        for _ in range(40):
            dist.barrier()
            start = time.perf_counter()
            dist.all_to_all_single(receive, send)
            best = min(best, time.perf_counter() - start)
        times[parts * (size - 1)] = best
    (small, t0), (large, t1) = sorted(times.items())
    beta = (large - small) / (t1 - t0)
    if dist.get_rank() == 0:
        print(json.dumps({"alpha_ms": 1000 * (t0 - small / beta), "bytes_per_second": beta}))
    dist.destroy_process_group()


def measure_overlap(text, pairs):
    size, bucket = 2, "512KiB"
    flags = [*MODEL, *O2, "--micro-batch-size", 4, "--global-batch-size", 16, "--lr", "1e-3", "--train-iters", 20,
             "--data", text, "--ddp-bucket-size", bucket]
    overlapping = [*flags, "--overlap-grad-reduce", "--overlap-param-gather"]
    plain, overlapped, ratios = [], [], []
    for _ in range(pairs):
        a, b = train(size, *flags)[4:], train(size, *overlapping)[4:]
        plain += a
        overlapped += b
        # A run's fastest step is what other programs on the machine disturb least.
        ratios.append(min(s["step_ms"] for s in b) / min(s["step_ms"] for s in a))
    link = json.loads(ranks(size, [sys.executable, __file__, "wire", str(size)]).splitlines()[-1])

    def median(steps, key):
        return statistics.median(s[key] for s in steps)

    reduce_bytes, gather_bytes = median(plain, "reduce_bytes"), median(plain, "gather_bytes")
    predicted = 1000 * (reduce_bytes + gather_bytes) / link["bytes_per_second"]
    keys = ("step_ms", "optimizer_ms", "reduce_wait_ms", "reduce_sum_ms", "gather_wait_ms")
    return {
        "ranks": size, "threads_per_rank": 1, "ddp_bucket_size": bucket, "link": link,
        "reduce_bytes": reduce_bytes, "gather_bytes": gather_bytes,
        "predicted_wire_ms": predicted,
        "plain": {key: median(plain, key) for key in keys},
        "overlapped": {key: median(overlapped, key) for key in keys},
        "overlap_cost": statistics.median(ratios) - 1, "pairs": sorted(ratios)}


def write_model(folder, seed):
    """A Hugging Face folder with FP32 weights; `seed` > 0 moves each by one unit in the last place, up or down."""
    import torch
    import transformers

    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        num_hidden_layers=4, hidden_size=128, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=257, max_position_embeddings=128, tie_word_embeddings=True))
    if seed:
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            away = torch.randint(0, 2, parameter.shape, generator=generator) * torch.tensor(math.inf)
            with torch.no_grad():
                parameter.copy_(torch.nextafter(parameter, torch.nan_to_num(away, posinf=math.inf, nan=-math.inf)))
    model.save_pretrained(folder)
    return folder


def measure_gradient(text, steps):
    size = 4
    flags = ["--micro-batch-size", 2, "--global-batch-size", 16, "--lr", "1e-3", "--min-lr", "1e-4", "--lr-decay-style",
             "cosine", "--lr-warmup-iters", 20, "--train-iters", steps, "--data", text,
             "--o2-optimizer", "--no-gradient-accumulation-fusion"]
    with tempfile.TemporaryDirectory() as work:
        folders = [write_model(f"{work}/{seed}", seed) for seed in range(3)]
        equal = [train(size, "--load-hf", folder, *flags) for folder in folders]
        variant = train(size, "--load-hf", folders[0], *flags, "--o2-gradient")

    def end(run):
        return statistics.mean(s["loss"] for s in run[-steps // 10:])

    ends = [end(run) for run in equal]
    mean, deviation = statistics.mean(ends), statistics.stdev(ends)
    # A further equal run lies within t(1 − p/2, k) s √(1 + 1/(k+1)) of the mean of k+1 = 3 (Student) but for a
    # share p of all. p = .01: what runs before each change must not fail by chance every twentieth time.
    allowed = max(9.925 * deviation * math.sqrt(1 + 1 / 3), 1e-3 * mean)
    return {
        "ranks": size, "steps": steps, "equal_runs": ends, "o2_gradient": end(variant), "difference": end(variant) - mean,
        "allowed": allowed,
        "reduce_bytes": {"fp32": equal[0][-1]["reduce_bytes"], "bf16": variant[-1]["reduce_bytes"]}}


def standard_library():
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    return [path for path in sorted(root.glob("*.py"))]


def main():
    if sys.argv[1:2] == ["wire"]:
        return wire(int(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["overlap", "gradient"])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text_list:
        text_list.write("\n".join(map(str, standard_library())))
        text_list.flush()
        text = f"@{text_list.name}"
        result = measure_overlap(text, args.pairs) if args.what == "overlap" else measure_gradient(text, args.steps)
    print(json.dumps(result, indent=2))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    if args.what == "overlap":
        good = result["overlap_cost"] <= 0.05
    else:
        wires = result["reduce_bytes"]
        good = abs(result["difference"]) <= result["allowed"] and 2 * wires["bf16"] == wires["fp32"]
    if args.check and not good:
        sys.exit(f"{args.what}: outside what this file's first lines allow")


if __name__ == "__main__":
    main()
