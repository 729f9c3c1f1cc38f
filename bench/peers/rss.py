"""Runs a command; adds a line with the megabytes of its process at the peak to a file. python rss.py FILE COMMAND.."""
import os, sys

pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, use = os.wait4(pid, 0)
with open(sys.argv[1], "a") as f:
    f.write(f"{use.ru_maxrss / 1024}\n")
sys.exit(os.waitstatus_to_exitcode(status) and 1)
