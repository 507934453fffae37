"""Variables that a program's loop over steps takes from turn to turn: found where they reach the training only."""

import ast

import pytest

from unisono.determinism.source.loop_variables import loop_variables

LOOP = "for batch in run.steps(loader):\n"
STEP = "    run.step(batch, f)\n"
ZIP = "    for a, q in zip(avg, model.parameters()):\n        a.mul_(0.9).add_(q.detach(), alpha=0.1)\n"
TRACKER = (
    "class Tracker:\n    def __init__(self):\n        self.ema = self.n = 0\n    def update(self, loss):\n"
    "        self.ema = 0.9 * self.ema + 0.1 * loss\n    def set(self, step):\n        self.n = step\n"
    "    def factor(self):\n        return 1 + self.ema\ntracker = Tracker()\n"
)
UPDATE = "    tracker.update(run.step(batch, f))\n"
REACHING = {
    "k, in the loss": f"k = 0\n{LOOP}    k += 1\n    w = 1 + 0.1 * k\n    run.step(batch, lambda m: w * f(m))\n",
    "k, in a function": f"k = 0\ndef loss(m):\n    return f(m) * k\n{LOOP}    k = k + 1\n    run.step(batch, loss)\n",
    "self.k": f"self.model, self.opt = run.prepare(self.model, self.opt)\n{LOOP}    self.k += 1\n"
    "    run.step(batch, lambda m: self.k * f(m))\n",
    "avg, a list": f"{LOOP}{STEP}    avg = [0.9 * a + 0.1 * p for a, p in zip(avg, model.parameters())]\n"
    "    for p, a in zip(model.parameters(), avg):\n        p.copy_(a)\n",
    "avg, in place": f"{LOOP}{STEP}{ZIP}    for a, q in zip(avg, model.parameters()):\n        q.copy_(a)\n",
    "rng": f"rng = np.random.default_rng(0)\n{LOOP}    w = rng.random()\n    run.step(batch, lambda m: w * f(m))\n",
    "k, in a schedule": f"k = 0\n{LOOP}{STEP}    k += 1\n    if k == 6:\n        for g in opt.param_groups:\n"
    "            g['lr'] *= 0.1\n",
    "best, bad": f"best, bad = 9, 0\n{LOOP}{STEP}    score = run.evaluate(d, p, m)\n    if score < best:\n"
    "        best, bad = score, 0\n    else:\n        bad += 1\n    if bad > 3:\n        break\n",
    "best": f"{LOOP}{STEP}    if value < best:\n        best = value\n    else:\n"
    "        opt.param_groups[0]['lr'] = 0.1\n",
    "tracker, in the loss": f"{TRACKER}{LOOP}    tracker.update(run.step(batch, lambda m: tracker.ema * f(m)))\n",
    "tracker, by a method": f"{TRACKER}def loss(m):\n    return f(m) * tracker.factor()\n{LOOP}"
    "    value = run.step(batch, loss)\n    tracker.update(value)\n",
    "tracker, in a condition": f"{TRACKER}{LOOP}{UPDATE}    if tracker.ema < 1:\n        break\n",
    "tracker, in a setting": f"{TRACKER}{LOOP}{UPDATE}    opt.param_groups[0]['lr'] = tracker.factor()\n",
    "w": "for batch, w in zip(run.steps(loader), weights):\n    run.step(batch, lambda m: w * f(m))\n",
    "it": f"it = iter(other)\n{LOOP}    x, y = next(it)\n    run.step(batch, lambda m: f(m) + g(x, y))\n",
    "G, of a function": "G = 1.0\ndef update():\n    global G\n    G *= 0.8\n"
    f"{LOOP}    update()  # G\n    run.step(batch, lambda m: G * f(m))\n",
    "c, a closure": "def make():\n    n = 0\n    def get():\n        nonlocal n\n        n += 1\n        return n\n"
    f"    return get\nc = make()\n{LOOP}    w = c()\n    run.step(batch, lambda m: w * f(m))\n",
    "data.level": f"loader = run.loader(data, batch_size=4)\n{LOOP}{STEP}    data.level += 0.1\n",
    "COUNT, in an attribute": f"run.prepare(net, opt)\n{LOOP}    net.beta = 1 / next(COUNT)\n{STEP}",
    "COUNT, in a function": "run.prepare(net, opt)\ndef anneal(m):\n    m.beta = 1 / next(COUNT)\n"
    f"{LOOP}    anneal(net)  # COUNT\n{STEP}",
    "i": "for i, batch in enumerate(run.steps(loader)):\n    run.step(batch, lambda m: f(m) / (i + 1))\n",
}
HARMLESS = {
    "a sum that is shown": f"total = 0\n{LOOP}    total += run.step(batch, f)\n    if batch.step % 10 == 0:\n"
    "        print(total)\n",
    "a log": f"log, total = {{}}, 0\n{LOOP}    loss = run.step(batch, f)\n    total = 0.9 * total + 0.1 * loss\n"
    "    log['loss'] = total\n    run.record(loss=total)\n",
    "of the step": f"{LOOP}    w = 1 + 0.1 * batch.step\n    w *= 2\n    run.step(batch, lambda m: w * f(m))\n",
    "registered": f"run.register('state', state)\n{LOOP}    state.k += 1\n"
    "    run.step(batch, lambda m: state.k * f(m))\n",
    "an optimizer's own": f"{LOOP}{STEP}    if batch.step == 6:\n        for g in opt.param_groups:\n"
    "            g['lr'] *= 0.1\n",
    "its learning rate": f"model, opt = run.prepare(model, opt)\n{LOOP}{STEP}"
    "    opt.param_groups[0]['lr'] = opt.param_groups[0]['lr'] * 0.99\n"
    "    model.fc.weight.data = model.fc.weight.data * 0.9\n",
    "when to show": "for i, batch in enumerate(run.steps(loader)):\n    run.step(batch, f)\n    if i % 10 == 0:\n"
    "        print(run.evaluate(d, p, m))\n",
    "an average that is evaluated": f"{LOOP}{STEP}{ZIP}",
    "a generator for each step": f"{LOOP}    rng = np.random.default_rng(batch.step)\n    w = rng.random()\n"
    "    run.step(batch, lambda m: w * f(m))\n",
    "an object that is shown": f"{TRACKER}{LOOP}{UPDATE}    print(tracker.ema)\n    run.record(ema=tracker.ema)\n",
    "one that is registered": f"{TRACKER}run.register('tracker', tracker)\n{LOOP}{UPDATE}    if tracker.ema < 1:\n"
    "        break\n",
    "one that is told the step": f"{TRACKER}{LOOP}    tracker.set(batch.step)\n"
    "    run.step(batch, lambda m: f(m) * tracker.n)\n",
    "one for each step": f"{TRACKER}{LOOP}    tracker = Tracker()\n{UPDATE}    if tracker.ema < 1:\n        break\n",
    "what is made when it is first needed": f"{LOOP}    if table is None:\n        table = make()\n"
    "    run.step(batch, lambda m: f(m, table))\n",
    "each time the first": f"{LOOP}    x = next(iter(other))\n    run.step(batch, lambda m: f(m) + g(x))\n",
    "one for each iteration": f"{LOOP}    it = iter(other)\n    x = next(it)\n"
    "    run.step(batch, lambda m: f(m) + g(x))\n",
    "a global that is shown": "shown = 0\ndef show():\n    global shown\n    shown += 1\n    print(shown)\n"
    f"{LOOP}{STEP}    show()\n",
    "a global that is set": "G = 1.0\ndef update(step):\n    global G\n    G = 0.8 ** step\n"
    f"{LOOP}    update(batch.step)\n    run.step(batch, lambda m: G * f(m))\n",
    "a counter of what is shown": "run.prepare(net, opt)\ndef show(m):\n    print(m, next(COUNT))\n"
    f"{LOOP}    show(net)\n{STEP}",
    "a function that takes anew": "run.prepare(net, opt)\ndef anneal(m):\n    it = iter(table)\n    m.beta = next(it)\n"
    f"{LOOP}    anneal(net)\n{STEP}",
    "of a bar": f"from tqdm import tqdm\nfor batch in tqdm(run.steps(loader)):\n{STEP}",
    "a name in zip that is shown": f"for batch, name in zip(run.steps(loader), names):\n{STEP}    print(name)\n",
    "another loop": f"k = 0\nfor x in data:\n    k += 1\n    train(k)\n{LOOP}{STEP}",
}


def found(text):
    variables = (each for each in loop_variables(ast.parse(text)) if not each.is_prepared)
    return [(each.name, text.splitlines()[each.line - 1], each.reached) for each in variables]


@pytest.mark.parametrize("name", REACHING)
def test_what_reaches_the_training_is_found(name):
    """By its name, at the line where the loop changes it."""
    [(variable, line, reached), *others] = found(REACHING[name])
    assert variable == name.partition(",")[0]
    assert [each[0] for each in others] == ["bad"] * (name == "best, bad")
    assert variable in line or "zip" in line
    assert reached > 1 or "enumerate" in line


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_not_is_left_alone(name):
    """The control against warnings of no use."""
    assert found(HARMLESS[name]) == []


def test_attributes_of_what_is_prepared():
    """Whether they are part of its state no source tells; by a loop of their own, and by a function."""
    text = (
        f"run.prepare(net, opt)\ndef anneal(m):\n    m.beta *= 0.9\n{LOOP}{STEP}    net.alpha += 1\n    anneal(net)\n"
    )
    variables = [each for each in loop_variables(ast.parse(text)) if each.is_prepared]
    assert [(each.name, each.line) for each in variables] == [("net.alpha", 6), ("net.beta", 7)]


def test_what_is_made_of_a_variable():
    """By which names it may be found once more."""
    text = REACHING["COUNT, in a function"]
    [variable] = loop_variables(ast.parse(text))
    assert {"COUNT", "anneal", "net.beta"} <= variable.made
