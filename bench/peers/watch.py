"""Runs a command and prints its lines of JSON with the round, the moment, and the processor cores that other work took
meanwhile, which tells how far to trust the times.

python watch.py ROUND SECONDS_AT_MOST COMMAND..
"""
import json, os, resource, signal, subprocess, sys, time


def busy():
    """Seconds that all cores have worked, and that a host took from them."""
    user, nice, system, _, _, irq, soft, steal = map(int, open("/proc/stat").readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


round_, limit, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
before, start = busy(), time.time()
child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
try:
    out, _ = child.communicate(timeout=limit)
except subprocess.TimeoutExpired:
    sys.exit(f"took more than {limit:g} s")
finally:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait()
used = resource.getrusage(resource.RUSAGE_CHILDREN)
others = max(0, busy() - before - used.ru_utime - used.ru_stime) / (time.time() - start)
rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
for row in rows:
    print(json.dumps(dict(round=round_, **row, others=round(others, 2), at=int(start))))
sys.exit(child.returncode or not rows)
