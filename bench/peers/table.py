"""The tables of a results file: python table.py results.jsonl; with --peak only the matrix peak."""
import json, statistics, sys

import models as M

rows = [json.loads(line) for line in open(sys.argv[-1])]
matrix = [r for r in rows if "form" in r]
peak = max((r["gflops"] for r in matrix if r["threads"] == 2), default=float("nan"))
if "--peak" in sys.argv:
    sys.exit(print(peak))


def table(head, lines):
    names = [h.strip(">") for h in head]
    print("| " + " | ".join(names) + " |")
    print("|" + "|".join("---:" if h.startswith(">") else "---" for h in head) + "|")
    for line in lines:
        print("| " + " | ".join(str(cell) for cell in line) + " |")


def median(rows, key):
    values = [r[key] for r in rows if key in r]
    return round(statistics.median(values)) if values else ""


groups = {}
for r in rows:
    if "model" in r:
        groups.setdefault(r["model"], {}).setdefault(r["system"], []).append(r)

lines = []
for model in [m for m in M.MODELS if m in groups]:
    best = {system: min(r["ms_min"] for r in g) for system, g in groups[model].items()}
    eager = best.get("torch-eager")
    for system in sorted(best, key=best.get):
        g, ms = groups[model][system], best[system]
        rate = M.flops(M.MODELS[model]) / ms / 1e6
        lines.append((model, system, f"{g[0]['ranks']} x {g[0]['threads']}", f"{M.tokens(M.MODELS[model]) / ms * 1e3:.0f}",
                      f"{eager / ms:.2f}" if eager else "", f"{ms:.0f}",
                      median(g, "ms_median"), median(g, "cpu_ms"), f"{rate:.1f}",
                      f"{rate / peak:.0%}" if matrix else "", max(r["rss_mb"] for r in g),
                      max(r["beyond_mb"] for r in g), max(r.get("rss_import_mb", 0) for r in g) or "",
                      f"{max(r.get('compile_s', 0) + r['first_step_s'] for r in g):.1f}", len(g),
                      f"{statistics.median(r.get('others', 0) for r in g):.2f}"))
if lines:
    table(("model", "system", "ranks x threads", ">tokens/s", ">of torch-eager", ">ms min", ">ms median", ">CPU ms", ">GFLOP/s",
           ">share of peak", ">peak RSS MB", ">beyond 16 B a parameter", ">of it imports", ">compile + first step s",
           ">rounds", ">cores of others"), lines)

if matrix:
    print(f"\nMatrix peak with 2 threads: {peak} GFLOP/s\n")
    shapes = {}
    for r in matrix:
        shapes.setdefault((r["system"], f"{r['form']} {r['m']}x{r['n']}x{r['k']}"), {}) \
              .setdefault(r["threads"], []).append(r["gflops"])
    table(("library", "shape m x n x k", ">1 thread", ">2 threads"),
          [(*key, *(max(by.get(n, [0])) for n in (1, 2))) for key, by in shapes.items()])
