"""The table of costs: the operations and bytes of an operator from the shapes of its arguments.

Operations are those of the products in matrix products, convolutions and attention: a product and
the sum that it is added to count as two, as in torch's FlopCounterMode. Other operators are limited
by memory, so they have only bytes. Bytes are what an operator must move if each tensor is read and
written once, so a rate in bytes is never too high because of a cache.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stagespan.trace.rates import attention, memory, products, triton
from stagespan.trace.rates.calls import Call, Cost, CostUnknownError

Formula = Callable[[Call], Cost]

_TABLE: dict[str, Formula] = {
    **products.FORMULAS,
    **attention.FORMULAS,
    **memory.FORMULAS,
}
_REGISTERED: dict[str, Formula] = {}


class Unknown(msgspec.Struct, frozen=True):
    """The cost of a call is unknown."""

    reason: str
    """Such as "the lengths of the sequences are not in the trace"."""


def register_cost(operator: str, formula: Formula) -> None:
    """Register the cost of an operator, such as one of your own, for all later analyses.

    `operator` is its name in traces, such as `mylib::fused_mlp`. `formula` gets a `Call` and
    returns a `Cost`. It may raise `CostUnknownError` if the work of this call is unknown. A later
    registration replaces an earlier one, and those of stagespan. Raises TypeError if `formula` is
    not a function.
    """
    if not callable(formula):
        raise TypeError(
            f"The formula of {operator!r} is {formula!r}: pass a function of a Call that returns a"
            " Cost."
        )
    _REGISTERED[operator] = formula


def formula_of(operator: str) -> Formula | None:
    """Return the formula of an operator by its name in traces; None if it has none."""
    return (
        _REGISTERED.get(operator)
        or _TABLE.get(operator)
        or products.formula_of(operator)
        or attention.formula_of(operator)
        or memory.formula_of(operator)
        or triton.formula_of(operator)
    )


def cost_of(call: Call) -> Cost | Unknown | None:
    """Return the cost of a call, or why it is unknown; None if the operator has no formula."""
    formula = formula_of(call.name)
    if formula is None:
        return None
    try:
        return formula(call)
    except CostUnknownError as error:
        return Unknown(str(error))
    except IndexError:
        return Unknown("the arguments have fewer dimensions than the operator's")
