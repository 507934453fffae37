"""torch's compiler stays out of a process until it is wanted; from then on torch does what it always does."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torchs

from unisono.determinism import compiler


def alone(program, **variables):
    """Run a program in a process of its own and return what it printed."""
    told = ("TORCHINDUCTOR_DETERMINISTIC", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES")  # by runs in this process
    environ = {name: value for name, value in os.environ.items() if name not in told}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


TRAIN = """
import sys
{first}
import torch
from torch import nn
def train(step, backward):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for number in range(5):
        optimizer.zero_grad()
        backward(model(torch.full((4, 3), 1.0 + number)).square().sum(), 0.3)
        step(optimizer)
        schedule.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.is_grad_enabled()
    return [parameter.detach().numpy().tobytes().hex() for parameter in model.parameters()]
"""

OPEN = """
from unisono.determinism import backward, optimizer_step
from unisono.determinism.torch_changes import change_torch
from unisono.train.guards.inside_loss import OBSERVER
class Owner: pass
owner = Owner()
change_torch(owner, OBSERVER)
"""
SPARED = TRAIN.format(first=OPEN)
MODULES = '"torch._dynamo" in sys.modules, "sympy" in sys.modules'


@pytest.mark.slow
def test_a_run_does_without():
    """Optimizer, schedule, gradients, steps, determinism: no compiler, no SymPy, and the bits of torch's own ways."""
    spared = alone(f"""{SPARED}
from unisono.determinism.switches import set_determinism
set_determinism(1)
print(*train(optimizer_step.step, backward.differentiate), {MODULES})
""")
    usual = alone(f"""{TRAIN.format(first="")}
torch.set_num_threads(1)
print(*train(lambda optimizer: optimizer.step(), lambda loss, at: loss.backward(torch.full_like(loss, at))), {MODULES})
""")
    assert spared == [*usual[:-2], "False", "False"]
    assert usual[-2:] == ["True", "True"]  # the control: if torch has changed, nothing need be spared


@pytest.mark.slow
def test_once_it_is_here_torch_goes_on():
    """Methods are left out of graphs by the compiler itself, which is told to be deterministic; bits stay."""
    told = alone(SPARED + """
from unisono.determinism.switches import set_determinism
set_determinism(1)
first = train(optimizer_step.step, backward.differentiate)
import torch._dynamo
import torch._inductor.config
assert train(optimizer_step.step, backward.differentiate) == first
left_out = torch.optim.Optimizer.add_param_group.__wrapped__.__dynamo_disable
print(left_out.__module__, torch._inductor.config.deterministic)
torch._inductor.config.deterministic = False
set_determinism(1)
print(torch._inductor.config.deterministic)
from torch._dynamo import config
print(config.automatic_dynamic_shapes, config.fail_on_recompile_limit_hit)
""")  # fmt: skip
    assert told == ["torch._dynamo.eval_frame", "True", "True", "False", "True"]


@pytest.mark.slow
def test_code_for_a_shape_does_not_depend_on_the_shapes_before():
    """Compiled gradients of 33 and of 128 samples are the same in either order; the control: as torch comes, not."""
    program = """
import torch, torch._dynamo
from torch import nn
from torch.nn import functional as F
from unisono.determinism.switches import set_determinism
{pin}
class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(6, 32), nn.GroupNorm(4, 32), nn.Linear(32, 10)
    def forward(self, x):
        hidden = self.norm(F.silu(self.inner(x)).transpose(1, 2)).mean(-1)
        hidden = hidden - hidden.mean(0, keepdim=True)
        return self.outer(hidden / (hidden.var(0, keepdim=True, unbiased=False) + 1e-5).sqrt())
def gradients(size):
    model.zero_grad()
    generator = torch.Generator().manual_seed(size)
    loss = model(torch.randn(size, 50, 6, generator=generator)).square().sum(1).log().mean()
    loss.backward()
    return [parameter.grad.numpy().tobytes().hex() for parameter in model.parameters()]
torch.set_num_threads(1)
torch.manual_seed(0)
model = Pool()
model.compile()
found = []
for sizes in ((128, 33), (33, 128)):
    torch._dynamo.reset()
    for size in sizes:
        gradients(size)
    found.append([gradients(size) for size in (33, 128)])
print(found[0] == found[1])
"""
    assert alone(program.format(pin="set_determinism(1)")) == ["True"]
    assert alone(program.format(pin="torch.use_deterministic_algorithms(True)")) == ["False"]


@pytest.mark.slow
def test_too_many_shapes_are_an_error():
    """Where torch would give up compiling and go on with other bits, it raises."""
    told = alone("""
import torch
from unisono.determinism.switches import set_determinism
set_determinism(1)
function = torch.compile(lambda x: x * 2, backend="eager")
set_determinism(1)
try:
    for size in range(2, 20):
        function(torch.ones(size))
except torch._dynamo.exc.FailOnRecompileLimitHit:
    print(size)
""")
    assert told == ["10"]


@pytest.mark.slow
def test_what_is_compiled_may_make_optimizers():
    """Compiled code that makes an optimizer, or gives it more parameters, is compiled as without us."""
    program = """
{first}
import torch
graphs = []
def backend(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward
old = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
@torch.compile(backend=backend)
def step(x):
    new = torch.optim.SGD([torch.nn.Parameter(x.clone())], lr=0.1)
    new.zero_grad()
    old.add_param_group({{"params": [torch.nn.Parameter(x.clone())]}})
    return x + len(old.state_dict()["param_groups"])
print(step(torch.ones(2)).tolist(), graphs)
"""
    usual = alone(program.format(first=""))
    assert usual[:2] == ["[3.0,", "3.0]"]
    assert alone(program.format(first=OPEN)) == usual


@pytest.mark.slow
def test_without_being_asked_the_compiler_is_not_deterministic():
    """The control of the above."""
    assert alone("import torch._inductor.config as config; print(config.deterministic)") == ["False"]


def test_gradients_of_a_step_are_as_the_optimizer_wants_them(monkeypatch):
    """Recorded where it is differentiable, else not, and put back even if the step fails."""

    class Own(Optimizer):
        @torchs._use_grad_for_differentiable
        def step(self):
            seen.append(torch.is_grad_enabled())
            raise ArithmeticError

    seen: list[bool] = []
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    optimizers = [Own(parameters, {"differentiable": differentiable}) for differentiable in (True, False)]
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    for optimizer in optimizers:
        for before in (True, False):
            with torch.set_grad_enabled(before), pytest.raises(ArithmeticError):
                compiler.update(Own.step.__wrapped__, optimizer)
            assert torch.is_grad_enabled()
    assert seen == [True, True, False, False]
