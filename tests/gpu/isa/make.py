#!/usr/bin/env python3
"""Writes the cases of this folder: what each opcode gives, computed here from its description in the PTX ISA, in exact
arithmetic (fractions), apart from the simulator. The cases are kept; this is run when one is added.

    make.py FOLDER
"""
import math
import random
import sys
from fractions import Fraction as F

random.seed(7)
forms = {}


class Format:
    def __init__(self, name, exponent, mantissa, top=False):
        self.name, self.e, self.m, self.top = name, exponent, mantissa, top
        self.bits = 1 + exponent + mantissa
        self.bias = 2 ** (exponent - 1) - 1
        self.sign = 1 << exponent + mantissa
        self.inf = (2**exponent - 1) << mantissa
        self.max = self.inf + (1 << mantissa) - 2 if top else self.inf - 1

    def value(self, b):
        """A Fraction, or a float inf or nan. The sign of zero is lost: see negative()."""
        s = -1 if b & self.sign else 1
        e, m = b >> self.m & (2**self.e - 1), b & (2**self.m - 1)
        if self.top and b & (self.sign - 1) == self.sign - 1:
            return math.nan
        if not self.top and e == 2**self.e - 1:
            return math.nan if m else s * math.inf
        return s * (F(m, 2**self.m) * F(2) ** (1 - self.bias) if e == 0 else (1 + F(m, 2**self.m)) * F(2) ** (e - self.bias))

    def negative(self, b):
        return bool(b & self.sign)

    def encode(self, x, mode="rn", negative_zero=False, finite=False):
        if isinstance(x, float):
            if math.isnan(x):
                return "nan"
            return (self.sign if x < 0 else 0) | (self.max if finite else self.inf)
        if x == 0:
            return self.sign if negative_zero else 0
        neg, x = x < 0, abs(x)
        e = 0
        while F(2) ** (e + 1) <= x:
            e += 1
        while F(2) ** e > x:
            e -= 1
        e = max(e, 1 - self.bias)
        q = x / F(2) ** (e - self.m)
        low = q.numerator // q.denominator
        rest = q - low
        up = {"rn": rest > F(1, 2) or (rest == F(1, 2) and low % 2 == 1), "rz": False, "rm": neg and rest > 0, "rp": not neg and rest > 0,
              "rna": rest >= F(1, 2)}[mode]
        low += up
        if low == 2 ** (self.m + 1):
            low //= 2
            e += 1
        b = low if low < 2**self.m else ((e + self.bias) << self.m) + low - 2**self.m
        if b > self.max:
            stays = finite or mode == "rz" or (mode == "rm" and not neg) or (mode == "rp" and neg)
            b = self.max if stays else self.inf
        return (self.sign if neg else 0) | b


f16, bf16, f32, f64 = Format("f16", 5, 10), Format("bf16", 8, 7), Format("f32", 8, 23), Format("f64", 11, 52)
e4m3, e5m2 = Format("e4m3", 4, 3, True), Format("e5m2", 5, 2)


def hexed(x):
    return x if isinstance(x, str) else hex(x)


def case(opcode, text, outs, ins, rows, extra=""):
    forms.setdefault(opcode, []).append(
        f"form {text} | {outs} | {ins}\n" + extra + "".join(" ".join(map(hexed, a)) + " = " + " ".join(map(hexed, d)) + "\n" for a, d in rows))


def refused(opcode, text, outs, ins):
    forms.setdefault(opcode, []).append(f"refused {text} | {outs} | {ins}\n")


def b_of(n):
    return f"b{max(n, 16)}"


def edges(n):
    top = 1 << n - 1
    return [0, 1, 2, 3, 31, 32, 63, 64, top - 1, top, top + 1, (1 << n) - 1, (1 << n) - 2, 0x5555555555555555 & ((1 << n) - 1)]


def integers(n, count, arity):
    some = [[random.choice(edges(n)) for _ in range(arity)] for _ in range(count)]
    return some + [[random.getrandbits(random.randint(1, n)) for _ in range(arity)] for _ in range(count)]


def signed(x, n):
    return x - (1 << n) if x >> n - 1 else x


def whole(t):
    return int(t[1:])


def mask(x, n):
    return x & ((1 << n) - 1)


def val(x, t):
    return signed(x, whole(t)) if t[0] == "s" else x


def cdiv(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


ALL = ["u16", "s16", "u32", "s32", "u64", "s64"]


def integer_forms():
    def binary(op, types, f, arity=2, name=None, special=lambda a, t: True):
        for t in types:
            n = whole(t)
            rows = [(a, [mask(f(*[val(x, t) for x in a], n), n)]) for a in integers(n, 12, arity) if special(a, t)]
            args = ", ".join("$" + x for x in "abc"[:arity])
            case(name or op.split(".")[0], f"{op}.{t} $d, {args};", b_of(n), " ".join([b_of(n)] * arity), rows)

    binary("add", ALL, lambda a, b, n: a + b)
    binary("sub", ALL, lambda a, b, n: a - b)
    binary("mul.lo", ALL, lambda a, b, n: a * b)
    binary("mul.hi", ALL, lambda a, b, n: a * b >> n)
    binary("mad.lo", ALL, lambda a, b, c, n: a * b + c, 3)
    binary("mad.hi", ["u32", "s32"], lambda a, b, c, n: (a * b >> n) + c, 3)
    nonzero = lambda a, t: a[1] != 0 and not (t[0] == "s" and signed(a[1], whole(t)) == -1 and a[0] == 1 << whole(t) - 1)
    binary("div", ALL, lambda a, b, n: cdiv(a, b), special=nonzero)
    binary("rem", ALL, lambda a, b, n: a - b * cdiv(a, b), special=nonzero)
    binary("min", ALL, lambda a, b, n: min(a, b))
    binary("max", ALL, lambda a, b, n: max(a, b))
    binary("abs", ["s16", "s32", "s64"], lambda a, n: abs(a), 1)
    binary("neg", ["s16", "s32", "s64"], lambda a, n: -a, 1)
    for op, f in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)):
        for t in ("b16", "b32", "b64"):
            n = whole(t)
            case(op, f"{op}.{t} $d, $a, $b;", t, f"{t} {t}", [(a, [f(*a)]) for a in integers(n, 6, 2)])
        case(op, f"{op}.pred $d, $a, $b;", "pred", "pred pred", [([a, b], [f(a, b)]) for a in (0, 1) for b in (0, 1)])
    for t in ("b16", "b32", "b64"):
        n = whole(t)
        case("not", f"not.{t} $d, $a;", t, t, [(a, [mask(~a[0], n)]) for a in integers(n, 6, 1)])
        case("cnot", f"cnot.{t} $d, $a;", t, t, [(a, [int(a[0] == 0)]) for a in integers(n, 6, 1)])
    case("not", "not.pred $d, $a;", "pred", "pred", [([0], [1]), ([1], [0])])
    for t, w in (("u16", 32), ("s16", 32), ("u32", 64), ("s32", 64)):
        n = whole(t)
        case("mul", f"mul.wide.{t} $d, $a, $b;", b_of(w), f"{b_of(n)} {b_of(n)}",
             [(a, [mask(val(a[0], t) * val(a[1], t), w)]) for a in integers(n, 10, 2)])
        case("mad", f"mad.wide.{t} $d, $a, $b, $c;", b_of(w), f"{b_of(n)} {b_of(n)} {b_of(w)}",
             [(a + [c], [mask(val(a[0], t) * val(a[1], t) + c, w)]) for a in integers(n, 10, 2) for c in [random.getrandbits(w)]])
    shifts = [0, 1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0xffffffff]
    for t in ("b16", "b32", "b64"):
        n = whole(t)
        case("shl", f"shl.{t} $d, $a, $b;", t, f"{t} b32", [([a, s], [mask(a << s, n) if s < n else 0]) for s in shifts for a in (1, (1 << n) - 3)])
    for t in ALL + ["b16", "b32", "b64"]:
        n = whole(t)
        case("shr", f"shr.{t} $d, $a, $b;", b_of(n), f"{b_of(n)} b32",
             [([a, s], [mask(val(a, t) >> min(s, n), n)]) for s in shifts for a in (1 << n - 1, (1 << n - 1) - 3)])
    for n in (32, 64):
        rows = []
        for _ in range(24):
            a, b, p, c = random.getrandbits(n), random.getrandbits(n), random.choice([0, 3, 31, 32, 63, 64, 255]), random.choice([0, 1, 8, 31, 32, 64, 255])
            d = b
            for i in range(c):  # as the ISA describes it
                if p + i < n:
                    d = d & ~(1 << p + i) | (a >> i & 1) << p + i
            rows.append(([a, b, p, c], [d]))
        case("bfi", f"bfi.b{n} $d, $a, $b, $c, $f;", f"b{n}", f"b{n} b{n} b32 b32", rows)
        for t in (f"u{n}", f"s{n}"):
            rows = []
            for _ in range(24):
                a, p, c = random.getrandbits(n), random.choice([0, 3, 31, 32, 63, 64, 255]), random.choice([0, 1, 8, 31, 32, 64, 255])
                sbit = 0 if t[0] == "u" or c == 0 else a >> min(p + c - 1, n - 1) & 1
                d = 0
                for i in range(n):
                    d |= (a >> p + i & 1 if i < c and p + i < n else sbit) << i
                rows.append(([a, p, c], [d]))
            case("bfe", f"bfe.{t} $d, $a, $b, $c;", f"b{n}", f"b{n} b32 b32", rows)
            rows = []
            for a, in integers(n, 10, 1):
                x = mask(~a, n) if t[0] == "s" and a >> n - 1 else a
                rows.append(([a], [x.bit_length() - 1 if x else 0xffffffff]))
            case("bfind", f"bfind.{t} $d, $a;", "b32", f"b{n}", rows)
            case("bfind", f"bfind.shiftamt.{t} $d, $a;", "b32", f"b{n}", [(a, [n - 1 - d[0] if d[0] < n else 0xffffffff]) for a, d in rows])
        case("popc", f"popc.b{n} $d, $a;", "b32", f"b{n}", [(a, [bin(a[0]).count("1")]) for a in integers(n, 10, 1)])
        case("clz", f"clz.b{n} $d, $a;", "b32", f"b{n}", [(a, [n - a[0].bit_length()]) for a in integers(n, 10, 1)])
        case("brev", f"brev.b{n} $d, $a;", f"b{n}", f"b{n}", [(a, [int(bin(a[0] | 1 << n)[:2:-1], 2)]) for a in integers(n, 10, 1)])
    rows = []
    for _ in range(20):
        a, b, c = (random.getrandbits(32) for _ in range(3))
        source = [x >> 8 * i & 255 for x in (a, b) for i in range(4)]
        d = 0
        for i in range(4):
            s = c >> 4 * i & 15
            byte = source[s & 7]
            d |= ((255 if byte >> 7 else 0) if s & 8 else byte) << 8 * i
        rows.append(([a, b, c], [d]))
    case("prmt", "prmt.b32 $d, $a, $b, $c;", "b32", "b32 b32 b32", rows)
    for how in ("wrap", "clamp"):
        rows_l, rows_r = [], []
        for c in (0, 1, 7, 31, 32, 33, 64):
            a, b = random.getrandbits(32), random.getrandbits(32)
            n = c & 31 if how == "wrap" else min(c, 32)
            rows_l.append(([a, b, c], [mask(((b << 32 | a) << n) >> 32, 32)]))
            rows_r.append(([a, b, c], [mask((b << 32 | a) >> n, 32)]))
        case("shf", f"shf.l.{how}.b32 $d, $a, $b, $c;", "b32", "b32 b32 b32", rows_l)
        case("shf", f"shf.r.{how}.b32 $d, $a, $b, $c;", "b32", "b32 b32 b32", rows_r)
    for name, table in (("a & b & c", 0x80), ("a | b | c", 0xFE), ("a & b & ~c", 0x40), ("(a & b) | c", 0xEA), ("a ^ b ^ c", 0x96), ("(a & ~b) ^ c", 0x9A)):
        rows = [(a, [mask(eval(name, {}, dict(zip("abc", a))), 32)]) for a in integers(32, 4, 3)]
        case("lop3", f"lop3.b32 $d, $a, $b, $c, {table};", "b32", "b32 b32 b32", rows)
    for t in ("u32", "s32"):
        for u in ("u32", "s32"):
            rows = []
            for _ in range(8):
                a, b, c = (random.getrandbits(32) for _ in range(3))
                byte = lambda x, i, t: signed(x >> 8 * i & 255, 8) if t[0] == "s" else x >> 8 * i & 255
                rows.append(([a, b, c], [mask(c + sum(byte(a, i, t) * byte(b, i, u) for i in range(4)), 32)]))
            case("dp4a", f"dp4a.{t}.{u} $d, $a, $b, $c;", "b32", "b32 b32 b32", rows)
    compare = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
               "ge": lambda a, b: a >= b}
    for t in ALL:
        n = whole(t)
        for how, f in compare.items():
            rows = [(a, [int(f(val(a[0], t), val(a[1], t)))]) for a in integers(n, 6, 2) + [[5, 5]]]
            case("setp", f"setp.{how}.{t} $d, $a, $b;", "pred", f"{b_of(n)} {b_of(n)}", rows)
    for how, f in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
        case("setp", f"setp.{how}.u32 $d, $a, $b;", "pred", "b32 b32", [(a, [int(compare[f](*a))]) for a in integers(32, 6, 2)])
    for join, f in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)):
        for no in ("", "!"):
            rows = []
            for a in integers(32, 4, 2):
                for c in (0, 1):
                    x, k = int(signed(a[0], 32) < signed(a[1], 32)), c ^ (no == "!")
                    rows.append((a + [c], [f(x, k), f(1 - x, k)]))
            case("setp", f"setp.lt.{join}.s32 $d|$e2, $a, $b, {no}$c;", "pred pred", "b32 b32 pred", rows)
    for t in ("b16", "b32", "b64"):
        case("selp", f"selp.{t} $d, $a, $b, $c;", t, f"{t} {t} pred", [(a + [c], [a[0] if c else a[1]]) for a in integers(whole(t), 3, 2) for c in (0, 1)])
        case("mov", f"mov.{t} $d, $a;", t, t, [(a, a) for a in integers(whole(t), 3, 1)])
    case("mov", "mov.b32 $d, {$a, $b};", "b32", "b16 b16", [(a, [a[0] | a[1] << 16]) for a in integers(16, 4, 2)])
    case("mov", "mov.b64 $d, {$a, $b};", "b64", "b32 b32", [(a, [a[0] | a[1] << 32]) for a in integers(32, 4, 2)])
    case("mov", "mov.b64 $d, {$a, 0x12345678};", "b64", "b32", [(a, [a[0] | 0x12345678 << 32]) for a in integers(32, 2, 1)])
    case("mov", "mov.b64 $d, {$a, $b, $c, $f};", "b64", "b16 b16 b16 b16", [(a, [sum(x << 16 * i for i, x in enumerate(a))]) for a in integers(16, 4, 4)])
    case("mov", "mov.b32 {$d, $e2}, $a;", "b16 b16", "b32", [(a, [a[0] & 0xffff, a[0] >> 16]) for a in integers(32, 4, 1)])
    case("mov", "mov.b64 {$d, $e2}, $a;", "b32 b32", "b64", [(a, [a[0] & 0xffffffff, a[0] >> 32]) for a in integers(64, 4, 1)])
    case("mov", "mov.u32 $d, %tid.x;", "b32", "b32", [([0], [i]) for i in range(40)])
    for name, f in (("lt", lambda l: (1 << l) - 1), ("le", lambda l: (2 << l) - 1), ("eq", lambda l: 1 << l),
                    ("gt", lambda l: mask(-(2 << l), 32)), ("ge", lambda l: mask(-(1 << l), 32))):
        case("mov", f"mov.u32 $d, %lanemask_{name};", "b32", "b32", [([0], [f(i)]) for i in range(32)])
    case("mov", "mov.u32 $d, %laneid; mov.u32 $e2, %warpid; mov.u32 $e3, %ntid.x; mov.u32 $e4, %nctaid.y;", "b32 b32 b32 b32", "b32",
         [([0], [i % 32, i // 32, 70, 1]) for i in range(70)])


SOME = {
    32: [0, 0x80000000, 0x3f800000, 0xbf800000, 0x40490fdb, 1, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
         0x33800001, 0x4b7fffff, 0x3fffffff, 0x00400000],
    64: [0, 1 << 63, 0x3ff0000000000000, 0xbff8000000000001, 1, 0x000fffffffffffff, 0x7fefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
         0x7ff8000000000000, 0x400921fb54442d18],
    16: [0, 0x8000, 0x3c00, 0xbc00, 1, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3555, 0x6400],
}


def floats(fmt, count, arity):
    edge = SOME[fmt.bits] if fmt is not bf16 else [x >> 16 for x in SOME[32]]
    out = [[random.choice(edge) for _ in range(arity)] for _ in range(count)]
    for _ in range(count):  # of like size, so that sums round
        e = random.randint(fmt.bias - 6, fmt.bias + 6)
        out.append([random.getrandbits(1) << fmt.bits - 1 | max(0, e + random.randint(-3, 3)) << fmt.m | random.getrandbits(fmt.m) for _ in range(arity)])
    return out


def special(op, v):
    """What floats give where one is infinite or nan."""
    try:
        x = [float(a) if isinstance(a, float) else (2.0 if a > 0 else -2.0 if a < 0 else 0.0) for a in v]
        d = {"add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1], "fma": lambda: x[0] * x[1] + x[2],
             "div": lambda: x[0] / x[1]}[op]()
        return d
    except ZeroDivisionError:
        return math.nan


def arithmetic(op, fmt, bits, mode):
    v, neg = [fmt.value(b) for b in bits], [fmt.negative(b) for b in bits]
    if any(isinstance(x, float) for x in v):
        if op == "div" and not isinstance(v[0], float) and math.isinf(v[1]):
            return fmt.sign if neg[0] != neg[1] else 0
        if op == "div" and isinstance(v[0], float) and math.isinf(v[0]) and not isinstance(v[1], float):
            return fmt.encode(-math.inf if neg[0] != neg[1] else math.inf)
        return fmt.encode(special(op, v))
    if op == "div":
        if v[1] == 0:
            return "nan" if v[0] == 0 else fmt.encode(-math.inf if neg[0] != neg[1] else math.inf)
        return fmt.encode(v[0] / v[1], mode, neg[0] != neg[1])
    if op in ("add", "sub"):
        second = neg[1] != (op == "sub")
        x = v[0] + (v[1] if op == "add" else -v[1])
        zero = (neg[0] and second) if neg[0] == second else mode == "rm"
        return fmt.encode(x, mode, zero)
    if op == "mul":
        return fmt.encode(v[0] * v[1], mode, neg[0] != neg[1])
    p = neg[0] != neg[1]
    x = v[0] * v[1] + v[2]
    return fmt.encode(x, mode, (p and neg[2]) if p == neg[2] else mode == "rm")


def root(x, fmt, mode):
    s = 1200
    n = x * 4**s
    n = n.numerator // n.denominator
    r = math.isqrt(n)
    exact = r * r == n and (x * 4**s).denominator == 1
    return fmt.encode(F(r, 2**s) + (0 if exact else F(1, 2 ** (s + 8))), mode)


def float_forms():
    for op, arity in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("div", 2)):
        args = ", ".join("$" + x for x in "abc"[:arity])
        for fmt in (f32, f64):
            for mode in ("rn", "rz", "rm", "rp"):
                n = fmt.bits
                rows = [(a, [arithmetic(op, fmt, a, mode)]) for a in floats(fmt, 14, arity)]
                case(op, f"{op}.{mode}.{fmt.name} $d, {args};", fmt.name, " ".join([f"b{n}"] * arity), rows)
            if op in ("add", "sub", "mul"):
                case(op, f"{op}.{fmt.name} $d, {args};", fmt.name, " ".join([f"b{n}"] * arity), [(a, [arithmetic(op, fmt, a, "rn")]) for a in floats(fmt, 4, arity)])
        if op == "div":
            continue
        for fmt in (f16, bf16):
            rows = [(a, [arithmetic(op, fmt, a, "rn")]) for a in floats(fmt, 16, arity)]
            name = f"{op}.rn.{fmt.name}" if fmt is f16 or op == "fma" else f"{op}.rn.{fmt.name}"
            case(op, f"{name} $d, {args};", fmt.name, " ".join(["b16"] * arity), rows)
            pairs = [r for r in rows if r[1][0] != "nan"]
            both = [([x | y << 16 for x, y in zip(p[0], q[0])], [p[1][0] | q[1][0] << 16]) for p, q in zip(pairs, pairs[1:])]
            case(op, f"{name}x2 $d, {args};", "b32", " ".join(["b32"] * arity), both)
    flush = lambda b: b & 0x80000000 if b >> 23 & 255 == 0 else b
    for op, arity in (("add", 2), ("mul", 2), ("fma", 3)):
        args = ", ".join("$" + x for x in "abc"[:arity])
        rows = []
        for a in floats(f32, 12, arity):
            d = arithmetic(op, f32, [flush(x) for x in a], "rn")
            rows.append((a, [d if d == "nan" else flush(d)]))
        case(op, f"{op}.rn.ftz.f32 $d, {args};", "f32", " ".join(["b32"] * arity), rows)
        rows = []
        for a in floats(f32, 12, arity):
            d = arithmetic(op, f32, a, "rn")
            v = 0 if d == "nan" else f32.value(d)
            rows.append((a, [0 if d == "nan" or v <= 0 else f32.encode(F(1)) if v > 1 else d]))
        case(op, f"{op}.rn.sat.f32 $d, {args};", "f32", " ".join(["b32"] * arity), rows)
    for fmt, types in ((f32, "b32"), (f64, "b64"), (f16, "b16"), (bf16, "b16")):
        for op in ("min", "max"):
            for how in ("", ".NaN") if fmt is not f64 else ("",):
                rows = []
                for a in floats(fmt, 16, 2):
                    v = [fmt.value(x) for x in a]
                    nans = [isinstance(x, float) and math.isnan(x) for x in v]
                    if all(nans) or (any(nans) and how):
                        d = "nan"
                    elif any(nans):
                        d = a[1] if nans[0] else a[0]
                    else:
                        key = lambda b: (fmt.value(b), not fmt.negative(b))
                        d = min(a, key=key) if op == "min" else max(a, key=key)
                    rows.append((a, [d]))
                case(op, f"{op}{how}.{fmt.name} $d, $a, $b;", fmt.name, f"{types} {types}", rows)
        rows = [([a], [a ^ fmt.sign]) for a, in floats(fmt, 8, 1) if not isinstance(fmt.value(a), float)]
        case("neg", f"neg.{fmt.name} $d, $a;", types, types, rows)
        rows = [([a], [a & ~fmt.sign]) for a, in floats(fmt, 8, 1) if not isinstance(fmt.value(a), float)]
        case("abs", f"abs.{fmt.name} $d, $a;", types, types, rows)
    for fmt in (f32, f64):
        t = f"b{fmt.bits}"
        case("copysign", f"copysign.{fmt.name} $d, $a, $b;", t, f"{t} {t}", [(a, [a[1] & ~fmt.sign | a[0] & fmt.sign]) for a in floats(fmt, 6, 2)])
        one = fmt.encode(F(1))
        for mode in ("rn", "rz", "rm", "rp"):
            case("rcp", f"rcp.{mode}.{fmt.name} $d, $a;", fmt.name, t, [([a], [arithmetic("div", fmt, [one, a], mode)]) for a, in floats(fmt, 10, 1)])
            rows = []
            for a, in floats(fmt, 10, 1):
                v = fmt.value(a)
                if isinstance(v, float):
                    d = fmt.inf if v == math.inf else "nan"
                else:
                    d = a if v == 0 else "nan" if v < 0 else root(v, fmt, mode)
                rows.append(([a], [d]))
            case("sqrt", f"sqrt.{mode}.{fmt.name} $d, $a;", fmt.name, t, rows)
        pair = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
                "ge": lambda a, b: a >= b, "num": lambda a, b: True, "nan": lambda a, b: False}
        for how, f in pair.items():
            for u in ("", "u") if how not in ("num", "nan") else ("",):
                rows = []
                for a in floats(fmt, 10, 2) + [[one, one]]:
                    v = [fmt.value(x) for x in a]
                    nan = any(isinstance(x, float) and math.isnan(x) for x in v)
                    rows.append((a, [int(u == "u" or how == "nan") if nan else int(f(*v))]))
                case("setp", f"setp.{how}{u}.{fmt.name} $d, $a, $b;", "pred", f"{t} {t}", rows)


def set_forms():
    tests = {"eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b}
    for fmt in (f16, bf16, f32):
        t = f"b{fmt.bits}"
        for how, f in tests.items():
            for u in ("", "u"):
                rows, wide = [], []
                for a in floats(fmt, 10, 2):
                    v = [fmt.value(x) for x in a]
                    nan = any(isinstance(x, float) and math.isnan(x) for x in v)
                    rows.append((a, [int(u == "u") if nan else int(f(*v))]))
                one = fmt.encode(F(1))
                case("set", f"set.{how}{u}.u32.{fmt.name} $d, $a, $b;", "b32", f"{t} {t}", [(a, [0xffffffff * d[0]]) for a, d in rows])
                case("set", f"set.{how}{u}.{fmt.name}.{fmt.name} $d, $a, $b;", t, f"{t} {t}", [(a, [one * d[0]]) for a, d in rows])
                if fmt is not f32:
                    both = [([x | y << 16 for x, y in zip(p[0], q[0])], [one * p[1][0] | one * q[1][0] << 16]) for p, q in zip(rows, rows[1:])]
                    case("set", f"set.{how}{u}.{fmt.name}x2.{fmt.name}x2 $d, $a, $b;", "b32", "b32 b32", both)
    some = [int(random.random() < 0.6) for _ in range(70)]
    case("bar", "bar.red.popc.u32 $d, 0, $a;", "b32", "pred", [([x], [sum(some)]) for x in some])
    case("bar", "bar.red.popc.u32 $d, 0, !$a;", "b32", "pred", [([x], [70 - sum(some)]) for x in some])
    for values in (some, [0] * 64, [1] * 64):
        case("bar", "bar.red.and.pred $d, 0, $a;", "pred", "pred", [([x], [int(all(values))]) for x in values])
        case("bar", "bar.red.or.pred $d, 0, $a;", "pred", "pred", [([x], [int(any(values))]) for x in values])
    for op, f in (("rcp", lambda x: 1 / x), ("rsqrt", lambda x: x ** -0.5)):
        rows = []
        for _ in range(10):
            x = random.uniform(0.1, 9)
            bits = f64.encode(F(x))
            rows.append(([bits], [f64.encode(F(f(x))) & ~0xffffffff]))
        case(op, f"{op}.approx.ftz.f64 $d, $a;", "f64", "b64", rows, "bound 0x1p-19 0\n")


def approximate_forms():
    def unary(op, f, bound, inputs, name=None):
        rows = []
        for a in inputs:
            v = f32.value(a)
            x = float(v)
            if x == 0 and f32.negative(a):
                x = -0.0
            try:
                d = f(x)
            except (ValueError, OverflowError, ZeroDivisionError):
                continue
            rows.append(([a], [f32.encode(F(d)) if math.isfinite(d) else f32.encode(d)]))
        case(name or op, f"{op} $d, $a;", "f32", "b32", rows, f"bound {bound}\n")

    some = [a for a, in floats(f32, 0, 1) or []] + [a for a, in floats(f32, 20, 1)]
    usual = [a for a in some if not isinstance(f32.value(a), float) and f32.value(a) != 0 and a >> 23 & 255]
    positive = [a & 0x7fffffff for a in usual]
    mid = [f32.encode(F(random.randint(-8000, 8000), 1000)) for _ in range(20)]
    unary("ex2.approx.f32", lambda x: 2.0**x, "0x1p-22 0", mid + [f32.encode(F(0)), 0x7f800000, 0xff800000], "ex2")
    unary("ex2.approx.ftz.f32", lambda x: 2.0**x, "0x1p-22 0", mid, "ex2")
    unary("lg2.approx.f32", math.log2, "0x1p-22 0x1p-22", positive, "lg2")
    unary("lg2.approx.ftz.f32", math.log2, "0x1p-22 0x1p-22", positive, "lg2")
    unary("rcp.approx.f32", lambda x: 1 / x, "0x1p-23 0", [a for a in usual if 30 < (a >> 23 & 255) < 220], "rcp")
    unary("rcp.approx.ftz.f32", lambda x: 1 / x, "0x1p-23 0", [a for a in usual if 30 < (a >> 23 & 255) < 220], "rcp")
    unary("sqrt.approx.f32", math.sqrt, "0x1p-22 0", positive, "sqrt")
    unary("rsqrt.approx.f32", lambda x: 1 / math.sqrt(x), "0x1.8p-23 0", positive, "rsqrt")
    unary("rsqrt.approx.ftz.f32", lambda x: 1 / math.sqrt(x), "0x1.8p-23 0", positive, "rsqrt")
    small = [f32.encode(F(random.randint(-3000, 3000), 1000)) for _ in range(20)]
    unary("sin.approx.f32", math.sin, "0 0x1p-20", small, "sin")
    unary("cos.approx.f32", math.cos, "0 0x1p-20", small, "cos")
    unary("tanh.approx.f32", math.tanh, "0x1p-10 0", small, "tanh")
    for op, f in (("ex2", lambda x: 2.0**x), ("tanh", math.tanh)):
        for fmt in (f16, bf16):
            rows = [([a], [fmt.encode(F(f(float(fmt.value(a)))))]) for a in (fmt.encode(F(random.randint(-3000, 3000), 1000)) for _ in range(20))]
            form = f"{op}.approx.{'ftz.' if op == 'ex2' and fmt is bf16 else ''}{fmt.name}"
            case(op, f"{form} $d, $a;", fmt.name, "b16", rows)
            both = [([p[0][0] | q[0][0] << 16], [p[1][0] | q[1][0] << 16]) for p, q in zip(rows, rows[1:])]
            case(op, f"{form}x2 $d, $a;", "b32", "b32", both)
    rows = []
    for _ in range(16):
        a, b = random.choice(mid), random.choice([x for x in mid if f32.value(x) != 0])
        rows.append(([a, b], [f32.encode(f32.value(a) / f32.value(b), "rn", f32.negative(a) != f32.negative(b))]))
    for op in ("div.approx.f32", "div.full.f32", "div.approx.ftz.f32", "div.full.ftz.f32"):
        case("div", f"{op} $d, $a, $b;", "f32", "b32 b32", rows, "bound 0x1p-22 0\n")


def cvt_forms():
    every = ["u8", "s8"] + ALL
    for t in every:
        for u in every:
            if t == u:
                continue
            n, m = whole(t), whole(u)
            for sat in ("", ".sat"):
                rows = []
                for a, in integers(m, 5, 1):
                    x = val(a, u)
                    if sat:
                        low, high = (-(1 << n - 1), (1 << n - 1) - 1) if t[0] == "s" else (0, (1 << n) - 1)
                        x = min(max(x, low), high)
                    d = mask(x, n)
                    rows.append(([a], [mask(val(d, t), max(n, 16)) if n < 16 else d]))
                if sat and n > m and (t[0] == u[0] or u[0] == "u"):  # nothing to saturate: no such form
                    continue
                case("cvt", f"cvt{sat}.{t}.{u} $d, $a;", b_of(n), b_of(m), rows)
    for t in ("u8", "s8") + tuple(ALL):
        n = whole(t)
        low, high = (-(1 << n - 1), (1 << n - 1) - 1) if t[0] == "s" else (0, (1 << n) - 1)
        for fmt in (f16, f32, f64):
            for mode in ("rni", "rzi", "rmi", "rpi"):
                rows = []
                values = [fmt.encode(F(x, 8)) for x in (-20, -13, -12, -4, -3, 0, 3, 4, 12, 13, 20, 801)] + [fmt.encode(F(2) ** k) for k in (15, 31, 32, 63)]
                for a in values + [fmt.inf, fmt.inf | fmt.sign] + ([fmt.inf | 1] if n < 64 and fmt is not f64 else []):
                    v = fmt.value(a) if a != "nan" else math.nan
                    if isinstance(v, float):
                        x = 0 if math.isnan(v) else high if v > 0 else low
                    else:
                        floor = v.numerator // v.denominator
                        rest = v - floor
                        x = {"rni": floor + int(rest > F(1, 2) or (rest == F(1, 2) and floor % 2)), "rmi": floor,
                             "rpi": floor + (rest > 0), "rzi": floor + (v < 0 and rest > 0)}[mode]
                        x = min(max(x, low), high)
                    rows.append(([a], [mask(val(mask(x, n), t), max(n, 16))]))
                case("cvt", f"cvt.{mode}.{t}.{fmt.name} $d, $a;", b_of(n), f"b{fmt.bits}", rows)
            for mode in ("rn", "rz", "rm", "rp"):
                rows = [([a], [fmt.encode(F(val(a, t)), mode)]) for a, in integers(n, 5, 1)]
                case("cvt", f"cvt.{mode}.{fmt.name}.{t} $d, $a;", fmt.name, b_of(n), rows)
    for to, source, modes in ((f32, f16, [""]), (f32, bf16, [""]), (f64, f32, [""]), (f32, f64, ["rn", "rz", "rm", "rp"]), (f16, f32, ["rn", "rz"]),
                              (bf16, f32, ["rn", "rz"]), (f16, f64, ["rn"]), (f64, f16, [""])):
        for mode in modes:
            rows = []
            for a, in floats(source, 30, 1) + ([[f32.encode(F(x))] for x in (65504, 65519, 65520, F(1, 2**24), F(1, 2**25), F(3, 2**25))] if source is f32 else []):
                v = source.value(a)
                rows.append(([a], [to.encode(v, mode or "rn", source.negative(a))]))
            case("cvt", f"cvt{'.' + mode if mode else ''}.{to.name}.{source.name} $d, $a;", to.name, f"b{source.bits}", rows)
    for to, name in ((f16, "f16x2"), (bf16, "bf16x2")):
        rows = []
        for a in floats(f32, 20, 2):
            d = [to.encode(f32.value(x), "rn", f32.negative(x)) for x in a]
            if "nan" not in d:
                rows.append((a, [d[0] << 16 | d[1]]))  # the first source is the upper half
        case("cvt", f"cvt.rn.{name}.f32 $d, $a, $b;", "b32", "b32 b32", rows)
    for to, name in ((e4m3, "e4m3x2"), (e5m2, "e5m2x2")):
        rows = []
        for a in floats(f32, 20, 2) + [[f32.encode(F(random.randint(-5000, 5000), 10)) for _ in range(2)] for _ in range(10)]:
            d = [to.encode(f32.value(x), "rn", f32.negative(x), True) for x in a]
            d = [0x7f if x == "nan" else x for x in d]
            rows.append((a, [d[0] << 8 | d[1]]))
        case("cvt", f"cvt.rn.satfinite.{name}.f32 $d, $a, $b;", "b16", "b32 b32", rows)
        rows = []
        for _ in range(16):
            a = random.getrandbits(16)
            v = [to.value(x) for x in (a >> 8, a & 255)]
            if any(isinstance(x, float) and math.isnan(x) for x in v):
                continue
            d = [f16.encode(x, "rn", to.negative(b)) for x, b in zip(v, (a >> 8, a & 255))]
            rows.append(([a], [d[0] << 16 | d[1]]))
        case("cvt", f"cvt.rn.f16x2.{name} $d, $a;", "b32", "b16", rows)
    for mode in ("rni", "rzi", "rmi", "rpi"):
        rows = []
        for x in (-20, -13, -12, -4, -3, 3, 4, 12, 13, 20, 801):
            v = F(x, 8)
            floor = v.numerator // v.denominator
            rest = v - floor
            k = {"rni": floor + int(rest > F(1, 2) or (rest == F(1, 2) and floor % 2)), "rmi": floor, "rpi": floor + (rest > 0),
                 "rzi": floor + (v < 0 and rest > 0)}[mode]
            rows.append(([f32.encode(v)], [f32.encode(F(k), "rn", v < 0)]))
        case("cvt", f"cvt.{mode}.f32.f32 $d, $a;", "f32", "b32", rows)
    rows = []
    for a, in floats(f32, 20, 1):
        if f32.value(a) != f32.value(a):
            continue
        v = f32.value(a)
        rows.append(([a], [a if isinstance(v, float) else mask((a & 0x7fffffff) + 0x1000, 32) & 0x7fffe000 | a & 0x80000000]))
    case("cvt", "cvt.rna.tf32.f32 $d, $a;", "f32", "b32", rows)
    case("cvt", "cvt.s64.s32 $d, $a;", "b64", "b32", [(a, [mask(signed(a[0], 32), 64)]) for a in integers(32, 4, 1)])


def lane_forms():
    values = [random.getrandbits(32) for _ in range(32)]
    for how in ("up", "down", "bfly", "idx"):
        for b, c in ((1, 31), (16, 31), (3, 0x1807), (5, 0), (2, 0x180f), (7, 0x1f)) if how != "up" else ((1, 0), (16, 0), (3, 0x1800), (2, 0x1000)):
            rows = []
            segment, clamp = c >> 8 & 31, c & 31
            for lane in range(32):  # as the ISA's pseudocode has it
                most, least = lane & segment | clamp & ~segment, lane & segment
                if how == "up":
                    j = lane - b
                    p = j >= most
                elif how == "down":
                    j = lane + b
                    p = j <= most
                elif how == "bfly":
                    j = lane ^ b
                    p = j <= most
                else:
                    j = least | b & ~segment
                    p = j <= most
                rows.append(([values[lane]], [values[j if p else lane], int(p)]))
            case("shfl", f"shfl.sync.{how}.b32 $d|$e2, $a, {b}, {c}, -1;", "b32 pred", "b32", rows)
    half = "{ .reg .pred %x; .reg .b32 %y; mov.u32 %y, %laneid; mov.b32 $d, 7; setp.lt.u32 %x, %y, 16; "
    rows = [([values[l]], [values[l ^ 1] if l < 16 else 7]) for l in range(32)]
    case("shfl", half + "@%x shfl.sync.bfly.b32 $d, $a, 1, 31, 65535; }", "b32", "b32", rows)
    # both halves, each with its own mask, along different paths
    text = ("{ .reg .pred %x; .reg .b32 %y; mov.u32 %y, %laneid; setp.lt.u32 %x, %y, 16; @%x bra LOW; shfl.sync.bfly.b32 $d, $a, 1, 31, 0xffff0000; bra END; "
            "LOW: shfl.sync.idx.b32 $d, $a, 3, 31, 0xffff; END: bar.warp.sync -1; }")
    case("shfl", text, "b32", "b32", [([values[l]], [values[3] if l < 16 else values[l ^ 1]]) for l in range(32)])
    for some in ([0] * 32, [1] * 32, [int(random.random() < 0.5) for _ in range(32)]):
        ballot = sum(x << i for i, x in enumerate(some))
        case("vote", "vote.sync.ballot.b32 $d, $a, -1;", "b32", "pred", [([x], [ballot]) for x in some])
        case("vote", "vote.sync.all.pred $d, $a, -1;", "pred", "pred", [([x], [int(all(some))]) for x in some])
        case("vote", "vote.sync.any.pred $d, $a, -1;", "pred", "pred", [([x], [int(any(some))]) for x in some])
        case("vote", "vote.sync.any.pred $d, !$a, -1;", "pred", "pred", [([x], [int(not all(some))]) for x in some])
        case("vote", "vote.sync.uni.pred $d, $a, -1;", "pred", "pred", [([x], [int(all(some) or not any(some))]) for x in some])
    few = [random.randint(0, 3) for _ in range(32)]
    for n in (32, 64):
        case("match", f"match.any.sync.b{n} $d, $a, -1;".replace("match.any.sync", "match.any.sync"), "b32", f"b{n}",
             [([x], [sum(int(y == x) << i for i, y in enumerate(few))]) for x in few])
    case("match", "match.all.sync.b32 $d|$e2, $a, -1;", "b32 pred", "b32", [([x], [0, 0]) for x in few])
    case("match", "match.all.sync.b32 $d|$e2, $a, -1;", "b32 pred", "b32", [([5], [0xffffffff, 1]) for x in few])
    fold = {"add": lambda a, b: mask(a + b, 32), "min": min, "max": max, "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b}
    import functools
    for how, f in fold.items():
        if how in ("add", "min", "max"):
            for t in ("u32", "s32"):
                d = mask(functools.reduce(f, [val(x, t) for x in values]), 32)
                case("redux", f"redux.sync.{how}.{t} $d, $a, -1;", "b32", "b32", [([x], [d]) for x in values])
        else:
            case("redux", f"redux.sync.{how}.b32 $d, $a, -1;", "b32", "b32", [([x], [functools.reduce(f, values)]) for x in values])
    case("activemask", "activemask.b32 $d;", "b32", "b32", [([0], [0xffffffff]) for _ in range(32)])
    case("activemask", "activemask.b32 $d;", "b32", "b32", [([0], [7]) for _ in range(3)])


def memory_forms():
    values = [random.getrandbits(32) for _ in range(64)]
    shared = "{ .shared .align 16 .b8 mem[2048]; .reg .b32 %x, %y; mov.u32 %y, mem; mad.lo.u32 %x, %thread, 16, %y; "
    case("ld", shared + "st.shared.v4.b32 [%x], {$a, $b, $c, $f}; ld.shared.v2.b32 {$d, $e2}, [%x+8]; ld.shared.u8 $e3, [%x+1]; ld.shared.s8 $e4, [%x+2]; }",
         "b32 b32 b32 b32", "b32 b32 b32 b32",
         [(a, [a[2], a[3], a[0] >> 8 & 255, mask(signed(a[0] >> 16 & 255, 8), 32)]) for a in integers(32, 10, 4)])
    case("ld", "ld.global.u16 $d, [%in]; ld.global.s16 $e2, [%in+2]; ld.global.nc.v2.b32 {$e3, $e4}, [%in];", "b32 b32 b32 b32", "b64",
         [([x], [x & 0xffff, mask(signed(x >> 16 & 0xffff, 16), 32), x & 0xffffffff, x >> 32]) for x, in integers(64, 6, 1)])
    case("ld", "ld.global.s32 $d, [%in]; ld.global.u8 $e2, [%in+3]; ld.relaxed.gpu.global.b64 $e3, [%in]; ld.volatile.global.u32 $e4, [%in+4];",
         "b64 b64 b64 b64", "b64",
         [([x], [mask(signed(x & 0xffffffff, 32), 64), x >> 24 & 255, x, x >> 32]) for x, in integers(64, 6, 1)])
    case("ld", "{ .local .align 8 .b8 depot[16]; .reg .b64 %x, %y; mov.u64 %x, depot; cvta.local.u64 %y, %x; st.local.v2.b32 [%x+8], {$a, $b}; "
         "ld.u32 $d, [%y+12]; ld.local.u32 $e2, [depot+8]; }", "b32 b32", "b32 b32", [(a, [a[1], a[0]]) for a in integers(32, 20, 2)])
    case("ld", "{ .shared .align 4 .b8 some[2048]; .reg .b64 %x, %y; mov.u64 %x, some; mad.wide.u32 %x, %thread, 4, %x; cvta.shared.u64 %y, %x; st.u32 [%y], $a; "
         "cvta.to.shared.u64 %x, %y; ld.shared.u32 $d, [%x]; }", "b32", "b32", [([x], [x]) for x in values])
    case("ld", "{ .reg .b32 %x; ld.global.L1::no_allocate.u32 %x, [%in]; st.global.cs.u32 [%out+64], %x; ld.global.cs.u32 $d, [%out+64]; }", "b32", "b32",
         [([x], [x]) for x in values])
    total = mask(sum(values[:40]), 32)
    sync = "bar.sync 0;"
    head = "{ .shared .align 8 .b8 mem[8]; .reg .pred %x; setp.eq.s32 %x, %thread, 0; @%x st.shared.b64 [mem], "
    case("atom", head + f"0; {sync} atom.shared.add.u32 %w, [mem], $a; {sync} ld.shared.u32 $d, [mem]; }}", "b32", "b32", [([x], [total]) for x in values[:40]])
    for op, start, d in (("max.u32", 0, max(values)), ("min.u32", -1, min(values)), ("or.b32", 0, 0xffffffff), ("max.s32", 0, max(0, max(signed(x, 32) for x in values)))):
        if op == "or.b32":
            d = 0
            for x in values:
                d |= x
        case("red", head + f"{start}; {sync} red.shared.{op} [mem], $a; {sync} ld.shared.u32 $d, [mem]; }}", "b32", "b32", [([x], [d]) for x in values])
    case("atom", "atom.global.exch.b32 $d, [%out+64], $a; atom.global.cas.b32 $e2, [%out+64], $a, $b; atom.global.cas.b32 $e3, [%out+64], $a, $b; "
         "atom.global.add.u64 $e4, [%out+72], $c;", "b32 b32 b32 b64", "b32 b32 b64",
         [([a, a ^ 1, 5], [0, a, a ^ 1, 0]) for a in values])
    case("atom", "atom.global.inc.u32 $d, [%out+64], 2; atom.global.inc.u32 $e2, [%out+64], 0; atom.global.dec.u32 $e3, [%out+64], 9; atom.global.xor.b32 $e4, [%out+64], 6;",
         "b32 b32 b32 b32", "b32", [([0], [0, 1, 0, 9]) for _ in range(5)])
    # ldmatrix: the row that lane i names is row i % 8 of matrix i / 8
    halves = [[random.getrandbits(16) for _ in range(8)] for _ in range(32)]
    words = [[halves[l][2 * i] | halves[l][2 * i + 1] << 16 for i in range(4)] for l in range(32)]
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            rows = []
            for l in range(32):
                d = []
                for k in range(count):
                    at = (lambda r, c: halves[8 * k + c][r]) if trans else (lambda r, c: halves[8 * k + r][c])
                    d.append(at(l // 4, l % 4 * 2) | at(l // 4, l % 4 * 2 + 1) << 16)
                rows.append((words[l], d))
            outs = ["$d", "$e2", "$e3", "$e4"][:count]
            case("ldmatrix", shared + "st.shared.v4.b32 [%x], {$a, $b, $c, $f}; bar.sync 0; "
                 f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{', '.join(outs)}}}, [%x]; }}", " ".join(["b32"] * count), "b32 b32 b32 b32", rows)
    copy = "{ .shared .align 16 .b8 mem[1024]; .reg .b32 %x; .reg .b32 %y; mov.u32 %y, mem; mad.lo.u32 %x, %thread, 16, %y; "
    for text, keep in (("cp.async.cg.shared.global [%x], [%in], 16;", 16), ("cp.async.cg.shared.global [%x], [%in], 16, 0;", 0),
                       ("cp.async.ca.shared.global [%x], [%in], 16, 8;", 8), ("cp.async.ca.shared.global [%x], [%in], 8; cp.async.ca.shared.global [%x+8], [%in+8], 8, 4;", 12)):
        for wait in ("cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"):
            case("cp.async", copy + f"{text} {wait} ld.shared.v2.b64 {{$d, $e2}}, [%x]; }}", "b64 b64", "b64 b64",
                 [(a, [a[0] & (1 << 8 * min(keep, 8)) - 1, a[1] & (1 << 8 * max(keep - 8, 0)) - 1]) for a in integers(64, 8, 2)])
    case("bar", "{ .shared .align 4 .b8 mem[512]; .reg .b32 %x, %y; mov.u32 %y, mem; mad.lo.u32 %x, %thread, 4, %y; st.shared.u32 [%x], $a; bar.sync 1, 64; "
         "xor.b32 %y, %thread, 63; mad.lo.u32 %x, %y, 4, mem; ld.shared.u32 $d, [%x]; }".replace("mad.lo.u32 %x, %y, 4, mem;", "mov.u32 %x, mem; mad.lo.u32 %x, %y, 4, %x;"),
         "b32", "b32", [([values[i]], [values[63 - i]]) for i in range(64)])
    case("bar", "{ .shared .align 4 .b8 mem[512]; .reg .b32 %x, %y; .reg .pred %u; mov.u32 %y, mem; mad.lo.u32 %x, %thread, 4, %y; setp.lt.u32 %u, %thread, 32; "
         "@%u bra FIRST; bar.sync 2, 64; sub.u32 %x, %x, 128; ld.shared.u32 $d, [%x]; bra END; "
         "FIRST: st.shared.u32 [%x], $a; mov.b32 $d, 1; bar.arrive 2, 64; END: barrier.sync 0; }", "b32", "b32",
         [([values[i]], [1 if i < 32 else values[i - 32]]) for i in range(64)])
    case("bar", "{ .shared .align 4 .b8 mem[128]; .reg .b32 %x, %y; mov.u32 %y, mem; mad.lo.u32 %x, %thread, 4, %y; st.shared.u32 [%x], $a; bar.warp.sync -1; "
         "xor.b32 %x, %x, 4; ld.shared.u32 $d, [%x]; }", "b32", "b32", [([values[i]], [values[i ^ 1]]) for i in range(32)])
    case("bra", "{ .reg .pred %u; mov.b32 $d, 0; AGAIN: add.s32 $d, $d, 1; setp.lt.u32 %u, $d, $a; @%u bra AGAIN; }", "b32", "b32",
         [([x], [max(x, 1)]) for x in (random.randint(0, 50) for _ in range(70))])
    for text in ("membar.gl;", "membar.cta;", "fence.acq_rel.gpu;", "fence.sc.sys;", "nanosleep.u32 20;", "griddepcontrol.wait;", "prefetch.global.L2 [%in];"):
        case("fence", f"{text} mov.b32 $d, $a;", "b32", "b32", [([5], [5])])


def mma_forms():
    """Matrices are drawn, cut into fragments as the ISA's figures have them, and multiplied exactly."""
    for name, fmt, m, n, k, per in (("bf16", bf16, 16, 8, 16, 2), ("f16", f16, 16, 8, 16, 2), ("bf16", bf16, 16, 8, 8, 2), ("f16", f16, 16, 8, 8, 2),
                                    ("tf32", f32, 16, 8, 8, 1), ("e4m3", e4m3, 16, 8, 32, 4), ("e5m2", e5m2, 16, 8, 32, 4)):
        for out in ("f32", "f16") if name == "f16" else ("f32",):
            drawn = lambda: fmt.encode(F(random.randint(-16, 16), 8))
            a = [[drawn() for _ in range(k)] for _ in range(m)]
            b = [[drawn() for _ in range(n)] for _ in range(k)]
            cf = f32 if out == "f32" else f16
            c = [[cf.encode(F(random.randint(-99, 99), 16)) for _ in range(n)] for _ in range(m)]
            d = [[cf.encode(sum((fmt.value(a[i][l]) * fmt.value(b[l][j]) for l in range(k)), F(0)) + cf.value(c[i][j])) for j in range(n)] for i in range(m)]
            bits = 32 // per
            na, nb = m * k // 32 // per, n * k // 32 // per
            rows = []
            for lane in range(32):
                g, t = lane >> 2, lane % 4
                ra, rb = [0] * na, [0] * nb
                for i in range(na * per):  # ISA: a_i
                    if per == 1:
                        row, col = (g if i in (0, 2) else g + 8), (t if i < 2 else t + 4)
                    elif per == 2:
                        row = g if i < 2 or 4 <= i < 6 else g + 8
                        col = t * 2 + (i & 1) + (8 if i >= 4 else 0)
                    else:
                        row = g if i < 4 or 8 <= i < 12 else g + 8
                        col = t * 4 + (i & 3) + (16 if i >= 8 else 0)
                    ra[i // per] |= a[row][col] << bits * (i % per)
                for i in range(nb * per):
                    if per == 1:
                        row = t + 4 * i
                    elif per == 2:
                        row = t * 2 + (i & 1) + (8 if i >= 2 else 0)
                    else:
                        row = t * 4 + (i & 3) + (16 if i >= 4 else 0)
                    rb[i // per] |= b[row][g] << bits * (i % per)
                spread = lambda x: [x[g + (8 if i >= 2 else 0)][t * 2 + (i & 1)] for i in range(4)]
                pack = lambda v: v if out == "f32" else [v[0] | v[1] << 16, v[2] | v[3] << 16]
                rows.append((ra + rb + pack(spread(c)), pack(spread(d))))
            names = list("abcfghijklmnoqst")
            nc = 4 if out == "f32" else 2
            group = lambda x: "{" + ", ".join("$" + y for y in x) + "}"
            text = (f"mma.sync.aligned.m16n8k{k}.row.col.{out}.{name}.{name}.{out} {group(['d', 'e2', 'e3', 'e4'][:nc])}, {group(names[:na])}, "
                    f"{group(names[na:na + nb])}, {group(names[na + nb:na + nb + nc])};")
            case("mma", text, " ".join(["b32"] * nc), " ".join(["b32"] * (na + nb + nc)), rows)


def halves_forms(): # after all others, whose operands are drawn one after another
    for part, first in (("lo", 0), ("hi", 2)):
        for t in ("u32", "s32"):
            for u in ("u32", "s32"):
                rows = []
                for _ in range(6):
                    a, b, c = (random.getrandbits(32) for _ in range(3))
                    cut = lambda x, at, n, t: signed(x >> at & (1 << n) - 1, n) if t[0] == "s" else x >> at & (1 << n) - 1
                    rows.append(([a, b, c], [mask(c + sum(cut(a, 16 * i, 16, t) * cut(b, 8 * (i + first), 8, u) for i in range(2)), 32)]))
                case("dp2a", f"dp2a.{part}.{t}.{u} $d, $a, $b, $c;", "b32", "b32 b32 b32", rows)


def refusals():
    for text in ("add.frob.s32 $d, $a, $b;", "add.sat.s32 $d, $a, $b;", "mul.s32 $d, $a, $b;", "add.s32.s32 $d, $a, $b;", "ex2.f32 $d, $a;", "vadd.u32 $d, $a, $b;",
                 "ld.global.v8.b32 $d, [%in];", "add.s32 $d, $a;", "add.s64 $d, $a, $b;", "mov.b32 $d, nowhere;", "bra NOWHERE;", "cvt.rn.e4m3.f32 $d, $a;",
                 "add.s32 $d, $a, 1", "shfl.bfly.b32 $d, $a, 1, 31;", "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 $d, $a, $b, $a;", "{ add.s32 $d, $a, $b;",
                 "cp.async.cg.shared.global [$d], [%in], 8;", "L: L: mov.b32 $d, $a;", "wgmma.fence.sync.aligned;", "{ .reg .pred %x; setp.lt.b32 %x, $a, $b; }",
                 "{ .reg .pred %x; setp.lt.b32 %x, $a; }", "{ .reg .b64 %x; mov.b64 {%x, $d}, %x; }", "{ .reg .pred %x; ld.global.v2.b32 {$d, %x}, [%in]; }",
                 "{ .reg .b64 %x; ld.global.v2.b32 {$d, %x}, [%in]; }", "set.lt.u32.s8 $d, $a, $b;", "neg.ftz.f64 $d, $a;"):
        refused("refused", text, "b32", "b32 b32")


integer_forms()
float_forms()
set_forms()
approximate_forms()
cvt_forms()
lane_forms()
memory_forms()
mma_forms()
halves_forms()
refusals()
for name, texts in forms.items():
    with open(f"{sys.argv[1]}/{name}.case", "w") as out:
        out.write("\n".join(texts))
