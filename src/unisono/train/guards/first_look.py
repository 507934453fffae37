"""What a run finds when it begins and only warns of: each may be meant, and each mostly is not.

Everything here is looked at once, before the first step; the leader speaks.
"""

import gc
import math
import weakref
from collections.abc import Iterator, Mapping, Set
from difflib import get_close_matches
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from unisono.strategies.base import Micro
from unisono.system.hints import nearest
from unisono.system.messages import warn
from unisono.train.trained_parts import Parts

_LARGEST_CHOSEN_SEED = 1 << 32  # torch draws the seed of a process from 64 bits; nobody writes down so large a one
_DEPTH = 6
_averages: "weakref.WeakSet[AveragedModel]" = weakref.WeakSet()
"""Those that were registered or prepared, with whichever run of this process."""


@final
class FirstLook:
    """What is said once, by the leader, of a run's beginning.

    To be made just before the run seeds the generators.
    """

    def __init__(self, *, is_leader: bool, best: str | None = None) -> None:
        self._speaks, self.best, self._is_score_told = is_leader, best, not is_leader
        self._unseeded = Unseeded()
        self._is_mode_told = self._is_schedule_told = self._is_best_told = not is_leader
        self._rates: list[float] | None = None
        self._looks_left = 2
        self._attributes: dict[str, dict[str, Any]] = {}
        self.measured: set[str] = set()  #: Names of what was recorded so far.

    def at_parts(self, parts: Parts, seed: int) -> None:
        """Look at a model and its optimizers, as the run gets them."""
        self.at_registered(parts.model)
        if self._speaks:
            self._attributes = {name: unsaved_attributes(each) for name, each in parts.optimizers.items()}
        names = self._unseeded.initial(parts.model)
        if names and self._speaks:
            warn(
                f"the model was built before Run(seed={seed}), and its weights ({names[0]}"
                f"{', ...' if len(names) > 1 else ''}) drawn while torch was not seeded: others at every start. "
                "Hint: build the model after the run, or call torch.manual_seed() before it."
            )

    def at_registered(self, part: Any) -> None:
        """Note an object that checkpoints hold from now on."""
        if isinstance(part, nn.Module):
            _averages.update(each for each in part.modules() if isinstance(each, AveragedModel))

    def at_sizes(self, batch_size: int, replicas: int, sampler: Any = None) -> None:
        """Look at the samples of a batch, and of an epoch, which only a stream's loader does not know."""
        if self._speaks and sampler is not None and batch_size > (there := sampler.num_samples):
            warn(f"batch_size={batch_size} is more than the data set's {there} samples: each epoch is one step.")
        if batch_size < replicas and self._speaks:
            idle = replicas - batch_size
            warn(
                f"batch_size={batch_size} is fewer samples than this run's {replicas} replicas: {idle} of them never "
                f"{'has' if idle == 1 else 'have'} one, and ranks that host only those compute nothing. "
                f"Hint: batch_size >= {replicas}, or Run(replicas={batch_size})."
            )

    def at_samples(self, step: int, micros: Iterator[Micro]) -> Iterator[Micro]:
        """Return the micro-batches of a step; of the first one's first, look at the inputs."""
        return self._with_look(micros) if step == 1 and self._speaks else micros

    def _with_look(self, micros: Iterator[Micro]) -> Iterator[Micro]:
        for number, micro in enumerate(micros):
            data = micro.data
            if number == 0 and isinstance(data, tuple) and data and are_bytes(inputs := data[0]):
                warn(
                    f"the inputs are bytes, written as {str(inputs.dtype)[6:]}: whole numbers from 0 to "
                    f"{inputs.max().item():g}, of which a model learns badly. "
                    "Hint: images / 255 before ArrayDataset, or micro.x / 255 in the loss."
                )
            yield micro

    def at_scores(self, scores: Mapping[str, float], known: Mapping[str, float]) -> dict[str, float]:
        """Return scores of an evaluation without those that another one has measured after the same step."""
        new = {name: value for name, value in scores.items() if known.get(name, value) == value or value != value}
        other = next((name for name in scores if name not in new), None)
        if other is not None and not self._is_score_told:
            self._is_score_told = True
            warn(
                f"run.evaluate() has measured {other!r} twice after one step, as {known[other]:.6g} and as "
                f"{scores[other]:.6g}: the first is recorded. Hint: name='train' records one of them as "
                f"'train_{other}'; name=None records nothing."
            )
        return new

    def at_evaluation_mode(self, model: nn.Module) -> None:
        """Look at a model that is trained in evaluation mode."""
        if self._is_mode_told:
            return
        self._is_mode_told = True
        warn_of_evaluation_mode(model)

    def at_parts_saved(self, parts: Parts) -> None:
        """Look at what a checkpoint is about to hold: schedules of the optimizer that are not in it.

        All objects of the process are searched, which takes some 20 ms, and only where there may be one: where torch
        has marked the optimizer as one with a schedule, or where learning rates are not what they were the last time.
        """
        self._at_attributes(parts.optimizers)
        self._at_averages(parts.registered)
        alone = [each for name, each in parts.optimizers.items() if name not in parts.schedulers]
        if self._is_schedule_told or not alone:
            return
        before, self._rates = self._rates, [float(group["lr"]) for each in alone for group in each.param_groups]
        is_marked = any(hasattr(each.step, "_wrapped_by_lr_sched") for each in alone)
        if not is_marked and before in (None, self._rates):
            return
        self._is_schedule_told = True
        if found := [lost for each in alone for lost in lost_schedules(each, parts.registered)]:
            warn(
                f"the optimizer has a {type(found[-1]).__name__} that no checkpoint holds: after a resume it would "
                "start from its beginning. Hint: run.prepare(model, optimizer, scheduler) steps it after every step "
                "and saves it; one that you step yourself is saved by run.register('schedule', scheduler)."
            )

    def _at_averages(self, known: Mapping[str, Any]) -> None:
        """Look for torch's averages of weights at the first two saves: all objects are searched."""
        if not self._speaks or self._looks_left == 0:
            return
        self._looks_left -= 1
        if lost_averages(known):
            self._looks_left = 0
            warn(
                "an AveragedModel is updated that no checkpoint holds: after a resume it would start from its "
                "beginning. Hint: run.register('average', averaged) before the loop saves and restores it."
            )

    def _at_attributes(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Look for what an optimizer counts or collects outside of its state."""
        for name, before in [*self._attributes.items()]:
            now = unsaved_attributes(optimizers[name])
            changed = [each for each in now if each not in before or now[each] != before[each]]
            if changed:
                del self._attributes[name]
                warn(
                    f"{type(optimizers[name]).__name__} changes its attribute {changed[0]!r} when it steps, and no "
                    "checkpoint holds that: after a resume it begins anew, and the result may differ. Hint: keep it in "
                    "optimizer.state, in a group of param_groups, or in state_dict() and load_state_dict() of its own."
                )

    def at_record(self, names: Set[str]) -> None:
        """Look at the names of what is recorded; one that is nearly `best`, which has had no value, is told now."""
        self.measured |= names
        best = self.best
        if best is None or self._is_best_told or best in self.measured:
            return
        if near := [each for each in sorted(names) if best in each] or get_close_matches(best, names, cutoff=0.85):
            self._is_best_told = True
            warn(
                f"CheckpointPolicy(best={best!r}) keeps no best checkpoint: run.record() was given "
                f"{', '.join(sorted(self.measured))} so far. Hint: did you mean best={near[0]!r}?"
            )

    def at_end(self, steps: range, left_over: str = "") -> None:
        """Look at what was measured, of which checkpoints were to keep the best, and at what is not in the model.

        Args:
            steps: Those of the loop; where it goes on, what was measured may be that of an earlier launch.
            left_over: What is to be said of weights outside of the model.
        """
        if left_over and steps and self._speaks:
            warn(left_over)
        best, measured = self.best, self.measured
        if best is not None and best not in measured and steps and (measured or 1 in steps) and not self._is_best_told:
            given, hint = ", ".join(sorted(measured)), nearest(best, measured)
            if not measured:  # perhaps in a loop over epochs around this one, after the step has been saved
                given = "nothing in the loop's body"
                hint = " Hint: evaluate there: if batch.step % len(loader) == 0: run.evaluate(...)."
            warn(f"CheckpointPolicy(best={best!r}) kept no best checkpoint: run.record() was given {given}.{hint}")


def are_bytes(inputs: Any) -> bool:
    """Whether inputs are images with the values of bytes as floating-point numbers; looked at on the CPU alone."""
    if not isinstance(inputs, Tensor) or inputs.device.type != "cpu" or not inputs.is_floating_point():
        return False
    if inputs.ndim < 3 or not inputs.numel() or inputs.min() < 0 or not 128 <= inputs.max() <= 255:
        return False
    return bool((inputs == inputs.round()).all())


def unsaved_attributes(optimizer: Optimizer) -> dict[str, Any]:
    """Return numbers and tensors among an optimizer's attributes, if torch's own `state_dict` tells its state.

    Of a tensor it is which one it is, and how often it was written to. Names that begin with "_" are torch's.
    """
    if type(optimizer).state_dict is not Optimizer.state_dict:
        return {}
    return {
        name: (id(value), value._version) if isinstance(value, Tensor) else value
        for name, value in vars(optimizer).items()
        if not name.startswith("_") and isinstance(value, int | float | Tensor)
    }


@final
class Unseeded:
    """The parameters that were made before a process's generator was seeded for the first time.

    To be made just before a run seeds the generator; where that has been seeded, or nothing was drawn from it, there
    are none, and nothing is searched.
    """

    _has_looked = False

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        if not Unseeded._has_looked and _was_drawn_from():
            found = [each for each in gc.get_referrers(nn.Parameter) if type(each) is nn.Parameter]
            self._known = {id(each): (weakref.ref(each), each._version) for each in found if not each.is_inference()}
        Unseeded._has_looked = True

    def initial(self, model: nn.Module) -> list[str]:
        """Return the names of weights that are still as torch's own layers drew them then.

        A tensor that was written to a second time does not count (that is how weights are loaded), nor one whose
        values its layer's initialisation could not have drawn.
        """
        if not self._known:
            return []
        return [name for name, tensor, bound in _drawn(model) if self._is_as_it_was(tensor) and _fits(tensor, bound)]

    def _is_as_it_was(self, tensor: Tensor) -> bool:
        made, version = self._known.get(id(tensor), (None, 0))
        return made is not None and made() is tensor and tensor._version == version == 1


def _was_drawn_from() -> bool:
    """Whether numbers were drawn from torch's generator, which nobody had seeded."""
    seed = torch.initial_seed()
    fresh = torch.Generator().manual_seed(seed)
    return seed >= _LARGEST_CHOSEN_SEED and not torch.equal(fresh.get_state(), torch.get_rng_state())


def _drawn(model: nn.Module) -> Iterator[tuple[str, Tensor, float]]:
    """Yield weights that torch's layers draw evenly from between minus and plus a bound, with that bound."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            yield f"{name}.weight".lstrip("."), module.weight, 1 / math.sqrt(max(1, module.weight[0].numel()))
        elif isinstance(module, nn.RNNBase):
            for each, tensor in module.named_parameters(recurse=False):
                yield f"{name}.{each}".lstrip("."), tensor, 1 / math.sqrt(max(1, module.hidden_size))


def _fits(tensor: Tensor, bound: float) -> bool:
    if not tensor.requires_grad or not tensor.numel() or not tensor.is_floating_point():
        return False
    largest = tensor.detach().abs().max().item() / bound
    # Even draws come near the bound: the largest of n misses it by more than 12 / n once in e^12 cases.
    return 1 - 12 / tensor.numel() <= largest <= 1.001 and largest > 0


def warn_of_evaluation_mode(model: nn.Module) -> None:
    """Warn of a model that is trained in evaluation mode, where that makes a difference."""
    name = next((name for name, module in model.named_modules() if not module.training and _knows_modes(module)), None)
    if name is None:
        return
    kind = type(model.get_submodule(name)).__name__
    warn(
        f"the model is trained in evaluation mode, as model.eval() leaves it: {name or 'the model'} ({kind}) then "
        "works otherwise. Hint: model.train() before the loop, and after an evaluation of your own; to freeze parts, "
        "eval() of those alone."
    )


def _knows_modes(module: nn.Module) -> bool:
    """Whether a module computes something else in evaluation mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, _NormBase):
        return bool(module.track_running_stats)
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    if type(module).__module__.startswith("torch."):
        return isinstance(module, nn.RReLU)
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names


def lost_schedules(optimizer: Optimizer, known: Mapping[str, Any]) -> list[LRScheduler]:
    """Return torch's schedules of an optimizer that are neither among `known` objects nor held by one of them."""
    held = {id(each) for each in _reachable(list(known.values()))}
    found = [each for each in gc.get_objects() if issubclass(type(each), LRScheduler)]
    return [each for each in found if vars(each).get("optimizer") is optimizer and id(each) not in held]


def lost_averages(known: Mapping[str, Any]) -> list[AveragedModel]:
    """Return torch's averages that have begun and are neither among `known` objects nor held by one of them."""
    found = [each for each in gc.get_referrers(AveragedModel) if type(each) is AveragedModel]
    held = {id(each) for each in _reachable([*known.values(), *_averages])} if found else set()
    return [each for each in found if int(each.n_averaged) > 0 and id(each) not in held]


def _reachable(roots: list[Any]) -> Iterator[Any]:
    """Yield objects and what they hold in attributes, lists, tuples and dictionaries, a few levels deep."""
    level, seen = roots, set[int]()
    for _ in range(_DEPTH):
        below: list[Any] = []
        for each in level:
            if id(each) in seen:
                continue
            seen.add(id(each))
            yield each
            if isinstance(each, list | tuple | set):
                below.extend(each)
            elif isinstance(each, dict):
                below.extend(each.values())
            elif hasattr(each, "__dict__") and not isinstance(each, type | nn.Module | Tensor):
                below.extend(vars(each).values())
        level = below
