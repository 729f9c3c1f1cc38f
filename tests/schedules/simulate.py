#!/usr/bin/env python3
"""simulate.py - event-driven checker for pipeline op-order files (no dependencies, Python 3.8+).

File format (*.txt): '#' header line with key=value words (P, M, V, placement), then one line per rank.
  F<mb>[.c]  forward          B<mb>[.c]  full backward (input + weight gradients)
  I<mb>[.c]  input-gradient   W<mb>[.c]  weight-gradient      (X+Y)  mutually overlapped pair, one op
  c = local chunk (placement loop: stage=c*P+r; v: c0 -> r, c1 -> 2P-1-r, and so on, down and up)
      or direction (placement bidir: c0 chain stage=r, c1 chain stage=P-1-r, M/2 microbatches each)
Companion *.comm.txt adds [S:msg>peer R:msg<peer ...] batched p2p groups at the point where they are issued.
msg is named after the op that produces it on the sending rank.

Three communication models
  async   sends never block, a message arrives `comm` after its producer ends (buffered, tagged)
  naive   each recv/send is a separate blocking rendezvous: recv just before use, send just after production
  fused   as naive, but all sends+recvs between two compute ops form one batched group
  file    exactly the groups of the *.comm.txt file, each group blocking until all its messages are matched
  stream  same groups, but posted asynchronously: one in-order queue per rank pair (an item starts when both
          ends have it at the head), a compute op waits only for the messages it consumes
FIFO checks: order of sends vs order of receives on a channel keyed by (src,dst), by (src,dst,F|B) or by
(src,dst,F|B,chunk) - the finest key that still mismatches would need tags.
"""
import argparse, glob, heapq, os, re, sys
from collections import defaultdict

TOK = re.compile(r'([FBIW])(\d+)(?:\.(\d+))?$')


class Sched:
    def __init__(s, path):
        s.path, s.name = path, os.path.basename(path).split('.')[0]
        s.rows, s.hdr = [], {}
        for line in open(path):
            if line.startswith('#'):
                for w in line[1:].split():
                    if '=' in w:
                        k, v = w.split('=', 1)
                        s.hdr.setdefault(k, v)
            elif line.strip():
                s.rows.append(s._parse(line.strip()))
        s.P, s.M, s.V = int(s.hdr['P']), int(s.hdr['M']), int(s.hdr['V'])
        s.pl = s.hdr['placement']
        assert len(s.rows) == s.P, 'rank count'
        s.nst = s.P if s.pl in ('single', 'bidir') else s.P * s.V
        s.mb = s.M // 2 if s.pl == 'bidir' else s.M

    @staticmethod
    def _tok(t):
        m = TOK.match(t)
        assert m, t
        return (m.group(1), int(m.group(2)), int(m.group(3) or 0))

    def _parse(s, line):
        out = []
        for t in re.findall(r'\[[^\]]*\]|\([^)]*\)|\S+', line):
            if t[0] == '[':
                g = []
                for w in t[1:-1].split():
                    m = re.match(r'([SR]):(\S+?)([<>])(\d+)$', w)
                    g.append((m.group(1), s._tok(m.group(2)), int(m.group(4))))
                out.append(('X', g))
            elif t[0] == '(':
                out.append(('C', tuple(s._tok(x) for x in t[1:-1].split('+'))))
            else:
                out.append(('C', (s._tok(t),)))
        return out

    def stage(s, r, c):
        if s.pl == 'single': return r
        if s.pl == 'loop': return c * s.P + r
        if s.pl == 'v': return c * s.P + (s.P - 1 - r if c % 2 else r)
        return r if c == 0 else s.P - 1 - r

    def where(s, st, c):
        """(rank, local chunk) of a stage; c = chain for bidir."""
        if s.pl == 'single': return st, 0
        if s.pl == 'loop': return st % s.P, st // s.P
        if s.pl == 'v': return (s.P - 1 - st % s.P if st // s.P % 2 else st % s.P), st // s.P
        return (st, 0) if c == 0 else (s.P - 1 - st, 1)

    def deps(s, r, op):
        """list of (rank, kinds, mb, chunk) that must end before op; kinds = acceptable op types."""
        k, m, c = op
        st, d = s.stage(r, c), []
        if k == 'F':
            if st > 0:
                q, cc = s.where(st - 1, c); d.append((q, 'F', m, cc))
        elif k in 'BI':
            d.append((r, 'F', m, c))
            if st < s.nst - 1:
                q, cc = s.where(st + 1, c); d.append((q, 'BI', m, cc))
        else:
            d.append((r, 'I', m, c))
        return d

    def compute(s, r):
        return [x for k, x in s.rows[r] if k == 'C']


def invariants(s):
    bad = []
    for r in range(s.P):
        pos, cnt = {}, defaultdict(int)
        for i, ops in enumerate(s.compute(r)):
            for o in ops:
                cnt[o] += 1; pos[o] = i
        for c in range(s.V):
            for m in range(s.mb):
                f, b, i, w = ((k, m, c) for k in 'FBIW')
                if cnt[f] != 1: bad.append(f'r{r} F{m}.{c} x{cnt[f]}'); continue
                if (cnt[b], cnt[i], cnt[w]) not in ((1, 0, 0), (0, 1, 1)):
                    bad.append(f'r{r} mb{m}.{c} B/I/W={cnt[b]},{cnt[i]},{cnt[w]}'); continue
                bb = b if cnt[b] else i
                if pos[bb] <= pos[f]: bad.append(f'r{r} {m}.{c} backward not after F')
                if cnt[w] and pos[w] <= pos[i]: bad.append(f'r{r} {m}.{c} W not after I')
        extra = [o for o in cnt if o[1] >= s.mb or o[2] >= s.V]
        if extra: bad.append(f'r{r} unknown ops {extra[:3]}')
    return bad


def dur(ops, C, s, r):
    sc = [C.get('scale', {}).get(s.stage(r, o[2]), 1) for o in ops]
    if len(ops) == 2 and C.get('FB') is not None: return C['FB'] * max(sc)
    return sum(C[o[0]] * k for o, k in zip(ops, sc))


def sim_async(s, C):
    """returns (times, stuck) ; times[r] = [(start,end,ops)]"""
    prog = [s.compute(r) for r in range(s.P)]
    ptr, free, end = [0] * s.P, [0.0] * s.P, {}
    wait, times, heap, seq = defaultdict(set), [[] for _ in prog], [], 0
    busy = [False] * s.P

    def kick(r):
        nonlocal seq
        if busy[r] or ptr[r] >= len(prog[r]): return
        ops, t = prog[r][ptr[r]], free[r]
        inner = {(r,) + o for o in ops}
        for o in ops:
            for (q, ks, m, c) in s.deps(r, o):
                hit = [(q, k, m, c) for k in ks if (q, k, m, c) in end]
                if not hit:
                    if any((q, k, m, c) in inner for k in ks): continue
                    for k in ks: wait[(q, k, m, c)].add(r)
                    return
                t = max(t, end[hit[0]] + (C['comm'] if q != r else 0))
        e = t + dur(ops, C, s, r)
        busy[r] = True; seq += 1
        heapq.heappush(heap, (e, seq, r, t, ops))

    for r in range(s.P): kick(r)
    while heap:
        e, _, r, t, ops = heapq.heappop(heap)
        times[r].append((t, e, ops)); free[r] = e; busy[r] = False; ptr[r] += 1
        todo = {r}
        for o in ops:
            end[(r,) + o] = e
            todo |= wait.pop((r,) + o, set())
        for q in sorted(todo): kick(q)
    stuck = [(r, prog[r][ptr[r]]) for r in range(s.P) if ptr[r] < len(prog[r])]
    return times, stuck


def out_msgs(s, r, o):
    """messages produced by op o on rank r -> list of (msg, peer)."""
    k, m, c = o
    st = s.stage(r, c)
    if k == 'F' and st < s.nst - 1:
        q, _ = s.where(st + 1, c)
        if q != r: return [(o, q)]
    if k in 'BI' and st > 0:
        q, _ = s.where(st - 1, c)
        if q != r: return [(('B', m, c), q)]
    return []


def in_msgs(s, r, o):
    k, m, c = o
    res = []
    for (q, ks, mm, cc) in s.deps(r, o):
        if q != r: res.append((('F' if ks == 'F' else 'B', mm, cc), q))
    return res


def lower(s, fuse):
    """derive comm groups from the compute order."""
    prog = []
    for r in range(s.P):
        row, g = [], []
        for ops in s.compute(r):
            g += [('R', m, q) for o in ops for m, q in in_msgs(s, r, o)]
            if fuse:
                if g: row.append(('X', g))
            else:
                row += [('X', [x]) for x in g]
            g = []
            row.append(('C', ops))
            g = [('S', m, q) for o in ops for m, q in out_msgs(s, r, o)]
        row += [('X', g)] if (fuse and g) else [('X', [x]) for x in g]
        prog.append(row)
    return prog


def fifo(prog, fine=0):
    """untagged channel check: k-th send src->dst must be k-th recv at dst from src."""
    snd, rcv = defaultdict(list), defaultdict(list)
    for r, row in enumerate(prog):
        for k, g in row:
            if k == 'X':
                for d, m, q in g:
                    sub = ((), (m[0],), (m[0], m[2]))[fine]
                    (snd[(r, q) + sub] if d == 'S' else rcv[(q, r) + sub]).append(m)
    bad = []
    for ch in sorted(set(snd) | set(rcv)):
        if sorted(snd[ch]) != sorted(rcv[ch]): bad.append((ch, 'set mismatch'))
        elif snd[ch] != rcv[ch]:
            i = next(i for i in range(len(snd[ch])) if snd[ch][i] != rcv[ch][i])
            bad.append((ch, f'#{i} sent {snd[ch][i]} recv {rcv[ch][i]}'))
    return bad


def sim_block(s, prog, C):
    """blocking groups; messages matched by name (fifo() reports order mismatches separately)."""
    ptr, free, times = [0] * s.P, [0.0] * s.P, [[] for _ in range(s.P)]
    arrive = {}
    progress = True
    while progress:
        progress = False
        for r in range(s.P):
            while ptr[r] < len(prog[r]):
                k, g = prog[r][ptr[r]]
                if k == 'C':
                    t = free[r]; e = t + dur(g, C, s, r)
                    times[r].append((t, e, g)); free[r] = e; ptr[r] += 1; progress = True
                    continue
                key = lambda d, m, q: (('S', r, q, m) if d == 'S' else ('R', q, r, m))
                for d, m, q in g:
                    if key(d, m, q) not in arrive: arrive[key(d, m, q)] = free[r]; progress = True
                t, ok = free[r], True
                for d, m, q in g:
                    other = ('R', r, q, m) if d == 'S' else ('S', q, r, m)
                    if other not in arrive: ok = False; break
                    t = max(t, max(arrive[other], arrive[key(d, m, q)]) + C['comm'])
                if not ok: break
                free[r] = t; ptr[r] += 1; progress = True
    stuck = [(r, prog[r][ptr[r]]) for r in range(s.P) if ptr[r] < len(prog[r])]
    return times, stuck


def sim_stream(s, prog, C):
    """asynchronous groups, one in-order queue per rank pair; matched by name at the two queue heads."""
    n = s.P
    ptr, free, times = [0] * n, [0.0] * n, [[] for _ in range(n)]
    q = defaultdict(list)                     # (rank, peer) -> [post_time, {(dir,msg)}]
    head, ready_prev = defaultdict(int), defaultdict(float)
    arr = {}
    progress = True
    while progress:
        progress = False
        for r in range(n):
            while ptr[r] < len(prog[r]):
                k, g = prog[r][ptr[r]]
                if k == 'X':
                    by = defaultdict(set)
                    for d, m, p in g: by[p].add((d, m))
                    for p, ops in by.items(): q[(r, p)].append([free[r], ops, 0.0])
                else:
                    need = [(r, m, p) for o in g for m, p in in_msgs(s, r, o)]
                    if any(x not in arr for x in need): break
                    t = max([free[r]] + [arr[x] for x in need]); e = t + dur(g, C, s, r)
                    times[r].append((t, e, g)); free[r] = e
                ptr[r] += 1; progress = True
        for a, b in sorted({tuple(sorted(k)) for k in q}):
            while head[(a, b)] < len(q[(a, b)]) and head[(b, a)] < len(q[(b, a)]):
                x, y = q[(a, b)][head[(a, b)]], q[(b, a)][head[(b, a)]]
                hit = [(d, m) for d, m in x[1] if ('R' if d == 'S' else 'S', m) in y[1]]
                if not hit: break
                t = max(x[0], ready_prev[(a, b)], y[0], ready_prev[(b, a)]) + C['comm']
                for d, m in hit:
                    arr[(b, m, a) if d == 'S' else (a, m, b)] = t
                    x[1].discard((d, m)); y[1].discard(('R' if d == 'S' else 'S', m))
                x[2] = y[2] = t; progress = True
                for kk, it in (((a, b), x), ((b, a), y)):
                    if not it[1]: head[kk] += 1; ready_prev[kk] = it[2]
    stuck = [(r, prog[r][ptr[r]]) for r in range(n) if ptr[r] < len(prog[r])]
    return times, stuck


def check_recv_before_use(s, prog):
    bad = []
    for r, row in enumerate(prog):
        have = set(); made = set()
        for k, g in row:
            if k == 'X':
                for d, m, q in g:
                    if d == 'R': have.add((m, q))
                    elif m not in made: bad.append(f'r{r} sends {m} before producing it')
            else:
                for o in g:
                    for mq in in_msgs(s, r, o):
                        if mq not in have: bad.append(f'r{r} uses {mq} before recv')
                for o in g:
                    made.add(o)
                    if o[0] in 'BI': made.add(('B',) + o[1:])
    return bad


def peak(s, upto):
    """peak live (F done, not released) chunks per rank; upto='W' releases at W, 'I' at I."""
    res = []
    for r in range(s.P):
        cur = mx = 0
        for ops in s.compute(r):
            cur += sum(o[0] == 'F' for o in ops); mx = max(mx, cur)
            for o in ops:
                if o[0] == 'B' or o[0] == upto: cur -= 1
        res.append(mx)
    return res


def qdepth(s, times):
    """max messages produced but not yet consumed on any (src,dst,kind) channel (receive slots needed)."""
    end = {(r,) + o: e for r, t in enumerate(times) for a, e, ops in t for o in ops}
    ev = defaultdict(list)
    for r, t in enumerate(times):
        for a, e, ops in t:
            for o in ops:
                for (q, ks, m, c) in s.deps(r, o):
                    if q == r: continue
                    k = next(k for k in ks if (q, k, m, c) in end)
                    ch = (q, r, 'F' if k == 'F' else 'B')
                    ev[ch] += [(end[(q, k, m, c)], 1), (a, -1 if a > end[(q, k, m, c)] else 2)]
    best = 0
    for ch, L in ev.items():
        cur = 0
        for t, d in sorted(((t, d) for t, d in L if d != 2), key=lambda x: (x[0], x[1])):
            cur += d; best = max(best, cur)
            if d == 1 and (t, 2) in L: L.remove((t, 2)); cur -= 1
    return best


def stats(times):
    T = max(t[-1][1] for t in times) - min(t[0][0] for t in times)
    busy = [sum(e - a for a, e, _ in t) for t in times]
    span = [t[-1][1] - t[0][0] for t in times]
    return T, busy, span


def formula(s, C):
    """published bubble (makespan - busy) in the costs C of one chunk/stage; (value, text) or None.
    All are in units of the file's own chunk."""
    F, B, W, I = C['F'], C['B'], C['W'], C['I']
    FB = C['FB'] if C.get('FB') is not None else F + B
    n, P, M, V = re.sub(r'_P\d+.*', '', s.name), s.P, s.M, s.V
    base = n.replace('_torch', '').replace('_sail', '')
    if base in ('gpipe', '1f1b', 'interleaved'): return (P - 1) * (F + B), '(P-1)(F+B)'
    if base == 'interleavedzb': return (P - 1) * (F + B - 2 * W), '(P-1)(F+B-2W) [inferred]'
    if base in ('zbh1', 'zb1p'): return (P - 1) * (F + B - 2 * W), '(P-1)(F+B-2W)'
    if base == 'zbh2': return (P - 1) * (F + B - 3 * W), '(P-1)(F+B-3W) [span]'
    if base == 'zbv': return 0.0, '0 if F=I=W [span]'
    if base == 'dualpipe': return (P / 2 - 1) * (FB + B - 3 * W), '(P/2-1)(F&B+B-3W)'
    if base == 'dualpipev': return (P - 1) * (FB + B - 3 * W), '(P-1)(F&B+B-3W)  [PP=2P]'
    return None


def run(path, C, verbose=False):
    s = Sched(path)
    rep = dict(name=s.name, inv=invariants(s))
    times, stuck = sim_async(s, C)
    rep['deadlock'] = bool(stuck)
    if stuck:
        rep['stuck'] = stuck; return s, rep
    T, busy, span = stats(times)
    # stage-order check on resulting times
    end = {(r,) + o: e for r, t in enumerate(times) for a, e, ops in t for o in ops}
    start = {(r,) + o: a for r, t in enumerate(times) for a, e, ops in t for o in ops}
    for r in range(s.P):
        for ops in s.compute(r):
            for o in ops:
                for (q, ks, m, c) in s.deps(r, o):
                    k = next(k for k in ks if (q, k, m, c) in end)
                    if (q, k, m, c) != (r,) + o and start[(r,) + o] + 1e-9 < end[(q, k, m, c)]:
                        rep['inv'].append(f'time order r{r} {o}')
    rep.update(T=T, busy=busy, span=span, pkW=peak(s, 'W'), pkI=peak(s, 'I'), q=qdepth(s, times))
    for mode in ('naive', 'fused'):
        prog = lower(s, mode == 'fused')
        t2, st2 = sim_block(s, prog, C)
        rep[mode] = 'DEADLOCK' if st2 else stats(t2)[0]
        if mode == 'naive': rep['fifo_order'] = [fifo(prog, i) for i in range(3)]
    cf = path[:-4] + '.comm.txt'
    if os.path.exists(cf):
        sc = Sched(cf)
        assert [sc.compute(r) for r in range(s.P)] == [s.compute(r) for r in range(s.P)], 'comm file differs'
        t3, st3 = sim_block(sc, sc.rows, C)
        rep['file'] = 'DEADLOCK' if st3 else stats(t3)[0]
        t4, st4 = sim_stream(sc, sc.rows, C)
        rep['stream'] = 'DEADLOCK' if st4 else stats(t4)[0]
        rep['file_fifo'] = fifo(sc.rows)
        rep['file_use'] = check_recv_before_use(sc, sc.rows)
    if verbose:
        for r, t in enumerate(times):
            print(r, ' '.join(f'{a:g}-{e:g}:' + '+'.join(f'{o[0]}{o[1]}.{o[2]}' for o in ops) for a, e, ops in t))
    return s, rep


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('files', nargs='*')
    ap.add_argument('-F', type=float, default=1); ap.add_argument('-B', type=float, default=2)
    ap.add_argument('-W', type=float, default=1); ap.add_argument('--comm', type=float, default=0)
    ap.add_argument('--fb', type=float, default=None, help='cost of an overlapped pair (default F+B)')
    ap.add_argument('--scale', default='', help='per-stage cost multipliers, e.g. 3:1.5,0:1.2 (uneven stages)')
    ap.add_argument('-v', action='store_true')
    a = ap.parse_args()
    C = dict(F=a.F, B=a.B, W=a.W, I=a.B - a.W, comm=a.comm, FB=a.fb,
             scale={int(x.split(':')[0]): float(x.split(':')[1]) for x in a.scale.split(',') if x})
    files = a.files or sorted(f for f in glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), '*.txt'))
                              if not f.endswith('.comm.txt'))
    print(f'# F={a.F} B={a.B} (I={a.B-a.W}, W={a.W}) F&B={a.fb if a.fb is not None else a.F+a.B} comm={a.comm}')
    cols = ['schedule', 'inv', 'makespan', 'bubble(mk-busy) min..max', 'bubble%', 'span-bubble max', 'formula', 'match',
            'peak(W) per rank', 'peak(I)', 'naive', 'fused', 'file', 'stream', 'fifo by pair/+kind/+chunk', 'fifo file', 'recv slots']
    print('\t'.join(cols))
    bad = 0
    for f in files:
        s, r = run(f, C, a.v)
        if r['deadlock']:
            print(f"{r['name']}\tDEADLOCK stuck at {r['stuck']} invariants {r['inv'] or 'ok'}"); bad += 1; continue
        bub = [r['T'] - b for b in r['busy']]
        sb = max(x - b for x, b in zip(r['span'], r['busy']))
        fm = formula(s, C)
        m = ''
        if fm:
            got = sb if '[span]' in fm[1] else max(bub)
            m = 'ok' if abs(got - fm[0]) < 1e-6 else f'NO({got:g} vs {fm[0]:g})'
        fx = lambda v: v if isinstance(v, str) else f'{v:g}'
        inv = 'ok' if not r['inv'] else f"BAD:{r['inv'][0]}(+{len(r['inv'])-1})"
        ff = r.get('file_fifo')
        use = r.get('file_use') or []
        print('\t'.join([r['name'], inv, f"{r['T']:g}", f'{min(bub):g}..{max(bub):g}', f"{100*max(bub)/r['T']:.1f}", f'{sb:g}',
                         f'{fm[0]:g} {fm[1]}' if fm else '-', m, ','.join(map(str, r['pkW'])), ','.join(map(str, r['pkI'])),
                         fx(r['naive']), fx(r['fused']), fx(r.get('file', '-')), fx(r.get('stream', '-')),
                         '/'.join('ok' if not x else f'BAD{len(x)}' for x in r['fifo_order']),
                         '-' if ff is None else ('ok' if not ff and not use else f'{len(ff)} ch {ff[:1]} {use[:1]}'), str(r['q'])]))
        bad += bool(r['inv'])
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
