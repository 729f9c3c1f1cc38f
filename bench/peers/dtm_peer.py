"""dtm: builds a model for one rank or two and trains it for a few steps on a batch that is always the same.

python dtm_peer.py --dtmc build/release/frontend/dtmc --model llama-small --mode one|dp|tp|pp [--schedule 1f1b] [--local]

`one` is a process of two threads without mpirun, `dp`, `tp` and `pp` are two ranks of one thread under mpirun, or with --local
in one process; `pp` is of MODEL-pp.dtm, a pipeline of four microbatches. The first step is warm-up and counted with the build. start_s is everything else: of the whole run, what
is not in a step."""
import argparse, json, math, os, random, struct, subprocess, sys, tempfile, time

import models as M

ap = argparse.ArgumentParser()
ap.add_argument("--dtmc", required=True)
ap.add_argument("--model", choices=M.MODELS, required=True)
ap.add_argument("--mode", choices=["one", "dp", "tp", "pp"], required=True)
ap.add_argument("--schedule", default="1f1b", help="of pp")
ap.add_argument("--local", action="store_true", help="two ranks as threads of one process")
ap.add_argument("--threads", type=int, help="threads of a rank; default 2, or 1 with two ranks")
ap.add_argument("--seconds", type=float, default=8)
ap.add_argument("--profile", action="store_true", help="print the profile in place of the line of JSON")
args = ap.parse_args()

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))
m = M.MODELS[args.model]
ranks = 1 if args.mode == "one" else 2
threads = args.threads or 2 // ranks
# At least three steps, and about so many seconds of them at 80 GFLOP/s; one before them to warm up.
steps = 1 + max(3, math.ceil(args.seconds * 80e9 / M.flops(m)))


def write_batch(path):
    """The inputs tokens and targets as safetensors, i32[steps, B, S]: the same random text at every step."""
    draw = random.Random(1)
    text = [[draw.randrange(m["V"]) for _ in range(m["S"] + 1)] for _ in range(m["B"])]
    parts = [b"".join(struct.pack(f"<{m['S']}i", *row[at:at + m["S"]]) for row in text) * steps for at in (0, 1)]
    shape, size = [steps, m["B"], m["S"]], len(parts[0])
    header = json.dumps({name: dict(dtype="I32", shape=shape, data_offsets=[i * size, (i + 1) * size])
                         for i, name in enumerate(("tokens", "targets"))}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + parts[0] + parts[1])


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"exit status {done.returncode}: {' '.join(command)}")
    return done.stdout


with tempfile.TemporaryDirectory() as tmp:
    program, data, log, usage = (os.path.join(tmp, name) for name in ("program", "data.safetensors", "log", "usage"))
    start = time.perf_counter()
    mesh = ["--mesh", "dp=%d,tp=%d" % (ranks if args.mode == "dp" else 1, ranks if args.mode == "tp" else 1)]
    file = args.model + ".dtm"
    if args.mode == "pp":
        mesh, file = ["--set", "schedule=" + args.schedule], args.model + "-pp.dtm"
    run([args.dtmc, "build", os.path.join(root, "bench", "models", file), *mesh, "-o", program])
    compile_s = time.perf_counter() - start
    write_batch(data)
    command = [sys.executable, os.path.join(here, "usage.py"), usage, log, program, "train", "--data", data,
               "--steps", str(steps), "--threads", str(threads), "--log", log, "--quiet"]
    if args.local:
        command.append("--local")
    elif ranks > 1:
        command = ["sh", os.path.join(root, "tests", "mpirun"), str(ranks), *command]
    if args.profile:
        command.append("--profile")
    start = time.perf_counter()
    out = run(command)
    whole = time.perf_counter() - start
    if args.profile:
        sys.exit(print(out))
    rows = [json.loads(line) for line in open(log)][1:]
    peak, cpu = map(sum, zip(*(map(float, line.split()) for line in open(usage))))
    memory = json.loads(run([program, "info", "--json"]))
seconds = [r["ms"] / 1e3 for r in rows]
assert len(rows) == steps, (len(rows), steps)
count = memory.get("parameters", M.params(m))
assert count == M.params(m), (count, M.params(m))
system = "dtm" + ("" if args.mode == "one" else "-" + args.mode) + (
    "-" + args.schedule if args.mode == "pp" else "") + ("-local" if args.local else "")
M.report(system, args.model, ranks, threads, seconds[1:], first_loss=rows[0]["loss"], last_loss=rows[-1]["loss"],
         compile_s=compile_s, first_step_s=seconds[0], start_s=whole - sum(seconds), cpu_ms=round(cpu / (steps - 1) * 1e3),
         rss_mb=round(peak))
