"""One step of a stage's own loop. Needs torch alone: the harness's scripts hold this text.

The stage itself is called, and left once the wanted step has been run. What a step is can be seen
from outside: the time between two returns of the scheduler's ``step``, or between two returns of
the ``forward`` of the model that ``generate`` calls for every token.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from stagespan.harness.steps import drain, function_of
from stagespan.signature.fit import ReplayError, fit

STEP_NAMES = ("first", "second", "middle", "last")
STEP_COUNTS = (
    "num_inference_steps",
    "num_sampling_steps",
    "sampling_steps",
    "sample_steps",
    "inference_steps",
    "num_steps",
    "steps",
)
FEW_STEPS = 5
"""To reach a middle or last step, a loop is run with this many steps at most."""
DEPTH, MOST_OBJECTS, MOST_ITEMS = 3, 4000, 64
LEAVES = (str, bytes, bool, int, float, complex, type(None), torch.Tensor, types.ModuleType)


class NoLoopError(ReplayError):
    """The stage has no loop to take a step of."""


class StepDone(BaseException):
    """Leaves a stage whose wanted step has been run. Not an Exception: stages may catch those."""


class OwnerFound(BaseException):
    """Leaves a stage as soon as it is known which of its models the loop calls."""


class LoopStep:
    """Runs a stage until the wanted step of its own loop has been run, then leaves it.

    ``returns`` watches what ends a step. ``step`` is the step's number from 1, or ``first``,
    ``second``, ``middle``, ``last``; None is the second, or the first of a loop of one.
    """

    def __init__(
        self,
        function: Any,
        inputs: Mapping[str, Any],
        returns: Any,
        *,
        step: int | str | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self.function = function
        self.returns = returns
        self.asked = step
        self.shortened: tuple[str, int, int] | None = None
        self.args, self.kwargs = fit(function, self._with_few_steps(inputs), optional)
        self.number: int | None = {"first": 1, "second": 2}.get(str(step))
        if isinstance(step, int):
            self.number = step
        self.total: int | None = None
        self.expected = _count_of(inputs)
        self.starts: int | None = None

    def reset(self) -> None:
        """Nothing to put back: a run leaves the scheduler as it was."""

    def learn_from(self, other: Any) -> None:
        """Take over what another step of the same loop has found out."""
        self.number, self.total, self.starts = other.number, other.total, other.starts
        self.returns = other.returns

    def __call__(self) -> None:
        """Run the stage up to the end of the wanted step."""
        self.run_between(lambda: None, lambda: None)

    def run_between(
        self, begin: Callable[[], None], end: Callable[[], None], count: int = 1
    ) -> int:
        """The same, with ``begin`` called before the wanted step and ``end`` after it.

        With a ``count`` the following steps are between the two as well, as far as there are any;
        returns how many. ``begin`` may be called again for a later beginning, but only if no step
        of this loop has been run before. Raises NoLoopError for a stage that does not loop, and
        ReplayError for a loop that ends before the wanted step.
        """
        for _ in range(3):
            try:
                ran = self._run(begin, end, count)
            except OwnerFound:
                continue
            if ran:
                return ran
        raise ReplayError(f"the loop of {title_of(self.function)} ends at another step each time")

    def _run(self, begin: Callable[[], None], end: Callable[[], None], count: int) -> int:
        seen = starts = 0
        begun = done = False
        first, last = self._bounds(count)

        def on_start() -> None:
            nonlocal starts, begun
            if seen == 0 and first in (None, 1) and self.starts in (None, starts):
                begin()
                begun = True
            starts += 1

        def on_return(total: int | None) -> None:
            nonlocal seen, first, last, begun, done
            if done:  # the stage caught StepDone
                raise StepDone
            seen += 1
            if seen == 1:
                self.starts = starts - 1
                self._learn(total)
                first, last = self._bounds(count)
            if first is None or last is None:
                return
            if seen == last:
                end()
                done = True
                raise StepDone
            if seen == first - 1:
                begin()
                begun = True

        on_start()
        try:
            with self.returns.watch(on_start, on_return):
                drain(self.function(*self.args, **self.kwargs))
        except BaseException as error:
            if not done or isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
        return self._ended(seen, done, begun, first, last, end)

    def _ended(
        self,
        seen: int,
        done: bool,
        begun: bool,
        first: int | None,
        last: int | None,
        end: Callable[[], None],
    ) -> int:
        """How many steps were between `begin` and `end`; 0 to run once more."""
        if first is not None and last is not None:
            if done:
                return last - first + 1
            if begun and seen >= first:  # fewer steps than were to be profiled
                end()
                return seen - first + 1
        if seen == 0:
            raise NoLoopError(
                f"{title_of(self.function)} never called {self.returns.title}, so it has no step "
                f"that could be run alone"
            )
        was, self.total = self.total, seen
        if (self.asked in ("middle", "last") and was != seen) or (self.asked is None and seen == 1):
            self.number = None
            self._learn(seen)
            return 0
        raise ReplayError(
            f"the loop of {title_of(self.function)} ended after {seen} step(s) of "
            f"{self.returns.title}, before step {first}: choose a step from 1 to {seen}"
        )

    def _learn(self, total: int | None) -> None:
        self.total = total if self.total is None else self.total
        if self.number is not None:
            return
        if self.asked is None:
            self.number = 1 if self.total == 1 else 2
        elif self.total is not None:
            self.number = self.total if self.asked == "last" else (self.total + 1) // 2

    def _bounds(self, count: int) -> tuple[int | None, int | None]:
        """The first and the last step to be run between `begin` and `end`, as far as known."""
        first = self.number
        if first is None:
            return None, None
        if count > 1 and self.total is not None and first <= self.total:
            first = max(1, min(first, self.total - count + 1))
        return first, first + count - 1

    def _with_few_steps(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs, with fewer steps if a late step is requested."""
        made = dict(inputs)
        if self.asked not in ("middle", "last"):
            return made
        name = next((name for name in STEP_COUNTS if type(made.get(name)) is int), None)
        if name is not None and made[name] > FEW_STEPS:
            self.shortened = (name, made[name], FEW_STEPS)
            made[name] = FEW_STEPS
        return made

    def says(self) -> str:
        """What one iteration is, for the page: ``step 2 of 40 of Pipeline.__call__'s loop, ...``"""
        of = "" if self.total is None else f" of {self.total}"
        said = (
            f"step {self.number}{of} of {title_of(self.function)}'s own loop, "
            f"{self.returns.interval(self.number or 0)}"
        )
        if self.shortened is not None:
            name, was, now = self.shortened
            said += f" (run with {name}={now} instead of {was})"
        return said


class SchedulerReturns:
    """Watches the schedulers of a stage: those it holds, and classes that its function names."""

    kind = "loop"

    def __init__(self, stage: Any, function: Any) -> None:
        self.holder = getattr(function, "__self__", stage)
        found = [value for value in reachable(stage, function) if is_scheduler(value)]
        self.instances = [value for value in found if not isinstance(value, type)]
        self.classes = list(dict.fromkeys(v if isinstance(v, type) else type(v) for v in found))

    def __bool__(self) -> bool:
        return bool(self.classes)

    @property
    def title(self) -> str:
        """``FlowMatchEulerDiscreteScheduler.step``, or several of them."""
        return " or ".join(f"{found.__name__}.step" for found in self.classes[:4])

    def interval(self, number: int) -> str:
        """From when to when a step lasts."""
        if number == 1:
            return f"from setting its timesteps to the return of {self.title}"
        return f"between two returns of {self.title}"

    @contextlib.contextmanager
    def watch(
        self, on_start: Callable[[], None], on_return: Callable[[int | None], None]
    ) -> Iterator[None]:
        """Call ``on_start`` when timesteps have been set, ``on_return`` after each step.

        Schedulers are as they were afterwards. Of several schedulers the first that returns counts.
        """
        depth = 0
        owner: Any = None

        def watched(original: Any, bound_to: Any, is_step: bool) -> Any:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal depth, owner
                depth += 1
                try:
                    result = original(*args, **kwargs)
                finally:
                    depth -= 1
                scheduler = bound_to if bound_to is not None else args[0]
                if depth:  # a scheduler within another
                    return result
                if not is_step:
                    on_start()
                    return result
                if owner is None:
                    owner = scheduler
                if scheduler is owner:
                    on_return(_steps_of(scheduler, self.holder))
                return result

            return call

        with contextlib.ExitStack() as stack:
            for instance in self.instances:
                stack.enter_context(state_kept(instance))
            for target in (*self.instances, *self.classes):
                for name in ("step", "set_timesteps"):
                    stack.enter_context(_replaced(target, name, watched))
            yield


class ForwardReturns:
    """Watches ``forward`` of the model that ``generate`` calls for every token."""

    kind = "generate"

    def __init__(self, stage: Any, function: Any) -> None:
        self.modules = [
            value for value in reachable(stage, function) if isinstance(value, torch.nn.Module)
        ]
        holder = getattr(function, "__self__", None)
        self.owner: Any = holder if _calls_itself(holder) else None

    def __bool__(self) -> bool:
        return bool(self.modules)

    @property
    def title(self) -> str:
        """``LlamaForCausalLM.forward``."""
        found = [self.owner] if self.owner is not None else self.modules[:4]
        return " or ".join(f"{type(module).__name__}.forward" for module in found)

    def interval(self, number: int) -> str:
        """From when to when a step lasts."""
        if number == 1:
            return f"the prefill: from the call to the first return of {self.title}"
        return f"one decode step: between two returns of {self.title}"

    @contextlib.contextmanager
    def watch(
        self, on_start: Callable[[], None], on_return: Callable[[int | None], None]
    ) -> Iterator[None]:
        """Call ``on_return`` after each forward of the model; raise OwnerFound once it is known."""
        counts: collections.Counter[int] = collections.Counter()
        depth = 0

        def before(module: Any, args: Any) -> None:
            nonlocal depth
            depth += 1

        def after(module: Any, args: Any, result: Any) -> None:
            nonlocal depth
            depth -= 1
            if self.owner is not None:
                on_return(None)
            elif depth == 0:
                counts[id(module)] += 1
                if counts[id(module)] == 2:
                    self.owner = module
                    raise OwnerFound

        with contextlib.ExitStack() as stack:
            for module in [self.owner] if self.owner is not None else self.modules:
                for handle in (
                    module.register_forward_pre_hook(before),
                    module.register_forward_hook(after),
                ):
                    stack.callback(handle.remove)
            yield


def is_scheduler(value: Any) -> bool:
    """Whether an object, or a class, has a scheduler's ``step`` and its timesteps."""
    if isinstance(value, torch.nn.Module) or not callable(_static(value, "step")):
        return False
    return any(_static(value, name) is not None for name in ("set_timesteps", "timesteps"))


def reachable(stage: Any, function: Any) -> list[Any]:
    """What a stage and its function hold, the nearest first; no attribute's code is run.

    Modules are listed, and of what is in them only plain attributes.
    """
    plain = inspect.unwrap(_plain(function)) if callable(function) else function
    roots = [stage]
    for value in (stage, function, plain):
        roots += [value, getattr(value, "__self__", None), getattr(value, "func", None)]
        code = getattr(value, "__code__", None)
        if isinstance(code, types.CodeType):
            named = getattr(value, "__globals__", {})
            roots += [named[name] for name in code.co_names if name in named]
            for cell in getattr(value, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    roots.append(cell.cell_contents)
    found: list[Any] = []
    seen: set[int] = set()
    queue = collections.deque((root, 0) for root in roots)
    while queue and len(found) < MOST_OBJECTS:
        value, depth = queue.popleft()
        if isinstance(value, LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        found.append(value)
        if depth < DEPTH and not isinstance(value, type):
            queue.extend((item, depth + 1) for item in _held(value))
    return found


def _held(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())[:MOST_ITEMS]
    if isinstance(value, (list, tuple, set)):
        return list(value)[:MOST_ITEMS]
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or inspect.isroutine(value):
        return []
    if isinstance(value, torch.nn.Module):
        children = list(attributes.get("_modules", {}).values())[:MOST_ITEMS]
        plain = [v for name, v in attributes.items() if not name.startswith("_")]
        return plain + (children if holds_the_loop(value) else [])
    shared = [vars(kind) for kind in type(value).__mro__ if kind.__module__ != "builtins"]
    of_class = [item for held in shared for item in held.values() if not _is_code(item)]
    return list(attributes.values()) + of_class[:MOST_ITEMS]


def _is_code(value: Any) -> bool:
    return isinstance(value, LEAVES) or inspect.isroutine(value) or hasattr(type(value), "__get__")


def holds_the_loop(module: Any) -> bool:
    """Whether a module has a loop over the modules in it: no ``forward``, or ``generate``."""
    return type(module).forward is torch.nn.Module.forward or callable(_static(module, "generate"))


def _calls_itself(holder: Any) -> bool:
    """Whether a model's ``generate`` is one that calls the model itself, as transformers' does."""
    return isinstance(holder, torch.nn.Module) and callable(
        _static(holder, "prepare_inputs_for_generation")
    )


def _count_of(inputs: Mapping[str, Any]) -> int | None:
    """How many tokens ``generate`` was asked for, if it was."""
    count = inputs.get("max_new_tokens")
    return count if type(count) is int and count > 0 else None


def _static(value: Any, name: str) -> Any:
    """An attribute without running code for it; None if it is not there."""
    return inspect.getattr_static(value, name, None)


def _steps_of(scheduler: Any, holder: Any) -> int | None:
    """How many steps a loop has; pipelines of diffusers note it where they leave the first out."""
    noted = _static(holder, "_num_timesteps")
    if type(noted) is int and noted > 0:
        return noted
    timesteps = getattr(scheduler, "timesteps", None)
    try:
        return len(timesteps) if timesteps is not None else None
    except TypeError:
        return None


@contextlib.contextmanager
def _replaced(target: Any, name: str, watched: Callable[..., Any]) -> Iterator[None]:
    """A method of a class, or an instance's own attribute, replaced by a watched one."""
    own = vars(target).get(name)
    if isinstance(target, type):
        original = own if own is not None else getattr(target, name, None)
        bound_to = None
    else:
        original, bound_to = own, target
    if not callable(original) or isinstance(original, (staticmethod, classmethod)):
        yield
        return
    try:
        setattr(target, name, watched(original, bound_to, name == "step"))
    except (AttributeError, TypeError):  # a class of an extension
        yield
        return
    try:
        yield
    finally:
        if own is None:
            delattr(target, name)
        else:
            setattr(target, name, own)


@contextlib.contextmanager
def state_kept(scheduler: Any) -> Iterator[None]:
    """Let a scheduler work on copies of its attributes, and put the attributes back afterwards."""
    attributes = getattr(scheduler, "__dict__", None)
    if not isinstance(attributes, dict):
        yield
        return
    kept = dict(attributes)
    try:
        attributes.update(copy.deepcopy(kept))
    except Exception:  # it holds what cannot be copied: it works on its own
        attributes.update(kept)
    try:
        yield
    finally:
        attributes.clear()
        attributes.update(kept)


def _plain(function: Any) -> Any:
    """An object's ``__call__``, anything else as it is."""
    if inspect.isroutine(function) or isinstance(function, (type, torch.nn.Module)):
        return function
    call = _static(type(function), "__call__")
    return types.MethodType(call, function) if inspect.isfunction(call) else function


def title_of(function: Any) -> str:
    """``Pipeline.__call__`` of a function, a method, or an object that is called."""
    function = _plain(function)
    if isinstance(function, torch.nn.Module):
        return f"{type(function).__qualname__}.forward"
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def loop_step(
    stage: Any,
    inputs: Mapping[str, Any],
    kind: str,
    step: int | str | None = None,
    optional: Collection[str] = (),
) -> LoopStep:
    """A step of the stage's own loop: ``kind`` is ``loop`` (a scheduler's) or ``generate``."""
    function = function_of(stage)
    watched = SchedulerReturns if kind == "loop" else ForwardReturns
    return LoopStep(function, inputs, watched(stage, function), step=step, optional=optional)
