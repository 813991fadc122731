"""`make demo`: trains a small Qwen3-shaped model on real text twice, with FP32 state and with O2, and
shows loss, memory and step times side by side.

The text is the source of Python's own standard library (without its tests), found by asking the
interpreter; other files: make demo DATA="FILE…". Everything printed is read from the runs' logs.
"""

import json
import math
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALFSTEP = ROOT / "build" / "halfstep"
RUNS = ROOT / "runs" / "demo"

MODEL = """
  --num-layers 4 --hidden-size 128 --ffn-hidden-size 384 --num-attention-heads 4 --kv-channels 32
  --group-query-attention --num-query-groups 2 --qk-layernorm
  --seq-length 128 --micro-batch-size 16 --global-batch-size 16 --train-iters 400
  --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine --lr-warmup-iters 20 --adam-beta2 0.95
  --weight-decay 0.1 --clip-grad 1.0 --seed 42 --bf16 --tokenizer byte --split 98,2,0
  --eval-interval 400 --eval-iters 16 --log-interval 10
""".split()
VARIANTS = {
    "FP32 state": [],
    "O2": "--o2-optimizer --o2-gradient --no-gradient-accumulation-fusion --reuse-fp32-param".split(),
}


def standard_library():
    """The .py files of the standard library, tests and installed packages aside, in a fixed order."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    skip = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    return sorted(p for p in root.rglob("*.py") if not skip & set(p.relative_to(root).parts))


def train(name, flags, list_file):
    run_dir = RUNS / name.lower().replace(" ", "_")
    shutil.rmtree(run_dir, ignore_errors=True)
    command = [HALFSTEP, "train", *MODEL, *flags, "--data", f"@{list_file}", "--save", run_dir]
    print(f"\n\033[1m{name}\033[0m  halfstep train {' '.join(flags) or '(BF16, FP32 gradients, master and state)'}")
    start = time.monotonic()
    subprocess.run(command, check=True)
    events = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    return {"dir": run_dir, "seconds": time.monotonic() - start, "events": events}


def steps(run):
    return [e for e in run["events"] if e["event"] == "step"]


def last(run, event):
    return [e for e in run["events"] if e["event"] == event][-1]


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def plot(runs, width=72, height=16):
    """The loss curves as text. Where the two meet in one cell it shows '#'."""
    points = {name: [(e["step"], e["loss"]) for e in steps(run)] for name, run in runs.items()}
    xs = [x for p in points.values() for x, _ in p]
    ys = [y for p in points.values() for _, y in p]
    x_max, y_min, y_max = max(xs), min(ys), max(ys)
    grid = [[" "] * width for _ in range(height)]
    for mark, p in zip("o+", points.values()):
        for x, y in p:
            column = min(width - 1, (x - 1) * width // x_max)
            row = round((y_max - y) / (y_max - y_min) * (height - 1))
            grid[row][column] = mark if grid[row][column] == " " else "#"
    print(f"\nloss, nats per byte    o {list(points)[0]}   + {list(points)[1]}   # both")
    for row, cells in enumerate(grid):
        label = y_max - (y_max - y_min) * row / (height - 1)
        print(f"{label:6.2f} |{''.join(cells)}")
    print(f"       +{'-' * width}\n        step 1{f'{x_max}':>{width - 6}}")


def table(runs):
    base, o2 = runs.values()
    print(f"\n{'':34}" + "".join(f"{name:>14}" for name in runs) + f"{'O2 / FP32':>12}")

    summary = {}

    def row(label, get, form):
        a, b = get(base), get(o2)
        summary[label] = {"fp32_state": a, "o2": b}
        print(f"{label:34}{form(a):>14}{form(b):>14}{b / a:>12.3f}")

    def tail_loss(run):
        losses = [e["loss"] for e in steps(run)]
        tail = losses[-max(1, len(losses) // 10):]
        return sum(tail) / len(tail)

    row("training loss, last tenth (nats)", tail_loss, "{:.4f}".format)
    row("held-out loss (nats)", lambda r: last(r, "eval")["loss"], "{:.4f}".format)
    row("held-out bits per byte", lambda r: last(r, "eval")["loss"] / math.log(2), "{:.4f}".format)
    memory = {name: last(run, "memory") for name, run in runs.items()}
    for name in ("weights", "gradients", "master", "exp_avg", "exp_avg_sq"):
        row(f"{name}, bytes per parameter (measured)",
            lambda r, name=name: class_bytes(last(r, "memory"), name) / last(r, "memory")["elements"],
            "{:.2f}".format)
    row("together, planned (bytes)", lambda r: last(r, "memory")["planned_bytes"], "{:,}".format)
    row("together, measured (bytes)", lambda r: last(r, "memory")["measured_bytes"], "{:,}".format)
    row("optimizer step, median (ms)", lambda r: median([e["optimizer_ms"] for e in steps(r)]), "{:.2f}".format)
    row("whole step, median (ms)", lambda r: median([e["step_ms"] for e in steps(r)]), "{:.1f}".format)
    row("tokens per second, median", lambda r: median([e["tokens_per_second"] for e in steps(r)]), "{:,.0f}".format)
    (RUNS / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for name, run_memory in memory.items():
        if run_memory["planned_bytes"] != run_memory["measured_bytes"]:
            raise SystemExit(f"{name}: planned and measured bytes differ")


def class_bytes(memory, name):
    return sum(c["measured_bytes"] for c in memory["classes"] if c["class"] == name)


def main(files):
    files = [pathlib.Path(f).resolve() for f in files] or standard_library()
    RUNS.mkdir(parents=True, exist_ok=True)
    list_file = RUNS / "files.txt"
    list_file.write_text("".join(f"{f}\n" for f in files))
    size = sum(f.stat().st_size for f in files)
    print(f"data: {len(files)} files, {size / 1e6:.1f} MB of text; two runs of about two minutes each")
    runs = {name: train(name, flags, list_file) for name, flags in VARIANTS.items()}
    plot(runs)
    table(runs)
    print("\na few lines by the O2 model, after the prompt 'def ':")
    subprocess.run([HALFSTEP, "generate", "--load", runs["O2"]["dir"], "--prompt", "def ", "--max-new-tokens", "240",
                    "--temperature", "0.7", "--seed", "1"], check=True)
    print(f"\nlogs, checkpoints and summary.json: {RUNS.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
