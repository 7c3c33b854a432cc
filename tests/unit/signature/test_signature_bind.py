"""Binding arguments to names, and converting named arguments back to calls."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest

from stagespan.harness.standalone.fit import ReplayError, fit
from stagespan.signature.bind import bind_arguments


class Stage:
    def process(
        self, latents: Any, steps: int = 8, *extra: Any, scale: float = 1.0, **rest: Any
    ) -> Any:
        return latents, steps, extra, scale, rest

    @classmethod
    def build(cls, name: str) -> str:
        return name


def plain(a: Any, b: Any) -> Any:
    return a, b


def only(a: Any, /, b: Any, *, c: Any) -> Any:
    return a, b, c


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1, 2), {}), ((1,), {"b": 2}), ((), {"b": 2, "a": 1})]
)
def test_names_are_the_same_however_arguments_are_passed(args: Any, kwargs: Any) -> None:
    assert bind_arguments(plain, args, kwargs) == {"a": 1, "b": 2}


def test_self_and_cls_are_left_out() -> None:
    # GIVEN a method and a classmethod as their undecorated functions
    assert bind_arguments(Stage.process, (Stage(), 5), {}) == {
        "latents": 5,
        "steps": 8,
        "scale": 1.0,
    }
    assert bind_arguments(Stage.build.__func__, (Stage, "x"), {}) == {"name": "x"}


def test_plain_defaults_count_as_passed_and_others_do_not() -> None:
    def stage(x: Any, steps: int = 8, cache: Any = None, table: Any = ()) -> None: ...

    assert bind_arguments(stage, (1,), {}) == {"x": 1, "steps": 8, "cache": None}
    assert bind_arguments(stage, (1, 2, 3), {}) == {"x": 1, "steps": 2, "cache": 3}


def test_star_arguments_are_kept_in_a_replayable_form() -> None:
    bound = bind_arguments(Stage.process, (Stage(), 1, 2, 3, 4), {"scale": 0.5, "mode": "x"})

    assert bound == {"latents": 1, "steps": 2, "*extra": [3, 4], "scale": 0.5, "mode": "x"}
    args, kwargs = fit(Stage().process, bound)

    assert Stage().process(*args, **kwargs) == (1, 2, (3, 4), 0.5, {"mode": "x"})


def test_calls_that_do_not_fit_are_bound_nevertheless() -> None:
    # GIVEN too many arguments, a built-in without a signature, and an object that is not a function
    assert bind_arguments(plain, (1, 2, 3), {}) == {"a": 1, "b": 2, "*args": [3]}
    assert bind_arguments(min, (1, 2), {}) == {"*args": [1, 2]}
    assert bind_arguments(None, (1,), {"b": 2}) == {"*args": [1], "b": 2}


def test_wrapped_and_partial_functions_have_their_own_names() -> None:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    assert bind_arguments(wrapper, (1, 2), {}) == {"a": 1, "b": 2}
    assert bind_arguments(functools.partial(plain, 1), (2,), {}) == {"b": 2}


def test_a_module_is_bound_by_its_forward() -> None:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc]
        def forward(self, hidden_states: Any, mask: Any = None) -> Any:
            return hidden_states

    assert bind_arguments(Block(), (1, 2), {}) == {"hidden_states": 1, "mask": 2}


def test_binding_keeps_no_function_alive() -> None:
    def make() -> Any:
        big = [0] * 1000

        def inner(x: Any) -> Any:
            return big, x

        return inner

    function = make()
    gone = weakref.ref(function)

    bind_arguments(function, (1,), {})
    del function
    gc.collect()

    assert gone() is None


def test_positional_only_parameters_are_passed_by_position() -> None:
    args, kwargs = fit(only, {"c": 3, "b": 2, "a": 1})

    assert only(*args, **kwargs) == (1, 2, 3)


def test_inputs_that_do_not_fit_are_reported_in_one_sentence() -> None:
    with pytest.raises(ReplayError) as caught:
        fit(plain, {"a": 1, "z": 2})

    assert "it needs 'b'" in str(caught.value)
    assert "no parameter 'z'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_optional_inputs_are_left_out_if_not_accepted() -> None:
    assert fit(plain, {"a": 1, "b": 2, "z": 3}, optional=["z"]) == ([], {"a": 1, "b": 2})
