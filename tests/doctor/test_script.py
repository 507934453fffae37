"""Each known mistake is found on its line, and what only looks like it is left alone."""

import textwrap
from pathlib import Path

import pytest

from doctor.realistic import SCRIPTS
from unisono.doctor.script import RULES, examine

HEAD = """\
import os, random, torch
import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, random_split
"""

RUN = "import unisono\n"
PAIRS = (
    f"{RUN}from torch import nn\nfrom torch.nn import functional as F\n"
    "def f(m):\n    s = u(m.x) @ v(m.y).T / 0.1\n    own = torch.arange(len(s))\n"
)

# Rule, wrong lines (the mistake is marked by "# <-"), the same put right.
CASES = [
    (
        "missing-set-epoch",
        "sampler = DistributedSampler(data)  # <-\nfor epoch in range(3):\n    step()",
        "sampler = DistributedSampler(data)\nfor epoch in range(3):\n    sampler.set_epoch(epoch)",
    ),
    (
        "missing-set-epoch",
        "s = torch.utils.data.DistributedSampler(data)  # <-\nfor e in range(epochs):\n    step()",
        "s = DistributedSampler(test, shuffle=False)\nfor epoch in range(3):\n    step()",
    ),
    (
        "missing-set-epoch",
        "loader = DataLoader(data, sampler=DistributedSampler(data))  # <-\nfor e in range(3):\n    for x, y in loader:"
        "\n        optimizer.zero_grad()\n        loss(x, y).backward()",
        "sampler = DistributedSampler(data)\nfor trial in range(3):\n    for batch in loader:\n        show(batch)",
    ),
    ("missing-set-epoch", None, "sampler = DistributedSampler(data)\nfor batch in loader:\n    step()"),
    (
        "rank-as-device",
        "rank = dist.get_rank()\ntorch.cuda.set_device(rank)  # <-",
        "rank = dist.get_rank()\ntorch.cuda.set_device(rank % torch.cuda.device_count())",
    ),
    ("rank-as-device", "model.to(int(os.environ['RANK']))  # <-", "model.to(int(os.environ['LOCAL_RANK']))"),
    ("rank-as-device", "model = DDP(model, device_ids=[rank])  # <-", "model = DDP(model, device_ids=[local_rank])"),
    ("rank-as-device", "d = torch.device(f'cuda:{args.rank}')  # <-", "d = torch.device(f'cuda:{args.local_rank}')"),
    ("rank-as-device", "d = torch.device('cuda', rank)  # <-", "x.to(device)\ny.cuda()\nz.to('cpu')"),
    (
        "local-rank-as-rank",
        "dist.init_process_group('nccl', world_size=n, rank=args.local_rank)  # <-",
        "dist.init_process_group('nccl')",
    ),
    (
        "local-rank-as-rank",
        "if local_rank == 0:\n    torch.save(x, 'a.pt')  # <-",
        "if dist.get_rank() == 0:\n    torch.save(x, 'a.pt')",
    ),
    (
        "local-rank-option",
        "parser.add_argument('--local_rank', type=int)  # <-",
        "parser.add_argument('--local_rank', '--local-rank', type=int)",
    ),
    (
        "collective-on-some-ranks",
        "if dist.get_rank() == 0:\n    print(1)\n    dist.barrier()  # <-",
        "if dist.get_rank() == 0:\n    print(1)\ndist.barrier()",
    ),
    (
        "collective-on-some-ranks",
        "if is_main_process() and x:\n    dist.all_reduce(loss)  # <-",
        "if dist.get_world_size() > 1:\n    dist.all_reduce(loss)",
    ),
    (
        "collective-on-some-ranks",
        "def f(rank):\n    if rank != 0:\n        return\n    save()\n    dist.barrier()  # <-",
        "def f(rank):\n    dist.barrier()\n    if rank != 0:\n        return\n    save()",
    ),
    (
        "collective-on-some-ranks",
        "if rank == 0:\n    pass\nelse:\n    dist.broadcast(x, 0)  # <-",
        "if rank == 0:\n    dist.broadcast(x, 0)\nelse:\n    dist.broadcast(y, 0)",
    ),
    ("collective-on-some-ranks", None, "if rank != 0:\n    dist.barrier()\nload()\nif rank == 0:\n    dist.barrier()"),
    ("collective-on-some-ranks", None, "if rank < 2:\n    dist.all_reduce(x, group=pair)"),
    ("collective-on-some-ranks", None, "if local_rank != -1:\n    dist.init_process_group('nccl')"),
    ("collective-on-some-ranks", None, "if rank == 0:\n    def later():\n        dist.barrier()"),
    (
        "download-on-every-rank",
        "data = MNIST('data', download=True)  # <-",
        "if rank == 0:\n    MNIST('data', download=True)\ndist.barrier()\ndata = MNIST('data', download=False)",
    ),
    (
        "download-on-every-rank",
        "torch.hub.load_state_dict_from_url(url)  # <-",
        "with FileLock('data.lock'):\n    torch.hub.load_state_dict_from_url(url)",
    ),
    ("download-on-every-rank", None, "data = MNIST('data', download=rank == 0)"),
    (
        "save-on-every-rank",
        "torch.save(model, 'a.pt')  # <-",
        "torch.save(model, f'a-{rank}.pt')\nif rank == 0:\n    torch.save(model, 'a.pt')",
    ),
    (
        "save-on-every-rank",
        "def save():\n    torch.save(model, 'a.pt')  # <-\nsave()",
        "def save():\n    torch.save(model, 'a.pt')\nif rank == 0:\n    save()",
    ),
    (
        "save-on-every-rank",
        "def main(rank):\n    torch.save(model, 'a.pt')  # <-\nmp.spawn(main)",
        "def main(rank):\n    train()\ndef start():\n    torch.save(model, 'a.pt')\n    mp.spawn(main)",
    ),
    ("save-on-every-rank", None, "def save(rank):\n    if rank != 0:\n        return\n    torch.save(model, 'a.pt')"),
    (
        "shuffle-and-sampler",
        "l = DataLoader(data, sampler=s, shuffle=True)  # <-",
        "l = DataLoader(data, sampler=s)",
    ),
    (
        "shuffle-and-sampler",
        "model = DDP(model)\nl = DataLoader(data, shuffle=True)  # <-",
        "model = DDP(model)\nl = DataLoader(data, sampler=DistributedSampler(data))",
    ),
    ("shuffle-and-sampler", None, "l = DataLoader(data, sampler=None, shuffle=True)"),
    ("unseeded-shuffle", "random.shuffle(order)  # <-", "random.seed(3)\nrandom.shuffle(order)"),
    ("unseeded-shuffle", "order = np.random.permutation(9)  # <-", "order = np.random.default_rng(3).permutation(9)"),
    ("unseeded-shuffle", "order = np.random.default_rng()  # <-", "random.Random(3).shuffle(order)"),
    (
        "unseeded-shuffle",
        "random.seed(3)\na, b = random_split(data, [9, 1])  # <-",
        "a, b = random_split(data, [9, 1], generator=g)\ntorch.manual_seed(3)\nx = torch.randperm(9)",
    ),
    (
        "evaluation-with-gradients",
        "def test():\n    model.eval()\n    for x in loader:\n        y = model(x)  # <-",
        "def test():\n    model.eval()\n    with torch.no_grad():\n        y = model(x)",
    ),
    (
        "evaluation-with-gradients",
        "model.eval()\ny = model(x)  # <-\nmodel.train()",
        "model.eval()\nmodel.train()\ny = model(x)",
    ),
    ("evaluation-with-gradients", None, "@torch.inference_mode()\ndef test():\n    model.eval()\n    y = model(x)"),
    ("evaluation-with-gradients", None, "model.eval()\nmodel(x).sum().backward()"),
    (
        "kept-graph",
        "for x in l:\n    loss = f(x)\n    loss.backward()\n    total += loss  # <-",
        "for x in l:\n    loss = f(x)\n    loss.backward()\n    total += loss.item()",
    ),
    (
        "kept-graph",
        "for x in l:\n    loss = f(x)\n    loss.backward()\n    ema = 0.9 * ema + 0.1 * loss  # <-",
        "for x in l:\n    loss = f(x)\n    loss.backward()\n    ema = 0.9 * ema + 0.1 * float(loss)",
    ),
    (
        "kept-graph",
        None,
        "for x in l:\n    loss = f(x)\n    loss += g(x)\n    total = loss + h(x)\n    total.backward()",
    ),
    (
        "module-prefix",
        "model = DDP(model)\nif rank == 0:\n    torch.save({'model': model.state_dict()}, 'a.pt')  # <-",
        "model = DDP(model)\nif rank == 0:\n    torch.save(model.module.state_dict(), 'a.pt')",
    ),
    ("module-prefix", None, "wrapped = DDP(model)\nif rank == 0:\n    torch.save(model.state_dict(), 'a.pt')"),
    ("load-without-map-location", "s = torch.load('a.pt')  # <-", "s = torch.load('a.pt', map_location='cpu')"),
    ("deprecated-name", "dist.all_gather_into_tensor(a, b)  # <-", "dist.all_gather(a, b)"),
    (
        "own-backward",
        f"{RUN}def f(micro):\n    l = loss(micro)\n    l.backward()  # <-\n    return l\nrun.step(batch, f)",
        f"{RUN}def f(micro):\n    return loss(micro)\nrun.step(batch, f)\ndef g():\n    other().backward()",
    ),
    (
        "own-backward",
        f"{RUN}run.step(batch, lambda micro: (opt.step(), loss(micro))[1])  # <-",
        f"{RUN}run.step(batch, lambda micro: model.step(micro))\noptimizer.step(closure)",
    ),
    (
        "own-backward",
        f"{RUN}for batch in batches:\n    loss = run.step(batch, f)\n    total += loss.item()  # <-",
        f"{RUN}for batch in batches:\n    loss = run.step(batch, f)\n    loss = other(batch)\n    total += loss.item()",
    ),
    ("own-backward", f"{RUN}run.step(batch, f).backward()  # <-", "run.step(batch, f).backward()"),
    (
        "unseeded-shuffle",
        f"{RUN}order = torch.randperm(9)  # <-\nrun.step(batch, f)",
        f"{RUN}def f(micro):\n    return loss(mix(micro, torch.randperm(9), g(micro)))\n"
        "def g(x):\n    return np.random.permutation(9)\nrun.step(batch, f)",
    ),
    (
        "unseeded-shuffle",
        f"{RUN}run.step(batch, lambda micro: loss(micro, np.random.default_rng().random()))  # <-",
        f"{RUN}run.step(batch, lambda micro: loss(micro, np.random.random()))",
    ),
    (
        "in-batch-negatives",
        f"{PAIRS}    return F.cross_entropy(s, own)  # <-\nrun.step(batch, f)",
        f"{PAIRS}    return F.cross_entropy(s, own)\nrun.step(batch, f, embed=e)",
    ),
    (
        "in-batch-negatives",
        f"{PAIRS}    return nce(m.u, m.v)\nce = nn.CrossEntropyLoss()\n"
        "def nce(a, b):\n    return ce(torch.matmul(a, b.t()), torch.arange(len(a)))  # <-\nrun.step(batch, f)",
        f"{PAIRS}    return F.cross_entropy(s, m.y) + pos(m.x, own)\nrun.step(batch, f)",
    ),
    (
        "run-on-some-ranks",
        f"{RUN}if run.world.is_leader:\n    print(run.evaluate(data, predict, metrics))  # <-",
        f"{RUN}found = run.evaluate(data, predict, metrics)\nif run.world.is_leader:\n    print(found)",
    ),
    (
        "loop-over-epochs",
        f"{RUN}for epoch in range(3):\n    for batch in run.steps(loader, epochs=1):  # <-\n        run.step(batch, f)",
        f"{RUN}for epoch in range(3):\n    for batch in run.steps(loader, epochs=epoch + 1):\n        step(batch)",
    ),
    (
        "loop-over-epochs",
        f"{RUN}for epoch in range(3):\n    trainer.fit(data, epochs=1)  # <-",
        f"{RUN}for seed in range(3):\n    with unisono.Run() as run:\n        unisono.Trainer(run).fit(data, epochs=1)"
        "\n        for batch in run.steps(loader, epochs=1):\n            run.step(batch, f)",
    ),
    (
        "loop-variable",
        f"{RUN}k = 0\nfor batch in run.steps(loader):\n    k += 1  # <-\n    run.step(batch, lambda m: k * f(m))",
        f"{RUN}k = 0\nfor batch in run.steps(loader, epochs=1):\n    k += run.step(batch, f)\n    print(k)",
    ),
    (
        "loss-of-this-worker",
        f"{RUN}for batch in run.steps(loader):\n    run.step(batch, lambda m: (1 + run.world.rank) * f(m))  # <-",
        f"{RUN}for batch in run.steps(loader):\n    run.step(batch, lambda m: f(m))\n    print(run.world.rank)",
    ),
    (
        "loss-of-this-worker",
        f"{RUN}import time\nfor batch in run.steps(loader):\n    w = 1 + time.time() % 1\n"
        "    run.step(batch, lambda m: w * f(m))  # <-",
        f"{RUN}import time\ndef loss(m):\n    if run.world.rank == 0:\n        print('here')\n    return f(m)\n"
        "for batch in run.steps(loader):\n    begun = time.time()\n    run.step(batch, loss)",
    ),
    (
        "learning-rate-of-workers",
        f"{RUN}import os\noptimizer = torch.optim.SGD(p, lr=0.1 * int(os.environ['WORLD_SIZE']))  # <-",
        f"{RUN}optimizer = torch.optim.SGD(p, lr=0.1 * run.replicas)",
    ),
    (
        "learning-rate-of-workers",
        f"{RUN}n = run.world.world_size\noptimizer = torch.optim.SGD(p, lr=0.1 * n)  # <-",
        f"{RUN}n = run.replicas\noptimizer = torch.optim.SGD(p, lr=0.1 * n)",
    ),
    (
        "softmax-and-cross-entropy",
        "loss = torch.nn.CrossEntropyLoss()\nloss(model(x).softmax(1), y)  # <-",
        "loss = torch.nn.CrossEntropyLoss()\nloss(model(x), y)\nshow(model(x).softmax(1))",
    ),
    (
        "softmax-and-cross-entropy",
        "torch.nn.functional.cross_entropy(torch.softmax(model(x), 1), y)  # <-",
        "torch.nn.functional.nll_loss(torch.log_softmax(model(x), 1), y)",
    ),
    (
        "softmax-and-cross-entropy",
        "m = torch.nn.Sequential(a, torch.nn.Softmax(1))  # <-\ntorch.nn.functional.cross_entropy(m(x), y)",
        "m = torch.nn.Sequential(a, torch.nn.Softmax(1))\ntorch.nn.functional.mse_loss(m(x), y)",
    ),
    (
        "softmax-and-cross-entropy",
        "def loss(m):\n    p = model(m.x).softmax(1)\n    return torch.nn.functional.cross_entropy(p, m.y)  # <-",
        "def loss(m):\n    p = model(m.x)\n    show(torch.softmax(p, 1))\n"
        "    return torch.nn.functional.cross_entropy(p, m.y)",
    ),
    (
        "softmax-and-cross-entropy",
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        x = self.fc(x)\n"
        "        return torch.softmax(x, 1)\nmodel = Net()\n"
        "loss = lambda m: torch.nn.functional.cross_entropy(model(m.x), m.y)  # <-",
        "class Attention(torch.nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, 1)\n"
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        return self.attention(x)\nmodel = Net()\n"
        "loss = lambda m: torch.nn.functional.cross_entropy(model(m.x), m.y)",
    ),
    (
        "classes-for-accuracy",
        f"{RUN}run.evaluate(d, lambda m: (model(m.x).argmax(1), m.y), {{'a': unisono.Accuracy()}})  # <-",
        f"{RUN}run.evaluate(d, lambda m: (model(m.x), m.y), {{'a': unisono.Accuracy()}})\n"
        "run.evaluate(d, lambda m: (model(m.x).argmax(1), m.y), {'a': Own()})",
    ),
    (
        "classes-for-accuracy",
        "from unisono import Accuracy\ndef predict(m):\n    found = model(m.x).max(1)[1]\n    return found, m.y  # <-\n"
        "run.evaluate(d, predict, metrics={'a': Accuracy()})",
        "from unisono import Accuracy\ndef predict(m):\n    found = model(m.x)\n    show(found.argmax(1))\n"
        "    return found, m.y\nrun.evaluate(d, predict, {'a': Accuracy()})",
    ),
    (
        "classes-for-accuracy",
        f"{RUN}a = unisono.Accuracy()\na.update(out.argmax(1), y)  # <-",
        f"{RUN}a = unisono.Accuracy()\na.update(out, y)\nb.update(out.argmax(1), y)",
    ),
    (
        "divided-loss",
        f"{RUN}def f(m):\n    loss = ce(model(m.x), m.y)\n    return loss / 4  # <-\nrun.step(batch, f)",
        f"{RUN}def f(m):\n    loss = ce(model(m.x), m.y) + mse(m)\n    return loss / 2\nrun.step(batch, f)\n"
        "def g(loss):\n    return loss / 4",
    ),
    (
        "divided-loss",
        f"{RUN}run.step(batch, lambda m: ce(model(m.x), m.y) / accumulation_steps)  # <-",
        f"{RUN}run.step(batch, lambda m: (ce(m) + ce(n)) / 2)\nrun.step(batch, lambda m: ce(model(m.x / 2), m.y) / t)",
    ),
    (
        "divided-loss",
        f"{RUN}def f(m):\n    loss = ce(m)\n    loss /= args.grad_accum  # <-\n    return loss\nrun.step(batch, f)",
        f"{RUN}def f(m):\n    loss = ce(m)\n    x = loss / 4\n    return loss\nrun.step(batch, f)",
    ),
    (
        "divided-loss",
        f"{RUN}def f(m):\n    loss = ce(m)\n    loss = loss / 8  # <-\n    return loss\nrun.step(batch, f)",
        f"{RUN}def f(m):\n    loss = ce(m)\n    return loss / len(m.y)\nrun.step(batch, f)",
    ),
    (
        "save-on-every-rank",
        "from unisono import Run\nrun = Run()\ntorch.save(x, 'a.pt')  # <-",
        "from unisono import Run\nrun = Run()\nif run.world.is_leader:\n    torch.save(x, 'a.pt')",
    ),
    ("deprecated-name", "from torch.cuda.amp import autocast  # <-", "from torch.amp import autocast"),
    ("deprecated-name", "from torchtext.data import utils  # <-", "from mytext.data import utils"),
    ("deprecated-name", "model = torch.nn.DataParallel(model)  # <-", "model = DDP(model)"),
    ("rank-as-device", "model = DDP(m, device_ids=[args.node_rank])  # <-", "model = DDP(m, device_ids=[args.gpu])"),
    ("rank-as-device", "torch.cuda.set_device(int(os.environ['GROUP_RANK']))  # <-", "torch.cuda.set_device(0)"),
    (
        "rank-as-device",
        "import torch.multiprocessing as mp\ndef f(rank):\n    x.to(rank)  # <-\nf(3)",
        "import torch.multiprocessing as mp\ndef f(rank):\n    x.to(rank)\nmp.spawn(f, nprocs=2)",
    ),
    ("collective-on-some-ranks", None, "if 'RANK' in os.environ:\n    dist.init_process_group('nccl')"),
    ("collective-on-some-ranks", None, "if n_gpu == 0 or gpu > 1:\n    dist.barrier()"),
    (
        "collective-on-some-ranks",
        "first = dist.get_rank() == 0\nif first:\n    dist.barrier()  # <-",
        "several = dist.get_world_size() > 1\nif several:\n    dist.barrier()",
    ),
    (
        "save-on-every-rank",
        "def save(x):\n    torch.save(x, 'a.pt')  # <-\ndef late(x):\n    save(x)\nlate(1)",
        "def save(x):\n    torch.save(x, 'a.pt')\ndef late(x):\n    save(x)\nif rank == 0:\n    late(1)",
    ),
    (
        "save-on-every-rank",
        "import io\nb = open('a', 'wb')\ntorch.save(x, b)  # <-",
        "import io\nb = io.BytesIO()\ntorch.save(x, b)\ntorch.save(x, io.BytesIO())",
    ),
    ("save-on-every-rank", None, "if args.local_rank in [-1, 0]:\n    torch.save(model, 'a.pt')"),
    ("save-on-every-rank", None, "name = f'a-{rank}.pt'\ntorch.save(model, name)"),
    ("save-on-every-rank", None, "for e in range(3):\n    if rank:\n        continue\n    torch.save(model, 'a.pt')"),
    (
        "save-on-every-rank",
        "def save():\n    if not e:\n        return\n    torch.save(m, 'a.pt')  # <-\nsave()",
        "def save():\n    if not e:\n        return\n    if rank:\n        return\n    torch.save(m, 'a.pt')\nsave()",
    ),
    ("undefined-name", "def f():\n    return optimzer  # <-", "def f():\n    return optimizer\noptimizer = 1"),
    (
        "undefined-name",
        "class A:\n    b = 1\n    def f(self):\n        return b  # <-",
        "class A:\n    b = 1\n    c = b",
    ),
    ("undefined-name", "x = [y for _ in range(3)]  # <-", "x = [y for y in range(3) if __file__]"),
    ("undefined-name", None, "def f():\n    global late\n    late = 1\nf()\nprint(late)"),
    ("undefined-name", None, "try:\n    unicode\nexcept NameError:\n    unicode = str"),
    ("undefined-name", None, "from os.path import *\nprint(join('a'))"),
    ("undefined-name", None, "exec(open('settings.py').read())\nprint(setting)"),
    ("undefined-name", None, "def f():\n    try:\n        pass\n    except OSError as e:\n        print(e)"),
    (
        "missing-zero-grad",
        "o = torch.optim.SGD(p, lr=1)\nfor x in d:\n    loss = f(x)\n    loss.backward()  # <-\n    o.step()",
        "o = torch.optim.SGD(p, lr=1)\nfor x in d:\n    o.zero_grad()\n    f(x).backward()\n    o.step()",
    ),
    (
        "missing-zero-grad",
        "def step(x):\n    f(x).backward()  # <-\n    o.step()\no = torch.optim.SGD(p, lr=1)\nfor x in d:\n    step(x)",
        "def step(x):\n    f(x).backward()\n    o.step()\no = torch.optim.SGD(p, lr=1)\nstep(x)",
    ),
    ("missing-zero-grad", None, "for x in d:\n    engine.backward(f(x))\n    engine.step()"),
    (
        "missing-zero-grad",
        None,
        "from a import clear\no = torch.optim.SGD(p)\nfor x in d:\n    clear(o)\n    f(x).backward()\n    o.step()",
    ),
]

# A script of `realistic`, what is changed in it, and the one rule that it then breaks.
BREAKS = [
    ("trainer", "self.gpu_id == 0 and ", "", "save-on-every-rank"),
    ("trainer", "self.optimizer.zero_grad()", "pass", "missing-zero-grad"),
    ("trainer", "self.train_data.sampler.set_epoch(epoch)", "pass", "missing-set-epoch"),
    ("trainer", "device_ids=[self.gpu_id]", 'device_ids=[int(os.environ["RANK"])]', "rank-as-device"),
    ("spawned", "    if rank == 0:\n        torch.save(", "    if True:\n        torch.save(", "save-on-every-rank"),
    ("spawned", "dist.barrier()\n    if rank", "if rank == 1:\n        dist.barrier()\n    if rank",
     "collective-on-some-ranks"),
    ("loop", "and master_process:\n        found", "and best:\n        found", "save-on-every-rank"),
    ("loop", "param.grad = None", "pass", "missing-zero-grad"),
    ("loop", "t0 = time.time()", "t0 = tine.time()", "undefined-name"),
    ("saver", "if is_primary(args):\n        saver =", "if args.epochs:\n        saver =", "save-on-every-rank"),
    ("saver", "    with torch.inference_mode():", "    if True:", "evaluation-with-gradients"),
    ("saver", "        optimizer.zero_grad()\n", "", "missing-zero-grad"),
    ("helpers", "@main_process_only\ndef save_best(", "save_best = 1\ndef save_best(", None),  # called from elsewhere
    ("worker", "if not args.multiprocessing_distributed or args.rank % ngpus_per_node == 0:", "if epoch:",
     "save-on-every-rank"),
    ("worker", "model.cuda(args.gpu)", "model.cuda(args.rank)", "rank-as-device"),
]  # fmt: skip


def found(rule, text):
    return [finding.line for finding in examine(HEAD + text + "\n") if finding.name == rule]


def mistakes_of(fragment):
    """Return the findings but for names that the rest of the program would define."""
    return [finding for finding in examine(HEAD + fragment) if finding.name != "undefined-name"]


@pytest.mark.parametrize(("rule", "wrong", "right"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_a_mistake_is_found_on_its_line_and_what_is_right_is_not(rule, wrong, right):
    """One finding where the arrow is; none when it is put right."""
    if wrong is not None:
        lines = (HEAD + wrong).splitlines()
        assert found(rule, wrong) == [number for number, line in enumerate(lines, 1) if line.endswith("# <-")]
    assert found(rule, right) == []


def test_every_rule_has_a_case():
    """A rule without an example of both kinds would not be noticed otherwise."""
    assert {rule for rule, wrong, _ in CASES if wrong} == set(RULES)
    assert {rule for rule, _, right in CASES if right} == set(RULES)


def test_every_finding_says_what_to_do():
    """Status, words and remedy are there, on one line each."""
    findings = [finding for _, wrong, _ in CASES if wrong for finding in examine(HEAD + wrong)]
    assert all(finding.status in ("warn", "fail") and finding.detail and finding.hint for finding in findings)
    assert not any("\n" in finding.detail + finding.hint for finding in findings)


def test_a_proven_rank_fails_and_one_by_name_warns():
    """A parameter called rank may be local (one machine, mp.spawn); what comes from get_rank() is not."""
    text = "rank = dist.get_rank()\ntorch.cuda.set_device(rank)\n"
    assert [finding.status for finding in examine(HEAD + text)] == ["fail"]
    text = "def main(rank, world_size):\n    torch.cuda.set_device(rank)\n"
    assert [finding.status for finding in examine(HEAD + text)] == ["warn"]


def test_a_script_that_python_cannot_read_is_one_finding():
    """The line is named; nothing else is guessed."""
    (finding,) = examine("x = 1\nif x:\nreturn\n")
    assert (finding.name, finding.status, finding.line) == ("syntax", "fail", 3)
    (finding,) = examine("x = '\0'\n")
    assert (finding.name, finding.status) == ("syntax", "fail")


@pytest.mark.parametrize(
    "text",
    ["", "\n", "f(f'')", "f(*a, **k)", "f()()", "(lambda: 0)()", "if rank: pass", "x = y = z[0] = f'{a}{b}'",
     "a.b().c()",
     "for x, *y in f: x += 1", "match x:\n    case 1: f()", "parser.add_argument(*names)", "torch.save()", "DDP()",
     "x = '\\d'", "# a\r\nf(f'{x!r:>{3}}')\r\n", "async def f():\n    async with a: await b()", "class A: x = f()"],
)  # fmt: skip
def test_odd_but_whole_programs_have_no_mistake(text):
    """No rule stumbles over syntax that it does not know."""
    assert mistakes_of(text) == []


def test_lines_are_counted_as_python_does():
    """A form feed in the text ends no line, for the finding as for the comment that silences it."""
    text = "a = '\x0c'\nif rank == 0:\n    dist.barrier()"
    assert [finding.line for finding in mistakes_of(text)] == [HEAD.count("\n") + 3]
    assert mistakes_of(f"{text}  # unisono: ignore[collective-on-some-ranks]") == []


def test_a_line_can_be_silenced_for_one_rule():
    """The comment counts for the rule it names, and for no other."""
    text = "if rank == 0:\n    dist.barrier()  # unisono: ignore[{}]\n"
    assert mistakes_of(text.format("collective-on-some-ranks")) == []
    assert mistakes_of(text.format("kept-graph, collective-on-some-ranks")) == []
    assert len(mistakes_of(text.format("kept-graph"))) == 1


def test_the_well_known_article_has_its_mistakes():
    """A script as tutorials write it, with several at once: each by its name, in the order of its lines."""
    text = textwrap.dedent("""\
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler
        def train(args):
            torch.distributed.init_process_group("nccl", world_size=2, rank=args.local_rank)
            torch.cuda.set_device(args.local_rank)
            train_sampler = DistributedSampler(data)
            loader = DataLoader(data, batch_size=64, sampler=train_sampler)
            model = DistributedDataParallel(Net().cuda(), device_ids=[args.local_rank])
            for epoch in range(10):
                for batch in loader:
                    loss = criterion(model(batch))
                    loss.backward()
                    ema_loss = 0.9 * ema_loss + 0.1 * loss
                model.eval()
                scores = [model(batch) for batch in test]
                model.train()
                if args.local_rank == 0:
                    torch.save({"model": model.module.state_dict()}, "step.pt")
        """)
    named = [(finding.line, finding.name) for finding in examine(text) if finding.name != "undefined-name"]
    assert named == [
        (6, "local-rank-as-rank"),
        (8, "missing-set-epoch"),
        (15, "kept-graph"),
        (17, "evaluation-with-gradients"),
        (20, "local-rank-as-rank"),
    ]


def test_our_own_programs_are_clean():
    """No finding in the examples, nor in the package: a control against rules that cry wolf."""
    root = Path(__file__).parents[2]
    told = [
        f"{path.relative_to(root)}:{finding.line} {finding.name} {finding.detail}"
        for folder in ("examples", "src/unisono/recipes", "src/unisono/train")
        for path in sorted((root / folder).rglob("*.py"))
        for finding in examine(path.read_text())
    ]
    assert told == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_whole_scripts_that_are_right_have_no_mistake(name):
    """Styles that people write in: guards in the caller, by helpers, by objects that only rank 0 has."""
    assert [(finding.line, finding.name, finding.detail) for finding in examine(SCRIPTS[name])] == []


@pytest.mark.parametrize(("name", "right", "wrong", "rule"), BREAKS)
def test_whole_scripts_that_are_broken_have_that_mistake(name, right, wrong, rule):
    """The control: one change, and just that rule is broken; None where one file cannot tell."""
    assert SCRIPTS[name].count(right) == 1
    broken = SCRIPTS[name].replace(right, wrong)
    assert {finding.name for finding in examine(broken)} == ({rule} if rule else set())


def test_three_mistakes_of_one_script():
    """The machine's rank as a GPU, a misspelt name, gradients that are never cleared: each on its line."""
    text = textwrap.dedent("""\
        import argparse
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        parser = argparse.ArgumentParser()
        parser.add_argument("--node_rank", type=int)
        args = parser.parse_args()
        dist.init_process_group("nccl")
        model = DDP(torch.nn.Linear(2, 2), device_ids=[args.node_rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(100):
            loss = model(torch.randn(3, 2)).sum()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), arguments.out)
        """)
    named = [(finding.line, finding.name, finding.status) for finding in examine(text)]
    assert named == [(9, "rank-as-device", "fail"), (13, "missing-zero-grad", "fail"), (16, "undefined-name", "fail")]


def test_a_name_that_is_defined_by_itself_ends():
    """No rule follows names in a circle."""
    text = "if saver:\n    saver = made(saver)\nif saver is not None and other:\n    torch.save(x, 'a.pt')\n"
    assert mistakes_of(
        text + "other = not saver\nsaver = not other\ndef f():\n    return f()\nif f():\n    dist.barrier()"
    )
