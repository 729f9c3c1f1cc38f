"""PyTorch: eager, torch.compile, and DDP / DTensor TP / pipelines over gloo.

python torch_peer.py --model llama-small --mode eager|compile|ddp|tp|pp [--schedule 1f1b|gpipe]
"""
import argparse, os, socket, time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import models as M


MICROBATCHES = 4                                   # of pp, as in models/*-pp.dtm


class GPTBlock(nn.Module):
    def __init__(self, m):
        super().__init__()
        D = m["D"]
        self.H = m["H"]
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc, self.fc2 = nn.Linear(D, m["F"]), nn.Linear(m["F"], D)

    def forward(self, x):
        B, S, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, S, 3, self.H, D // self.H).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, S, D))
        return x + self.fc2(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(m["V"], m["D"]), nn.Embedding(m["S"], m["D"])
        self.blocks = nn.ModuleList(GPTBlock(m) for _ in range(m["L"]))
        self.lnf = nn.LayerNorm(m["D"])

    def forward(self, x):
        x = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for b in self.blocks:
            x = b(x)
        return F.linear(self.lnf(x), self.wte.weight)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class LlamaBlock(nn.Module):
    def __init__(self, m):
        super().__init__()
        D, self.hd = m["D"], m["D"] // m["H"]
        kv = self.hd * m["G"]
        self.norm1, self.norm2 = nn.RMSNorm(D, M.NORM_EPS), nn.RMSNorm(D, M.NORM_EPS)
        self.q, self.k, self.v = (nn.Linear(D, n, bias=False) for n in (D, kv, kv))
        self.o = nn.Linear(D, D, bias=False)
        self.gate, self.up = nn.Linear(D, m["F"], bias=False), nn.Linear(D, m["F"], bias=False)
        self.down = nn.Linear(m["F"], D, bias=False)

    def forward(self, x, cos, sin):
        B, S, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(B, S, -1, self.hd).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if k.shape[1] != q.shape[1]:
            n = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, S, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.emb = nn.Embedding(m["V"], m["D"])
        self.blocks = nn.ModuleList(LlamaBlock(m) for _ in range(m["L"]))
        self.norm = nn.RMSNorm(m["D"], M.NORM_EPS)
        self.head = nn.Linear(m["D"], m["V"], bias=False)
        hd = m["D"] // m["H"]
        angle = torch.outer(torch.arange(m["S"]).float(), M.ROPE_BASE ** (-torch.arange(0, hd, 2).float() / hd))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x):
        x = self.emb(x)
        for b in self.blocks:
            x = b(x, self.cos, self.sin)
        return self.head(self.norm(x))


def build(m):
    torch.manual_seed(0)
    net = GPT(m) if m["kind"] == "gpt" else Llama(m)
    for p in net.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=M.INIT_STD)
    return net


def adamw(params):
    return torch.optim.AdamW(params, lr=M.LR, betas=M.BETAS, eps=M.EPS, weight_decay=M.WD, fused=True)


def loss_of(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def single(net, x, y, mode):
    opt, params = adamw(net.parameters()), list(net.parameters())
    call = lambda x, y: loss_of(net(x), y)
    if mode == "compile":
        call = torch.compile(call)

    def step():
        loss = call(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, M.CLIP)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.item()
    return step


def tensor_parallel(net, x, y):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, loss_parallel,
                                                   parallelize_module)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    col, row = ColwiseParallel, RowwiseParallel
    for b in net.blocks:
        parallelize_module(b, mesh, dict(q=col(), k=col(), v=col(), o=row(), gate=col(), up=col(), down=row()))
    parallelize_module(net, mesh, dict(head=col(output_layouts=Shard(-1), use_local_output=False)))
    sharded = [p for p in net.parameters() if isinstance(p, DTensor)]
    whole = [p for p in net.parameters() if not isinstance(p, DTensor)]
    opt = adamw([dict(params=sharded), dict(params=whole)])

    def step():
        with loss_parallel():
            loss = loss_of(net(x), y)
            loss.backward()
        norms = [nn.utils.get_total_norm([p.grad for p in ps]) for ps in (sharded, whole)]
        norm = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
        for ps in (sharded, whole):
            nn.utils.clip_grads_with_norm_(ps, M.CLIP, norm)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()
    return step


class Stage(nn.Module):
    """Half of the layers of a Llama; the first has the embedding, the last the norm and the head."""
    def __init__(self, net, rank, ranks):
        super().__init__()
        each = len(net.blocks) // ranks
        self.emb = net.emb if rank == 0 else None
        self.blocks = net.blocks[rank * each:(rank + 1) * each]
        self.norm, self.head = (net.norm, net.head) if rank == ranks - 1 else (None, None)
        self.register_buffer("cos", net.cos)
        self.register_buffer("sin", net.sin)

    def forward(self, x):
        if self.emb is not None:
            x = self.emb(x)
        for b in self.blocks:
            x = b(x, self.cos, self.sin)
        return x if self.head is None else self.head(self.norm(x))


def pipeline(net, x, y, rank, ranks, kind):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
    assert isinstance(net, Llama), "the pipeline is of a Llama"
    part = Stage(net, rank, ranks)
    params = list(part.parameters())
    opt = adamw(params)
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[kind](stage, MICROBATCHES, loss_fn=loss_of)

    def step():
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        norm = nn.utils.get_total_norm([p.grad for p in params]) ** 2
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(params, M.CLIP, norm.sqrt())
        opt.step()
        opt.zero_grad(set_to_none=True)
        return ranks * sum(l.item() for l in losses) / MICROBATCHES  # the others have none, and it is averaged
    return step


def run(rank, ranks, port, args):
    torch.set_num_threads(args.threads)
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    m, base = M.MODELS[args.model], M.rss_mb()
    text = torch.randint(0, m["V"], (m["B"], m["S"] + 1), generator=torch.Generator().manual_seed(1))
    x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    net = build(m)
    if args.mode == "tp":
        step = tensor_parallel(net, x, y)
    elif args.mode == "pp":
        step = pipeline(net, x, y, rank, ranks, args.schedule)
    else:
        if ranks == 1:
            assert sum(p.numel() for p in net.parameters()) == M.params(m)
        else:
            net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
            x, y = x.chunk(ranks)[rank], y.chunk(ranks)[rank]
        step = single(net, x, y, args.mode)
    start = time.perf_counter()
    loss = step()
    first = time.perf_counter() - start
    if args.profile:
        from torch.profiler import profile
        with profile() as p:
            step(), step()
        print(p.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))
        return
    if ranks == 1:
        times = M.measure(step, args.seconds)
    else:                                            # all ranks agree on when to stop
        times, begin, go = [], time.perf_counter(), torch.ones(1)
        while go.item():
            times += M.measure(step, 0, 1)
            go.fill_(len(times) < 3 or time.perf_counter() - begin < args.seconds)
            dist.broadcast(go, 0)
    sums = torch.tensor([M.rss_mb(), base, M.cpu_ms()])
    if ranks > 1:
        dist.all_reduce(sums)
        value = torch.tensor(loss)
        dist.all_reduce(value)
        loss = value.item() / ranks
    if rank == 0:
        M.report("torch-" + args.mode + ("-" + args.schedule if args.mode == "pp" else "") + os.environ.get("SUFFIX", ""), args.model, ranks, args.threads, times,
                 first_loss=loss, first_step_s=first, cpu_ms=round(sums[2].item()),
                 rss_mb=round(sums[0].item()), rss_import_mb=round(sums[1].item()))
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", choices=M.MODELS, required=True)
    ap.add_argument("--mode", choices="eager compile ddp tp pp".split(), required=True)
    ap.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b", help="of pp")
    ap.add_argument("--threads", type=int, help="threads of a process; default 2, or 1 with two ranks")
    ap.add_argument("--seconds", type=float, default=8)
    ap.add_argument("--profile", action="store_true")
    args = ap.parse_args()
    ranks = 2 if args.mode in ("ddp", "tp", "pp") else 1
    args.threads = args.threads or 2 // ranks
    if ranks == 1:
        run(0, 1, None, args)
    else:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        torch.multiprocessing.spawn(run, (ranks, port, args), ranks)
