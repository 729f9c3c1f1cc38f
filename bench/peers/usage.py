"""Runs a program of dtm that logs, and adds a line to a file: the megabytes of its process at the peak, and the processor
seconds that it used after its first step. python usage.py FILE LOG COMMAND..
"""
import os, sys, time

out, log, command = sys.argv[1], sys.argv[2], sys.argv[3:]


def logged():
    try:
        return open(log).read().count("\n") > 1          # a header, then a line a step
    except FileNotFoundError:
        return False


pid, done, first = os.posix_spawnp(command[0], command, os.environ), 0, 0
while not done and not logged():
    time.sleep(0.01)
    done, status, use = os.wait4(pid, os.WNOHANG)
if not done:
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    first = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    _, status, use = os.wait4(pid, 0)
with open(out, "a") as f:
    f.write(f"{use.ru_maxrss / 1024} {use.ru_utime + use.ru_stime - first}\n")
sys.exit(os.waitstatus_to_exitcode(status) and 1)
