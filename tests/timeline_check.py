#!/usr/bin/env python3
"""timeline_check.py: an independent judge of timelines, and 10,000 random ones that it and the compiler must agree on.

    timeline_check.py FILE..                            says of each: legal, with slots and memory, or the laws it breaks
    timeline_check.py --judge BIN [--schedules DIR]     compares with the compiler's proof (BIN: tests/timeline_judge.c):
                      [--count N] [--seed S]            on N timelines, half of them illegal; then on every named schedule
                      [--show N]                        over a grid. DIR: recorded orders, used as they are and broken

Written from ir/timeline.h and docs/timelines.md, apart from passes/timeline_prove.c, and in another way: nothing is executed
here. What must come before what is a graph whose nodes are operations and transfers of messages; nothing stands still where it
has no cycle, slots are edges (a message is received when the one so many before it has been used up), and how far a rank has
come for certain is a vector of counts carried along the edges. The laws, named by the errors of the compiler:

    E0901  the text                     E0905  standing still
    E0903  stages in order, each once   E0906  receive slots, where their number is given
    E0904  first in, first out          E0907  memory, where a bound is given
    E0908  messages that are written out: each once, after it is made and before it is used
"""
import argparse, os, random, re, subprocess, sys, time
from collections import defaultdict

TASK = re.compile(r'([FBIW])(\d+)(?:\.(\d+))?$')
SPLIT = {} # words already read
WORD = re.compile(r'\[[^\]]*\]|\([^)]*\)|[^\s()\[\]]+')


class Malformed(Exception):
    pass


class Timeline:
    """rows[rank] is a list of operations: ('task', [t]), ('pair', [f, b]) or ('group', [message..]). A task is (kind,
    microbatch, chunk), a message (send or receive: S or R, F or B, microbatch, chunk on the rank that sends, other rank)."""

    def __init__(self, name, placement, ranks, microbatches, chunks, rows=None):
        self.name, self.placement, self.ranks, self.microbatches, self.chunks = name, placement, ranks, microbatches, chunks
        self.rows = rows if rows is not None else [[] for _ in range(ranks)]
        self.stages = ranks if placement == 'bidir' else ranks * chunks
        self.targets = {}

    def stage(self, rank, chunk):
        p = self.ranks
        if self.placement == 'bidir':
            return p - 1 - rank if chunk else rank
        return chunk * p + (p - 1 - rank if self.placement == 'v' and chunk % 2 else rank)

    def place(self, stage, direction):
        """Where a stage lies: rank and chunk. The direction matters for bidir alone, where it is the chunk."""
        if self.placement == 'bidir':
            return (self.ranks - 1 - stage if direction else stage), direction
        chunk, rank = divmod(stage, self.ranks)
        return (self.ranks - 1 - rank if self.placement == 'v' and chunk % 2 else rank), chunk

    def passing(self, chunk):
        if self.placement != 'bidir':
            return self.microbatches
        return (self.microbatches + 1 - chunk) // 2

    def target(self, rank, kind, chunk):
        """Where the result of an F, or of a B or I, is used: rank and chunk, or None at either end of the model."""
        key = rank, kind, chunk
        if key not in self.targets:
            stage = self.stage(rank, chunk) + (1 if kind == 'F' else -1)
            self.targets[key] = self.place(stage, chunk) if 0 <= stage < self.stages else None
        return self.targets[key]

    def source(self, rank, kind, chunk):
        return self.target(rank, 'B' if kind == 'F' else 'F', chunk)

    # ---- text ----

    @staticmethod
    def parse(text):
        lines = text.split('\n')
        first = next((line for line in lines if line.startswith('#') and ' P=' in line), None)
        if first is None:
            raise Malformed('no first line')
        words = dict(word.split('=', 1) for word in first[1:].split() if '=' in word)
        t = Timeline(first[1:].split()[0], words['placement'], int(words['P']), int(words['M']), int(words['V']))
        rows = [re.sub(r'^\s*(rank\s*)?\d+\s*:', '', line) if ':' in line else line
                for line in lines if line.strip() and not line.startswith('#')]
        if len(rows) != t.ranks:
            raise Malformed('lines of ranks')
        t.rows = [[t._operation(word, rank) for word in WORD.findall(row)] for rank, row in enumerate(rows)]
        return t

    def _task(self, word):
        if word not in SPLIT:
            match = TASK.match(word)
            if not match:
                raise Malformed(word)
            SPLIT[word] = match.group(1), int(match.group(2)), int(match.group(3) or 0)
        kind, microbatch, chunk = SPLIT[word]
        if chunk >= self.chunks or microbatch >= self.passing(chunk):
            raise Malformed(word)
        return kind, microbatch, chunk

    def _operation(self, word, rank):
        if word[0] == '(':
            tasks = sorted((self._task(part) for part in word[1:-1].split('+')), key=lambda task: task[0] != 'F')
            if len(tasks) != 2 or tasks[0][0] != 'F' or tasks[1][0] not in 'BI':
                raise Malformed(word)
            return 'pair', tasks
        if word[0] != '[':
            return 'task', [self._task(word)]
        messages = []
        for part in word[1:-1].split():
            match = re.match(r'([SR]):(\w+(?:\.\d+)?)([<>])(\d+)$', part)
            if not match or (match.group(3) == '>') != (match.group(1) == 'S'):
                raise Malformed(part)
            kind, microbatch, chunk = self._task(match.group(2))
            peer = int(match.group(4))
            if kind == 'W' or peer >= self.ranks or peer == rank:
                raise Malformed(part)
            messages.append((match.group(1), 'F' if kind == 'F' else 'B', microbatch, chunk, peer))
        return 'group', messages

    def _print_task(self, kind, microbatch, chunk):
        return f'{kind}{microbatch}.{chunk}' if self.chunks > 1 else f'{kind}{microbatch}'

    def _print(self, operation):
        what, parts = operation
        if what == 'group':
            return '[' + ' '.join(f'{m[0]}:{self._print_task(*m[1:4])}{"<" if m[0] == "R" else ">"}{m[4]}' for m in parts) + ']'
        tasks = '+'.join(self._print_task(*task) for task in parts)
        return f'({tasks})' if what == 'pair' else tasks

    def text(self):
        rows = (' '.join(self._print(o) for o in row) or f'rank {r}:' for r, row in enumerate(self.rows))
        return (f'# {self.name} P={self.ranks} M={self.microbatches} V={self.chunks} placement={self.placement}\n'
                + '\n'.join(rows) + '\n')


# ---- the costs that timeline_judge.c gives to stages ----

def costs(stage):
    return {'F': 3 + 5 * stage % 7, 'B': 2 + 3 * stage % 5, 'kept': 6 + 7 * stage % 4, 'weight': 2 + stage % 3,
            'held': 10 + stage}


# ---- the laws ----

def contents(t):
    """Each microbatch passes each stage once, in order: what is wrong, and the operation of each task (B under I too)."""
    wrong, at = [], [dict() for _ in range(t.ranks)]
    for rank, row in enumerate(t.rows):
        for number, (what, parts) in enumerate(row):
            for task in parts if what != 'group' else ():
                if task in at[rank]:
                    wrong.append(f'rank {rank}: {task} twice')
                at[rank][task] = number
        for chunk in range(t.chunks):
            for microbatch in range(t.passing(chunk)):
                f, b, i, w = (at[rank].get((kind, microbatch, chunk)) for kind in 'FBIW')
                have = (f is not None, b is not None, i is not None, w is not None)
                if have not in ((True, True, False, False), (True, False, True, True)):
                    wrong.append(f'rank {rank}: of microbatch {microbatch} in chunk {chunk}: F B I W {have}')
                    continue
                back = at[rank][('I', microbatch, chunk)] = i if b is None else b
                if back <= f or (w is not None and w <= back):
                    wrong.append(f'rank {rank}: microbatch {microbatch} in chunk {chunk} out of order')
    if not wrong: # stages that follow each other on one rank
        for rank in range(t.ranks):
            for (kind, microbatch, chunk), number in at[rank].items():
                after = t.target(rank, kind, chunk) if kind in 'FI' else None
                if after and after[0] == rank and at[rank][(kind, microbatch, after[1])] <= number:
                    wrong.append(f'rank {rank}: {kind}{microbatch} of chunk {after[1]} before that of chunk {chunk}')
    return wrong, at


class Message:
    __slots__ = ('name', 'bytes', 'maker', 'user', 'send', 'receive')

    def __init__(self, name, size, maker, user):
        self.name, self.bytes, self.maker, self.user = name, size, maker, user # operations on their ranks
        self.send = self.receive = None                                       # of a group: where it is posted


def messages(t, at):
    """By channel (source, destination, F or B): the messages that there must be."""
    channels = defaultdict(list)
    for rank in range(t.ranks):
        for (kind, microbatch, chunk), number in at[rank].items():
            to = t.target(rank, kind, chunk) if kind in 'FI' else None
            if not to or to[0] == rank:
                continue
            letter = 'F' if kind == 'F' else 'B'
            channels[rank, to[0], letter].append(Message((letter, microbatch, chunk), costs(t.stage(rank, chunk))[letter],
                                                         number, at[to[0]][(kind, microbatch, to[1])]))
    return channels


def written(t, channels):
    """Gives messages the places where groups post them, and orders channels by these: what is wrong, and what crosses."""
    wrong, crossing, sends, receives = [], [], defaultdict(list), defaultdict(list)
    for rank, row in enumerate(t.rows):
        for number, (what, parts) in enumerate(row):
            for way, kind, microbatch, chunk, peer in parts if what == 'group' else ():
                if way == 'S':
                    sends[rank, peer, kind].append(((kind, microbatch, chunk), number))
                else:
                    receives[peer, rank, kind].append(((kind, microbatch, chunk), number))
    for channel in set(channels) | set(sends) | set(receives):
        expected = {m.name: m for m in channels.get(channel, ())}
        for side, posted in ('send', sends[channel]), ('receive', receives[channel]):
            if sorted(name for name, _ in posted) != sorted(expected):
                wrong.append(f'{channel}: {side}s')
                continue
            for name, number in posted:
                m = expected[name]
                setattr(m, side, number)
                if number < m.maker if side == 'send' else number > m.user:
                    wrong.append(f'{channel}: {side} of {name}')
        if [name for name, _ in sends[channel]] != [name for name, _ in receives[channel]]:
            crossing.append(f'{channel}')
    return wrong, crossing


class Graph:
    """Operations and transfers, and what must come before what; without receive slots."""

    def __init__(self, t, channels, send_buffers):
        self.base, n = [], 0
        for row in t.rows:
            self.base.append(n)
            n += len(row)
        self.operations = n
        self.channels = []
        for key, list_ in channels.items():
            self.channels.append((key, range(n, n + len(list_)), list_))
            n += len(list_)
        self.size = n
        self.after = [[] for _ in range(n)] # by node: those that come after it
        for rank, row in enumerate(t.rows):
            for i in range(self.base[rank], self.base[rank] + len(row) - 1):
                self.after[i].append(i + 1)
        for (source, target, _), moves, list_ in self.channels:
            for i, m in enumerate(list_):
                maker, user = self.base[source] + m.maker, self.base[target] + m.user
                if t.groups:
                    # A transfer begins when both groups are reached: when what stands before them is over; what follows
                    # a group, which is the group's own node, waits for it.
                    for number, start in (m.send, self.base[source]), (m.receive, self.base[target]):
                        if number:
                            self.after[start + number - 1].append(moves[i])
                        self.after[moves[i]].append(start + number)
                else:
                    self.after[maker].append(moves[i])
                    self.after[moves[i]].append(user)
                if i + send_buffers < len(list_):
                    self.after[moves[i]].append(self.base[source] + list_[i + send_buffers].maker)

        self.before = [0] * n # by node: how many edges end there
        for list_ in self.after:
            for node in list_:
                self.before[node] += 1

    def sorted(self, slots=None):
        """The nodes in an order that the edges allow, as far as there is one: fewer than all where there is a cycle."""
        more = defaultdict(list)
        waits = list(self.before)
        if slots is not None:
            for (_, target, _), moves, list_ in self.channels:
                for i in range(len(list_) - slots):
                    more[self.base[target] + list_[i].user].append(moves[i + slots])
                    waits[moves[i + slots]] += 1
        order = [node for node in range(self.size) if not waits[node]]
        for node in order:
            for other in self.after[node] + more[node] if node in more else self.after[node]:
                waits[other] -= 1
                if not waits[other]:
                    order.append(other)
        return order

    def cyclic(self, slots=None):
        return len(self.sorted(slots)) < self.size


def unused(channels):
    """Where messages are written out: the most of a channel that a rank has received and not yet used."""
    return max([i + 1 - sum(1 for other in list_[:i] if other.user < m.receive)
                for list_ in channels.values() for i, m in enumerate(list_)] or [1])


def ample(t, graph):
    """Receive slots with which no send waits for one, whatever takes how long: when a message is made, all that it can
    find unused are those whose use is not known to be over, of which a vector of counts by rank tells."""
    rank_of = [rank for rank, row in enumerate(t.rows) for _ in row] + [None] * (graph.size - graph.operations)
    nothing = [0] * t.ranks
    known = [nothing] * graph.size # operations of each rank that are over when a node begins
    for node in graph.sorted():
        mine = known[node]
        if rank_of[node] is not None:
            mine = list(mine)
            mine[rank_of[node]] = node - graph.base[rank_of[node]] + 1
        for other in graph.after[node]:
            if graph.before[other] == 1:
                known[other] = mine
            else:
                known[other] = [a if a > b else b for a, b in zip(mine, known[other])]
    most = 1
    for (source, target, _), _, list_ in graph.channels:
        used = 0 # of this channel, which is used in order: messages whose use is over
        for i, m in enumerate(list_):
            over = known[graph.base[source] + m.maker][target]
            while list_[used].user < over:
                used += 1
            most = max(most, i - used + 1)
    return most


def memory(t, channels, slots):
    """By rank: bytes held, the most kept, and in receive slots."""
    result = []
    for rank, row in enumerate(t.rows):
        cost = [costs(t.stage(rank, chunk)) for chunk in range(t.chunks)]
        now = most = 0
        for what, parts in row:
            if what == 'group':
                continue
            now += sum(cost[chunk]['kept'] for kind, _, chunk in parts if kind == 'F')
            most = max(most, now)
            for kind, _, chunk in parts:
                now -= {'F': 0, 'B': cost[chunk]['kept'], 'I': cost[chunk]['kept'] - cost[chunk]['weight'],
                        'W': cost[chunk]['weight']}[kind]
        in_slots = sum(slots * max(m.bytes for m in list_) for (_, target, _), list_ in channels.items() if target == rank)
        result.append((sum(c['held'] for c in cost), most, in_slots))
    return result


class Verdict:
    def __init__(self, laws, why=(), slots=0, ample=0, ranks=()):
        self.laws, self.why, self.slots, self.ample, self.ranks = frozenset(laws), list(why), slots, ample, list(ranks)

    def __str__(self):
        if self.laws:
            return ' '.join(sorted(self.laws)) + ''.join(f'; {why}' for why in self.why[:3])
        return f'legal {self.slots} {self.ample} ' + ' '.join('%g,%g,%g' % rank for rank in self.ranks)


def judge(t, slots=0, send_buffers=1, bound=0):
    """slots 0: as few as do; bound 0: none."""
    t.groups = any(what == 'group' for row in t.rows for what, _ in row)
    wrong, at = contents(t)
    if wrong:
        return Verdict(['E0903'], wrong)
    channels, laws, why = messages(t, at), set(), []
    if t.groups:
        wrong, crossing = written(t, channels)
        if wrong:
            return Verdict(['E0908'] + (['E0904'] if crossing else []), wrong)
        for list_ in channels.values():
            list_.sort(key=lambda m: m.send)
    else:
        crossing = []
        for channel, list_ in channels.items():
            list_.sort(key=lambda m: m.maker)
            if any(a.user > b.user for a, b in zip(list_, list_[1:])):
                crossing.append(channel)
    if crossing:
        laws.add('E0904')
        why += [f'crossing: {channel}' for channel in crossing]
    graph = Graph(t, channels, send_buffers)
    if graph.cyclic():
        laws.add('E0905')
        why.append('a cycle')
    if laws:
        return Verdict(laws, why)
    if t.groups:
        fewest = enough = unused(channels)
    else:
        fewest = next(s for s in range(1, t.microbatches * t.chunks + 2) if not graph.cyclic(s))
        enough = ample(t, graph)
    if 0 < slots < fewest:
        return Verdict(['E0906'], [f'{fewest} slots'])
    ranks = memory(t, channels, slots or fewest)
    if 0 < bound < max(map(sum, ranks)):
        return Verdict(['E0907'], [str(ranks)])
    return Verdict([], [], slots or fewest, enough, ranks)


# ---- random timelines ----

def listed(rng):
    """One by list scheduling without a clock: again and again some rank does something that it can do. Mostly it takes
    messages in the order in which they were made; where not, they may well cross."""
    placement = rng.choice(['single', 'loop', 'v', 'bidir'])
    ranks = rng.randint(1, 8)
    chunks = {'single': 1, 'bidir': 2}.get(placement) or rng.choice([1, 2, 2, 3, 4])
    microbatches = rng.randint(1, max(1, min(10, 64 // (ranks * chunks))))
    t = Timeline('listed', placement, ranks, microbatches, chunks)
    in_order, split, pairs = rng.random() < 0.9, rng.choice([0, 0.5, 1]), rng.choice([0, 0, 0.5, 1])
    weight = {'F': rng.choice([1, 3, 10]), 'B': rng.choice([1, 3, 10]), 'W': rng.choice([0.1, 1, 10])}
    ready = [[] for _ in range(ranks)]      # tasks that can be done: (letter of the channel or W, microbatch, chunk)
    heads = defaultdict(list)               # of each channel, the tasks that its messages are for
    for chunk in range(chunks):
        for rank in range(ranks):
            if t.stage(rank, chunk) == 0:
                ready[rank] += [('F', microbatch, chunk) for microbatch in range(t.passing(chunk))]
    sequence = []                           # (rank, operation), in the order in which all happens

    def from_rank(rank, task):
        source = t.source(rank, task[0], task[2]) if task[0] != 'W' else None
        return source[0] if source and source[0] != rank else None

    def open_to(rank):
        return [task for task in ready[rank] if not in_order or from_rank(rank, task) is None
                or heads[from_rank(rank, task), rank, task[0]][0] == task]

    def do(rank, task):
        letter, microbatch, chunk = task
        ready[rank].remove(task)
        if from_rank(rank, task) is not None:
            heads[from_rank(rank, task), rank, letter].remove(task)
        if letter == 'W':
            return task
        to = t.target(rank, letter, chunk)
        if letter == 'F' and not to:
            ready[rank].append(('B', microbatch, chunk))
        if to:
            ready[to[0]].append((letter, microbatch, to[1]))
            if to[0] != rank:
                heads[rank, to[0], letter].append((letter, microbatch, to[1]))
        if letter == 'B' and rng.random() < split:
            ready[rank].append(('W', microbatch, chunk))
            return 'I', microbatch, chunk
        return task

    while any(ready):
        rank = rng.choice([r for r in range(ranks) if ready[r]])
        choice = open_to(rank)
        task = rng.choices(choice, [weight[letter] / (1 + microbatch) for letter, microbatch, _ in choice])[0]
        partners = [other for other in choice if {task[0], other[0]} == {'F', 'B'}]
        if partners and rng.random() < pairs:
            other = rng.choice(partners)
            both = sorted([do(rank, task), do(rank, other)], key=lambda part: part[0] != 'F')
            sequence.append((rank, ('pair', both)))
        else:
            sequence.append((rank, ('task', [do(rank, task)])))
    for rank, operation in sequence:
        t.rows[rank].append(operation)
    return with_groups(rng, t, sequence) if rng.random() < 0.4 else t


def with_groups(rng, t, sequence):
    """Writes the messages out: each at a moment between its making and its use, mostly before the next one is made; and
    unites some groups that stand side by side."""
    made, used, moments = {}, {}, []
    orderly, united = rng.random() < 0.8, rng.choice([0, 0, 0.2, 0.6])
    for moment, (rank, (_, tasks)) in enumerate(sequence):
        for kind, microbatch, chunk in tasks:
            if kind != 'W':
                made[rank, 'F' if kind == 'F' else 'B', microbatch, chunk] = moment
    last = defaultdict(lambda: len(sequence))
    for (rank, letter, microbatch, chunk), moment in sorted(made.items(), key=lambda item: -item[1]):
        to = t.target(rank, letter, chunk)
        if not to or to[0] == rank:
            continue
        use = made[to[0], letter, microbatch, to[1]]
        until = min(use, last[rank, to[0], letter]) if orderly else use
        last[rank, to[0], letter] = moment
        name = (letter, microbatch, chunk)
        moments.append((rng.uniform(moment, max(until, moment + 1e-3)), rank, to[0], name))
    events = sorted([(moment, rank, operation) for moment, (rank, operation) in enumerate(sequence)]
                    + [(moment, rank, ('group', [('S', *name, peer)])) for moment, rank, peer, name in moments]
                    + [(moment, peer, ('group', [('R', *name, rank)])) for moment, rank, peer, name in moments],
                    key=lambda event: event[0])
    t.rows = [[] for _ in range(t.ranks)]
    for _, rank, operation in events:
        row = t.rows[rank]
        if operation[0] == 'group' and row and row[-1][0] == 'group' and rng.random() < united:
            row[-1] = ('group', row[-1][1] + operation[1])
        else:
            row.append(operation)
    return t


# ---- breaking them ----

def change_task(rng, t, task):
    kind, microbatch, chunk = task
    which = rng.randrange(3)
    if which == 0:
        kind = rng.choice('FBIW')
    elif which == 1:
        microbatch = rng.randrange(t.microbatches + (rng.random() < 0.05))
    else:
        chunk = rng.randrange(t.chunks)
    return kind, microbatch, chunk


def edit_messages(rng, t, row, groups):
    """An edit of the groups of one rank, which stand at these places of its row."""
    i = rng.choice(groups)
    parts = list(row[i][1])
    k = rng.randrange(len(parts))
    way, letter, microbatch, chunk, peer = parts[k]
    which = rng.choice(['group', 'drop', 'twice', 'task', 'unite', 'order', 'order', 'exchange', 'exchange'])
    if which == 'group':
        part, j = parts.pop(k), rng.choice(groups)
        if i != j:
            row[j] = ('group', row[j][1] + [part])
    elif which == 'drop':
        del parts[k]
    elif which == 'twice':
        parts.append(parts[k])
    elif which == 'task':
        letter, microbatch, chunk = change_task(rng, t, (letter, microbatch, chunk))
        if letter != 'W':
            parts[k] = (way, 'F' if letter == 'F' else 'B', microbatch, chunk, peer)
    elif which == 'unite' and i + 1 < len(row) and row[i + 1][0] == 'group':
        parts += row.pop(i + 1)[1]
    elif which == 'order': # with the next group, past tasks or not
        beside = [j for j in groups if j + 1 in groups]
        if beside and rng.random() < 0.7:
            i = rng.choice(beside)
        after = [j for j in groups if j > i]
        if after:
            row[i], row[after[0]] = row[after[0]], row[i]
        return
    elif which == 'exchange': # with the next message of the channel, or that one comes here, before it
        others = [(j, l) for j in groups for l, m in enumerate(row[j][1])
                  if (j, l) > (i, k) and (m[0], m[1], m[4]) == (way, letter, peer)]
        if others:
            j, l = others[0]
            theirs = parts if i == j else list(row[j][1])
            if rng.random() < 0.5:
                parts[k], theirs[l] = theirs[l], parts[k]
            else:
                parts.insert(k, theirs.pop(l))
            row[j] = ('group', theirs)
            if not theirs:
                del row[j]
    if parts:
        row[i] = ('group', parts)
    else:
        del row[i]


def edit(rng, t):
    """One edit, such as a hand may make; what comes out need not be wrong."""
    rows = [list(row) for row in t.rows]
    row = rng.choice([row for row in rows if row] or [rows[0]])
    groups = [i for i, (what, _) in enumerate(row) if what == 'group']
    if not row:
        row.append(('task', [(rng.choice('FBIW'), 0, 0)]))
        return Timeline(t.name, t.placement, t.ranks, t.microbatches, t.chunks, rows)
    i = rng.randrange(len(row))
    what, parts = row[i]
    way = rng.choice(['swap', 'swap', 'neighbours', 'neighbours', 'drop', 'twice', 'move', 'move', 'elsewhere', 'task', 'pair',
                      'rows', 'messages', 'messages', 'messages', 'messages'])
    if way == 'swap':
        j = rng.randrange(len(row))
        row[i], row[j] = row[j], row[i]
    elif way == 'neighbours' and i + 1 < len(row):
        row[i], row[i + 1] = row[i + 1], row[i]
    elif way == 'drop':
        del row[i]
    elif way == 'twice':
        row.insert(rng.randrange(len(row) + 1), row[i])
    elif way == 'move':
        operation = row.pop(i)
        row.insert(max(0, min(len(row), i + rng.randint(-3, 3))), operation)
    elif way == 'elsewhere':
        operation = row.pop(i)
        other = rng.choice(rows)
        other.insert(rng.randrange(len(other) + 1), operation)
    elif way == 'task' and what != 'group':
        parts = list(parts)
        k = rng.randrange(len(parts))
        parts[k] = change_task(rng, t, parts[k])
        if what == 'task' or (parts[0][0] == 'F' and parts[1][0] in 'BI'):
            row[i] = (what, parts)
    elif way == 'pair':
        if what == 'pair':
            row[i:i + 1] = [('task', [part]) for part in (parts if rng.random() < 0.5 else parts[::-1])]
        elif i + 1 < len(row) and {row[i][0], row[i + 1][0]} == {'task'}:
            both = sorted(parts + row[i + 1][1], key=lambda task: task[0] != 'F')
            if both[0][0] == 'F' and both[1][0] in 'BI':
                row[i:i + 2] = [('pair', both)]
    elif way == 'rows':
        a, b = rng.randrange(len(rows)), rng.randrange(len(rows))
        rows[a], rows[b] = rows[b], rows[a]
    elif way == 'messages' and groups:
        edit_messages(rng, t, row, groups)
    return Timeline(t.name, t.placement, t.ranks, t.microbatches, t.chunks, rows)


# ---- both judges ----

def ask(judge_program, requests):
    """All answers to a list of requests, each a list of lines, by one run."""
    run = subprocess.run([judge_program], input=''.join(requests), stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f'timeline_check: {judge_program} ended with {run.returncode}')
    return run.stdout


def published(judge_program, numbers):
    """Every named schedule that is defined for these: [(name, text)]."""
    wanted = [(name, p, m, v) for p, m, v in numbers for name in SCHEDULES if name == 'interleaved' or v == 0]
    answers = ask(judge_program, [f'order {name} {p} {m} {v}\n' for name, p, m, v in wanted]).split('.\n')
    # a line `.` ends an answer; a task's chunk is followed by a number, so that nothing else ends in one
    return [(what, text) for what, text in zip(wanted, answers) if text]


SCHEDULES = ['gpipe', '1f1b', 'interleaved', 'zbh1', 'zbv', 'dualpipe', 'dualpipev']


def agree(mine, theirs):
    """Whether the compiler's words are those of a verdict: of several broken laws it may name but one."""
    if not mine.laws:
        return theirs == str(mine)
    said = set(theirs.split())
    return bool(said) and said <= mine.laws


def settings(rng, t, mine):
    """What a legal timeline is asked with besides: one slot too few or some more, one byte too few or just enough."""
    which = rng.randrange(6)
    if which == 0 and mine.slots > 1:
        return mine.slots - 1, 1, 0
    if which == 1:
        return mine.slots + 1, 1, 0
    if which == 2:
        return 0, rng.randint(2, 3), 0
    most = int(max(sum(rank) for rank in mine.ranks))
    if which == 3:
        return 0, 1, most
    if which == 4:
        return 0, 1, most - 1
    return 0, 1, 0


def draw(rng, bases, count):
    """Half legal and half not, as this judge has it: [(text, settings, verdict)]."""
    drawn, wanted = [], [count - count // 2, count // 2]
    while any(wanted):
        t = listed(rng) if rng.random() < 0.6 else rng.choice(bases)
        asked = (0, 1, 0)
        if rng.random() < (0.65 if all(wanted) else 0.95 if wanted[1] else 0.1):
            for _ in range(rng.choice([1, 1, 1, 2, 3])):
                t = edit(rng, t)
        text = t.text()
        try:
            t = Timeline.parse(text)
            mine = judge(t)
            if not mine.laws:
                asked = settings(rng, t, mine)
                if asked != (0, 1, 0):
                    mine = judge(t, *asked)
        except Malformed:
            mine = Verdict(['E0901'])
        broken = bool(mine.laws)
        if wanted[broken]:
            wanted[broken] -= 1
            drawn.append((text, asked, mine))
    return drawn


def compare(judge_program, drawn, show):
    """How many verdicts differ; prints the first few."""
    requests = [f'prove {slots} {sends} {bound}\n{text}.\n' for text, (slots, sends, bound), _ in drawn]
    answers = ask(judge_program, requests).split('\n')[:-1]
    if len(answers) != len(drawn):
        sys.exit(f'timeline_check: {len(answers)} answers to {len(drawn)} timelines')
    different = 0
    for (text, asked, mine), theirs in zip(drawn, answers):
        if agree(mine, theirs):
            continue
        different += 1
        if different <= show:
            print(f'---- slots, send buffers, memory: {asked}\n{text}here:         {mine}\nthe compiler: {theirs}')
    return different


def main():
    options = argparse.ArgumentParser()
    options.add_argument('files', nargs='*')
    options.add_argument('--judge')
    options.add_argument('--schedules')
    options.add_argument('--count', type=int, default=10000)
    options.add_argument('--seed', type=int, default=1)
    options.add_argument('--show', type=int, default=5)
    o = options.parse_args()
    for name in o.files:
        with open(name) as file:
            print(f'{name}: {judge(Timeline.parse(file.read()))}')
    if not o.judge:
        return 0
    rng, began, failed = random.Random(o.seed), time.process_time(), 0

    # every named schedule over a grid: legal
    grid = published(o.judge, [(p, m, 0) for p in range(1, 9) for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17)]
                     + [(p, m, v) for p in (1, 2, 3, 4) for m in (1, 2, 3, 4, 5, 6, 8, 9, 12) for v in (2, 3, 4)])
    verdicts = [(text, (0, 1, 0), judge(Timeline.parse(text))) for _, text in grid]
    for (what, text), (_, _, mine) in zip(grid, verdicts):
        if mine.laws:
            failed += 1
            print(f'---- {what}\n{text}here: {mine}')
    failed += compare(o.judge, verdicts, o.show)
    print(f'{len(grid)} of named schedules')

    bases = [Timeline.parse(text) for _, text in grid if len(text) < 700]
    for name in sorted(os.listdir(o.schedules)) if o.schedules else ():
        if name.endswith('.txt'):
            with open(os.path.join(o.schedules, name)) as file:
                text = file.read()
            bases += [Timeline.parse(text)] * (8 if '[' in text else 1) if len(text) < 2000 else []
    drawn = draw(rng, bases, o.count)
    failed += compare(o.judge, drawn, o.show)
    kinds = {False: defaultdict(int), True: defaultdict(int)} # messages are written out, or not
    for text, _, mine in drawn:
        kinds['[' in text]['+'.join(sorted(mine.laws)) or 'legal'] += 1
    for written_out in False, True:
        of = kinds[written_out]
        print(('messages written out: ' if written_out else 'messages by the order: ')
              + ', '.join(f'{of[kind]} {kind}' for kind in sorted(of, key=lambda kind: (kind != 'legal', kind))))
        for kind in ['legal', 'E0903', 'E0904', 'E0905', 'E0906', 'E0907'] + ['E0908'] * written_out:
            if of[kind] < o.count // 5000:
                failed += 1
                print(f'only {of[kind]} of {kind}: too few to say much')
    print(f'{len(drawn)} random timelines, seed {o.seed}, {time.process_time() - began:.0f} s here: {failed} disagreements')
    return failed > 0


if __name__ == '__main__':
    sys.exit(main())
