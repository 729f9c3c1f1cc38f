"""Mistakes of a plan: two live buffers in one place.

    overlaps.py FOLDER                 of what `dtmc build --emit FOLDER` wrote: a line `BUFFER OFFSET OTHER` for each pair of buffers that
                                       one operator reads, and so are both live, and that lie apart: the first goes where the other lies
    overlaps.py --edit PLAN BUFFER OFFSET   makes one of them in plan.c
"""
import re
import sys


def read(path):
    with open(path) as file:
        return file.read()


def numbers(text):
    return [int(n) for n in re.findall(r"\d+", text)]


def pairs(folder):
    plan, kernels = read(folder + "/plan.c"), read(folder + "/kernels.c")
    table = plan[plan.index("buffers[] = {"):]
    table = table[:table.index("};")]
    places = {int(b): (int(offset), name) for b, name, offset in re.findall(r'/\* (\d+) \*/ \{"([^"]*)".*?\.offset = (\d+)', table)}
    entry = re.compile(r'\{"(\w+)", \w+_source, \d+, \w+_launches, (\d+), \d+, \d+, \w+, (0x[0-9a-f]+)')
    known = {name: (int(count), int(mask, 16)) for name, count, mask in entry.findall(kernels)}
    seen, out = set(), []
    lists = []
    for name, operands in re.findall(r"\.kernel = \{\d+ /\* (\w+) \*/, \d+, \{\d+, \(const uint32_t\[\]\)\{([\d, ]+)\}\}", plan):
        count, mask = known[name]
        all_operands = numbers(operands)
        for t in range(0, len(all_operands), count):
            lists.append([b for i, b in enumerate(all_operands[t:t + count]) if mask >> i & 1])
    lists += [[int(a), int(b)] for a, b in re.findall(r"\.matmul = \{\.a = (\d+), \.b = (\d+)", plan)]
    for reads in lists:
        for i, first in enumerate(reads):
            for other in reads[i + 1:]:
                if places[first][0] != places[other][0] and (first, other) not in seen:
                    seen.add((first, other))
                    out.append((first, places[other][0], other))
    return out, places


def main():
    if sys.argv[1] == "--edit":
        path, buffer, offset = sys.argv[2:5]
        text = read(path)
        edited, n = re.subn(r'(/\* %s \*/ \{"[^"]*", DTM_PLAN_\w+, .*?\.offset = )\d+' % buffer, r"\g<1>" + offset, text, count=1)
        if n != 1:
            sys.exit("overlaps: no such buffer")
        with open(path, "w") as file:
            file.write(edited)
        return
    found, places = pairs(sys.argv[1])
    for first, offset, other in found:
        print(first, offset, places[first][1], places[other][1])


main()
