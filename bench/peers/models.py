"""The models of the benchmark, their parameter counts and their FLOPs a step; timing and the line of JSON."""
import json, math, os, resource, statistics, time

MODELS = {  # H query heads, G key/value heads, F hidden width of the MLP, B sequences of S tokens
    "gpt-small":   dict(kind="gpt",   V=1024,  S=256, D=384, F=1536, L=6,  H=6,  G=6,  B=8),
    "gpt-124m":    dict(kind="gpt",   V=50304, S=256, D=768, F=3072, L=12, H=12, G=12, B=2),
    "llama-small": dict(kind="llama", V=1024,  S=256, D=384, F=1024, L=6,  H=6,  G=2,  B=8),
    "llama-110m":  dict(kind="llama", V=32000, S=256, D=768, F=2048, L=12, H=12, G=12, B=2),
}
LR, BETAS, EPS, WD, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
ROPE_BASE, NORM_EPS, INIT_STD = 10000.0, 1e-5, 0.02


def matmul_params(m):
    kv = m["D"] // m["H"] * m["G"]
    mlp = (3 if m["kind"] == "llama" else 2) * m["D"] * m["F"]
    return m["L"] * (2 * m["D"] ** 2 + 2 * m["D"] * kv + mlp) + m["V"] * m["D"]


def params(m):
    V, S, D, F, L = (m[k] for k in "VSDFL")
    if m["kind"] == "llama":                       # untied head, no biases
        return matmul_params(m) + V * D + (2 * L + 1) * D
    biases = 3 * D + D + F + D                     # tied head, biases, learned positions
    return matmul_params(m) + S * D + L * (4 * D + biases) + 2 * D


def tokens(m):
    return m["B"] * m["S"]


def flops(m):
    """Useful FLOPs of a step: 6 N T for the matmuls, and half of 12 L B S S D (causal)."""
    return 6 * matmul_params(m) * tokens(m) + 6 * m["L"] * m["B"] * m["S"] ** 2 * m["D"]


def beyond_mb(model, rss_mb):
    """Peak memory but for weight, gradient and two moments of each parameter, once whatever the number of ranks."""
    return round(rss_mb - 16 * params(MODELS[model]) / 2 ** 20)


used = [0, 0]                                      # processor seconds of all threads, and in how many steps


def measure(step, seconds, least=3):
    """Times step() until both limits are met; step returns once its work is done."""
    times, start, cpu = [], time.perf_counter(), time.process_time()
    while len(times) < least or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        step()
        times.append(time.perf_counter() - t)
    used[0] += time.process_time() - cpu
    used[1] += len(times)
    return times


def cpu_ms():
    return 1e3 * used[0] / used[1]


def rss_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(system, model, ranks, threads, times, **more):
    m = MODELS[model]
    best, peak = min(times), float(os.environ.get("PEAK_GFLOPS", "nan"))
    row = dict(system=system, model=model, ranks=ranks, threads=threads,
               tokens_per_s=round(tokens(m) / best, 1), ms_min=round(best * 1e3, 1),
               ms_median=round(statistics.median(times) * 1e3, 1),
               gflops=round(flops(m) / best / 1e9, 1),
               peak_share=None if math.isnan(peak) else round(flops(m) / best / 1e9 / peak, 3),
               beyond_mb=beyond_mb(model, more["rss_mb"]))
    row.update({k: round(v, 3) if isinstance(v, float) else v for k, v in more.items()})
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    for name, m in MODELS.items():
        print(f"{name:12s} {params(m):>11,} parameters {matmul_params(m):>11,} in matmuls "
              f"{flops(m) / 1e9:7.1f} GFLOP a step")
