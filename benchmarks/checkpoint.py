"""What saving and loading a checkpoint costs, against plain files of the same bytes on the same disk.

In each round, in changing order: a plain write + fsync, a save, a save in the background; then a plain read and a
load, cold (from the disk) and warm (from the page cache). Figures are medians over rounds, ratios the medians of
the rounds' own ratios, so that what else goes on on the machine falls on both sides.

    python benchmarks/checkpoint.py [--folder DIR] [--mebibytes N] [--rounds N] [--json FILE] [--check]

--check exits with 1 if a save reaches less than 80 % of the plain throughput, a cold load less than half (which a busy machine
gets near to: reading needs the processor for checksums, a plain read does not), or if a save in the background
stops training for more than 5 % of the time that a save takes. Where the disk is so fast that a plain copy in memory takes as
long as that, the bar is 1.5 plain copies.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEAST_SAVE_THROUGHPUT = 0.8
LEAST_LOAD_THROUGHPUT = 0.5
LONGEST_STALL = 0.05
LONGEST_STALL_IN_COPIES = 1.5


def measure(folder, mebibytes, rounds):
    done = subprocess.run([ROOT / "build" / "checkpoint_bench", folder, str(mebibytes), str(rounds)],
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def summarize(measured):
    times = measured["times"]

    def ratio(numerator, denominator):
        return statistics.median(a / b for a, b in zip(times[numerator], times[denominator]))

    return {
        "bytes": measured["bytes"], "rounds": measured["rounds"],
        "median_ms": {name: statistics.median(values) for name, values in times.items()},
        "save_throughput_over_plain_write": ratio("plain_write_ms", "save_ms"),
        "load_throughput_over_plain_read": {how: ratio(f"plain_read_{how}_ms", f"load_{how}_ms")
                                            for how in ("cold", "warm")},
        "async_stall_over_save": ratio("async_stall_ms", "save_ms"),
        "async_stall_over_plain_copy": ratio("async_stall_ms", "plain_copy_ms"),
        "times": times}


def misses(result):
    """The bars that a result does not reach, in words."""
    save, stall = result["save_throughput_over_plain_write"], result["async_stall_over_save"]
    copies = result["async_stall_over_plain_copy"]
    load = result["load_throughput_over_plain_read"]["cold"]
    if save < LEAST_SAVE_THROUGHPUT:
        yield f"a save reaches {save:.2f} of plain write + fsync, the bar is {LEAST_SAVE_THROUGHPUT}"
    if load < LEAST_LOAD_THROUGHPUT:
        yield f"a cold load reaches {load:.2f} of a plain read, the bar is {LEAST_LOAD_THROUGHPUT}"
    if stall >= LONGEST_STALL and copies > LONGEST_STALL_IN_COPIES:
        yield (f"a save in the background stops training for {stall:.3f} of a save and {copies:.2f} plain copies, the "
               f"bars are {LONGEST_STALL} and {LONGEST_STALL_IN_COPIES}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="on the disk to measure; default: where temporary files go")
    parser.add_argument("--mebibytes", type=int, default=512, help="of state")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        result = summarize(measure(folder, args.mebibytes, args.rounds))
    print(json.dumps({name: value for name, value in result.items() if name != "times"}, indent=2))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=2) + "\n")
    missed = list(misses(result))
    if args.check and missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
