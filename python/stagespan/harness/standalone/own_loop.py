"""Runs one step of a stage's own loop.

The stage itself is called, and an exception ends the call after the chosen step. A step is the time
between two returns of the scheduler's ``step``, or between two returns of the ``forward`` of the
model that ``generate`` calls for every token.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import statistics
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from stagespan.harness.standalone.figures import Run
from stagespan.harness.standalone.fit import LoopError, ReplayError, fit
from stagespan.harness.standalone.loop_state import LoopState
from stagespan.harness.standalone.steps import drain, function_of

STEP_COUNTS = (
    *("num_inference_steps", "num_sampling_steps", "sampling_steps", "sample_steps"),
    *("inference_steps", "num_steps", "steps"),
)
FEW_STEPS = 5
"""The most steps that a loop is run with to reach its middle or last step."""
DEPTH, MOST_OBJECTS, MOST_ITEMS = 5, 4000, 64
ENOUGH_CALLS = 8
"""The number of calls of a model after which it counts as the one that the loop calls."""
LEAVES = (str, bytes, bool, int, float, complex, type(None), torch.Tensor, types.ModuleType)


class NoLoopError(LoopError):
    """The stage has no loop, so it has no steps."""


class StepDone(BaseException):
    """Ends a stage after the chosen step. Not an Exception, because stages may catch those."""


class OwnerFound(BaseException):
    """Ends a stage as soon as it is known which of its models the loop calls."""


class LoopStep:
    """Runs a stage up to the end of one step of its own loop.

    ``returns`` watches the calls whose returns end a step. ``step`` is the step's number from 1, or
    ``first``, ``second``, ``middle`` or ``last``. None is the second step, or the first if the loop
    has only one.
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
        named = {"first": 1, "second": 2}
        self.number = step if isinstance(step, int) else named.get(str(step))
        self.total: int | None = None
        tokens = inputs.get("max_new_tokens")  # that `generate` was asked for
        self.expected = tokens if type(tokens) is int and tokens > 0 else None
        self.starts: int | None = None
        self.state: LoopState | None = None

    def learn_from(self, other: Any) -> None:
        """Copy what another step of the same loop has found out."""
        for name in ("number", "total", "starts", "returns", "state"):
            setattr(self, name, getattr(other, name))

    def __call__(self) -> None:
        """Run the stage up to the end of the chosen step."""
        self.run_between(lambda: None, lambda: None)

    def run_between(
        self, begin: Callable[[], None], end: Callable[[], None], count: int = 1
    ) -> int:
        """Run the stage, and call ``begin`` before the chosen step and ``end`` after it.

        With ``count``, up to ``count`` steps run between the two calls. Returns the number of these
        steps. If no step of this loop has run before, ``begin`` may be called more than once, and
        the last call counts. Raises NoLoopError if the stage has no loop, and ReplayError if the
        loop ends before the chosen step.
        """
        if self.state is None:
            self.state = LoopState(self.returns.roots)
        for _ in range(5):
            try:
                ran = self._run(begin, end, count)
            except OwnerFound:
                continue
            finally:
                self.state.run_ended()
            if ran:
                return ran
        raise ReplayError(
            f"the loop of {title_of(self.function)} has a different number of steps each time"
        )

    def _run(self, begin: Callable[[], None], end: Callable[[], None], count: int) -> int:
        seen = starts = 0
        begun = done = elsewhere = False
        first = self._first_of(count)
        thread = threading.get_ident()

        def on_start() -> None:
            nonlocal starts, begun
            if threading.get_ident() != thread:
                return
            if seen == 0 and first in (None, 1) and self.starts in (None, starts):
                begin()
                begun = True
            starts += 1

        def on_return(count_steps: Callable[[], int | None]) -> None:
            nonlocal seen, first, begun, done, elsewhere
            if threading.get_ident() != thread:  # an exception would end only that thread
                elsewhere = True
                return
            if done:  # the stage caught StepDone
                raise StepDone
            seen += 1
            if seen == 1:
                self.starts = starts - 1
                # Only once, because it takes time that belongs to a measured first step.
                self._learn(count_steps() if self.total is None else None)
                first = self._first_of(count)
            if first is None:
                return
            if seen == first + count - 1:
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
        if done:
            if self.total is not None and seen > self.total:  # the stage runs its loop again
                self.total = None
            return count
        if begun and first is not None and seen >= first:  # the loop had fewer steps than requested
            end()
            return seen - first + 1
        return self._ended(seen, first, elsewhere)

    def _ended(self, seen: int, first: int | None, elsewhere: bool) -> int:
        """Return 0 if the stage must run again; else raise LoopError: it had no such step."""
        if seen == 0:
            if not elsewhere and self.returns.guessed_wrong():
                return 0
            calls = f"{title_of(self.function)} calls {self.returns.title}"
            where = "in another thread" if elsewhere else "nowhere"
            raise NoLoopError(
                f"{calls} {where}, so no step runs alone: replay the whole call with step 'whole'"
            )
        was, self.total = self.total, seen
        if (self.asked in ("middle", "last") and was != seen) or (self.asked is None and seen == 1):
            self.number = None
            self._learn(seen)
            return 0
        raise LoopError(
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

    def _first_of(self, count: int) -> int | None:
        """Return the first step between `begin` and `end`; None if not known yet."""
        if self.number is None or self.total is None or self.number > self.total:
            return self.number
        return max(1, min(self.number, self.total - count + 1))

    def _with_few_steps(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs, with a smaller number of steps if a late step is requested."""
        made = dict(inputs)
        if self.asked not in ("middle", "last"):
            return made
        name = next((name for name in STEP_COUNTS if type(made.get(name)) is int), None)
        if name is not None and made[name] > FEW_STEPS:
            self.shortened = (name, made[name], FEW_STEPS)
            made[name] = FEW_STEPS
        return made

    def place_in_loop(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return which step was run, of how many, and the times of the loop before it."""
        shortened = self.shortened
        return {
            "number": self.number,
            "of": self.total if self.total is not None else self.expected,
            "before_ms": statistics.median(run.before_ms for run in runs) if runs else None,
            "before_cpu_ms": statistics.median(run.before_cpu_ms for run in runs) if runs else None,
            "run_with": {} if shortened is None else {shortened[0]: shortened[2]},
        }

    def says(self) -> str:
        """Describe one iteration: ``step 2 of 40 of Pipeline.__call__'s own loop, ...``"""
        of = "" if self.total is None else f" of {self.total}"
        text = (
            f"step {self.number}{of} of {title_of(self.function)}'s own loop, "
            f"{self.returns.interval(self.number or 0)}"
        )
        if self.shortened is not None:
            name, was, now = self.shortened
            text += f" (run with {name}={now} instead of {was})"
        return text


class SchedulerReturns:
    """Watches the schedulers that a stage refers to, and the classes that its function uses."""

    kind = "loop"

    def __init__(self, stage: Any, function: Any) -> None:
        self.holder = getattr(function, "__self__", stage)
        self.roots = reachable(stage, function)
        found = [value for value in self.roots if is_scheduler(value)]
        self.instances = [value for value in found if not isinstance(value, type)]
        self.classes = list(dict.fromkeys(v if isinstance(v, type) else type(v) for v in found))
        self.called: type | None = None
        """The class of the scheduler that ended the steps of the last run."""

    def __bool__(self) -> bool:
        return bool(self.classes)

    @property
    def title(self) -> str:
        """The methods that end a step, such as ``FlowMatchEulerDiscreteScheduler.step``."""
        found = self.classes[:4] if self.called is None else [self.called]
        return " or ".join(f"{each.__name__}.step" for each in found)

    def guessed_wrong(self) -> bool:
        """Return False: all schedulers are watched."""
        return False

    def interval(self, number: int) -> str:
        """From when to when a step lasts."""
        if number == 1:
            return f"from setting its timesteps to the return of {self.title}"
        return f"between two returns of {self.title}"

    @contextlib.contextmanager
    def watch(
        self, on_start: Callable[[], None], on_return: Callable[[Callable[[], int | None]], None]
    ) -> Iterator[None]:
        """Call ``on_start`` when timesteps have been set, ``on_return`` after each step.

        Restores the schedulers afterwards. If there are several, only the one whose step returns
        first counts.
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
                if depth:  # another scheduler made this call
                    return result
                if not is_step:
                    on_start()
                    return result
                if owner is None:
                    owner, self.called = scheduler, type(scheduler)
                if scheduler is owner:
                    on_return(functools.partial(_steps_of, scheduler, self.holder))
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
    """Watches ``forward`` of the model that a loop calls, such as ``generate`` for every token.

    A model that has a ``generate`` of transformers is assumed to call itself. Otherwise, or if it
    does not, the stage runs once to count the calls of its models: an encoder can run several times
    before the loop.
    """

    kind = "generate"

    def __init__(self, stage: Any, function: Any) -> None:
        self.roots = reachable(stage, function)
        modules = (value for value in self.roots if isinstance(value, torch.nn.Module))
        # Scripted and traced modules take no hooks.
        self.modules = [each for each in modules if not isinstance(each, torch.jit.ScriptModule)]
        holder = getattr(function, "__self__", None)
        self.owner: Any = holder if _calls_itself(holder) else None
        self.is_guess = self.owner is not None

    def __bool__(self) -> bool:
        return bool(self.modules)

    @property
    def title(self) -> str:
        """The methods that end a step, such as ``LlamaForCausalLM.forward``."""
        found = [self.owner] if self.owner is not None else self.modules[:4]
        return " or ".join(f"{type(module).__name__}.forward" for module in found)

    def interval(self, number: int) -> str:
        """From when to when a step lasts."""
        makes_text = callable(_static(self.owner, "generate")) or _calls_itself(self.owner)
        if number == 1:
            prefix = "the prefill: " if makes_text else ""
            return f"{prefix}from the call to the first return of {self.title}"
        prefix = "one decode step: " if makes_text else ""
        return f"{prefix}between two returns of {self.title}"

    def guessed_wrong(self) -> bool:
        """Whether the assumed model was not called, so that the stage must run again to find it."""
        if not self.is_guess:
            return False
        self.owner, self.is_guess = None, False
        return True

    @contextlib.contextmanager
    def watch(
        self, on_start: Callable[[], None], on_return: Callable[[Callable[[], int | None]], None]
    ) -> Iterator[None]:
        """Call ``on_return`` after each forward of the model; raise OwnerFound once it is found."""
        counts: dict[int, int] = {}
        depth = 0
        thread = threading.get_ident()

        def entered(module: Any, args: Any) -> None:
            nonlocal depth
            if threading.get_ident() == thread:
                depth += 1

        def left(module: Any, args: Any, result: Any) -> None:
            nonlocal depth
            if threading.get_ident() == thread:
                depth -= 1

        def returned(module: Any, args: Any, result: Any) -> None:
            if threading.get_ident() != thread:
                on_return(_unknown)
            elif self.owner is not None:
                self.is_guess = False
                on_return(_unknown)
            elif depth == 0:
                count = counts.pop(id(module), 0) + 1
                counts[id(module)] = count  # the last in the dictionary is the last that returned
                if count == ENOUGH_CALLS:
                    self.owner = module
                    raise OwnerFound

        with contextlib.ExitStack() as stack:
            for module in self.modules if self.owner is None else []:
                stack.callback(module.register_forward_pre_hook(entered).remove)
                # A stage can catch an exception of a model, and call another one instead.
                stack.callback(module.register_forward_hook(left, always_call=True).remove)
            for module in self.modules if self.owner is None else [self.owner]:
                stack.callback(module.register_forward_hook(returned).remove)
            yield
        most = max(counts.values(), default=0)
        if self.owner is None and most > 1:
            last = next(which for which in reversed(counts) if counts[which] == most)
            self.owner = next(module for module in self.modules if id(module) == last)
            raise OwnerFound


def is_scheduler(value: Any) -> bool:
    """Whether an object, or a class, has a scheduler's ``step`` and its timesteps."""
    if not callable(_static(value, "step")):
        return False
    if issubclass(value if isinstance(value, type) else type(value), torch.nn.Module):
        return callable(_static(value, "set_timesteps"))
    return any(_static(value, name) is not None for name in ("set_timesteps", "timesteps"))


def reachable(stage: Any, function: Any) -> list[Any]:
    """Return the objects that a stage and its function refer to, the nearest first.

    Runs no code of the stage, such as that of properties. Follows only the plain attributes of a
    torch module. Leaves out objects that cannot be examined, such as proxies without an object.
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
    items: list[Any] = []
    seen: set[int] = set()
    queue = collections.deque((root, 0) for root in roots)
    while queue and len(items) < MOST_OBJECTS:
        value, depth = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        try:
            if isinstance(value, LEAVES):
                continue
            held = _held(value) if depth < DEPTH and not isinstance(value, type) else []
        except Exception:  # isinstance() asks a proxy, such as that of a web request, for its class
            continue
        items.append(value)
        queue.extend((item, depth + 1) for item in held)
    return items


def _held(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())[:MOST_ITEMS]
    if isinstance(value, (list, tuple, set)):
        return list(value)[:MOST_ITEMS]
    attributes = getattr(value, "__dict__", None)
    in_slots = _in_slots(value)
    if not isinstance(attributes, dict) or inspect.isroutine(value):
        return in_slots
    if isinstance(value, torch.nn.Module):
        children = list(attributes.get("_modules", {}).values())[:MOST_ITEMS]
        plain = [v for name, v in attributes.items() if not name.startswith("_")]
        return plain + (children if holds_the_loop(value) else [])
    of_class = [item for item in _of_classes(value) if not _is_code(item)]
    return list(attributes.values()) + in_slots + of_class[:MOST_ITEMS]


def _in_slots(value: Any) -> list[Any]:
    """Return the attributes of an object whose class has ``__slots__``."""
    values = []
    for slot in _of_classes(value):
        if isinstance(slot, types.MemberDescriptorType):
            with contextlib.suppress(AttributeError):  # not set
                values.append(slot.__get__(value))
    return values


def _of_classes(value: Any) -> list[Any]:
    """Return the attributes of an object's classes, without those of Python."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__ != "builtins"]
    return [item for kind in kinds for item in vars(kind).values()]


def _is_code(value: Any) -> bool:
    return isinstance(value, LEAVES) or inspect.isroutine(value) or hasattr(type(value), "__get__")


def holds_the_loop(module: Any) -> bool:
    """Whether a module can loop over its submodules: it has no ``forward``, or has ``generate``."""
    forward = _static(type(module), "forward")  # that of a scripted module cannot be read
    return forward is torch.nn.Module.forward or callable(_static(module, "generate"))


def _calls_itself(holder: Any) -> bool:
    """Whether a model's ``generate`` calls the model itself, as in transformers."""
    return isinstance(holder, torch.nn.Module) and callable(
        _static(holder, "prepare_inputs_for_generation")
    )


def _static(value: Any, name: str) -> Any:
    """Return an attribute without running code; None if the object does not have it."""
    return inspect.getattr_static(value, name, None)


def _unknown() -> None:
    """Return that the number of steps is not known."""


def _steps_of(scheduler: Any, holder: Any) -> int | None:
    """Return the number of steps of a loop.

    Pipelines of diffusers store it in ``_num_timesteps``, because they can skip the first
    timesteps.
    """
    noted = _static(holder, "_num_timesteps")
    if type(noted) is int and noted > 0:
        return noted
    try:
        timesteps = scheduler.timesteps
        return len(timesteps) if timesteps is not None else None
    except Exception:  # it has none, a single number, or a property that fails
        return None


@contextlib.contextmanager
def _replaced(target: Any, name: str, watched: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of a class, or an attribute of an instance, by a watched one."""
    # Objects with __slots__ have none.
    method = getattr(target, "__dict__", {}).get(name)
    is_class = isinstance(target, type)
    original = _static(target, name) if is_class and method is None else method
    if not callable(original) or isinstance(original, (staticmethod, classmethod)):
        yield
        return
    try:
        setattr(target, name, watched(original, None if is_class else target, name == "step"))
    except (AttributeError, TypeError):  # classes of C extensions cannot be changed
        yield
        return
    try:
        yield
    finally:
        if method is None:
            delattr(target, name)
        else:
            setattr(target, name, method)


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
    except Exception:  # some attribute cannot be copied: work on the originals
        attributes.update(kept)
    try:
        yield
    finally:
        attributes.clear()
        attributes.update(kept)


def _plain(function: Any) -> Any:
    """Return the ``__call__`` of an object; functions, classes and modules stay as they are."""
    if inspect.isroutine(function) or isinstance(function, (type, torch.nn.Module)):
        return function
    call = _static(type(function), "__call__")
    return types.MethodType(call, function) if inspect.isfunction(call) else function


def title_of(function: Any) -> str:
    """Return the name of a function, a method or a callable object: ``Pipeline.__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    function = _plain(function)
    if isinstance(function, torch.nn.Module):
        return f"{type(function).__qualname__}.forward"
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def loop_step(
    stage: Any,
    inputs: Mapping[str, Any],
    step: int | str | None = None,
    optional: Collection[str] = (),
) -> LoopStep:
    """Return a step of the stage's own loop, which a scheduler's ``step`` ends."""
    function = function_of(stage)
    returns = SchedulerReturns(stage, function)
    return LoopStep(function, inputs, returns, step=step, optional=optional)


def generate_step(
    stage: Any,
    inputs: Mapping[str, Any],
    step: int | str | None = None,
    optional: Collection[str] = (),
) -> LoopStep:
    """Return a step of the stage's own loop, which a model's ``forward`` ends."""
    function = function_of(stage)
    returns = ForwardReturns(stage, function)
    return LoopStep(function, inputs, returns, step=step, optional=optional)
