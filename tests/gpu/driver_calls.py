"""Counts calls of the CUDA driver by all threads of this process, with CUPTI's callback interface.

CUPTI, which every CUDA build of torch brings along, has one subscriber, so this does not work while
torch.profiler records. Source: the headers cupti_callbacks.h and cupti_result.h of CUDA 13.0.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections import Counter

_DRIVER_API = 1  # CUPTI_CB_DOMAIN_DRIVER_API
_ENTER = 0  # CUPTI_API_ENTER, the first field of CUpti_CallbackData
_MOST_FUNCTIONS = 2000
_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int)
)


def _library() -> ctypes.CDLL | None:
    """Return the CUPTI that torch has loaded, or that lies beside torch."""
    import torch

    site = os.path.dirname(os.path.dirname(torch.__file__))
    found = [f"{site}/nvidia/*/lib/libcupti.so*", f"{site}/nvidia/*/*/lib/libcupti.so*"]
    paths = [path for pattern in found for path in sorted(glob.glob(pattern))]
    for path in (*paths, "libcupti.so.13", "libcupti.so.12", "libcupti.so"):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


class DriverCalls:
    """Counts calls of functions whose names contain one of some texts, until `end`."""

    def __init__(self, *parts: str) -> None:
        self.why: str | None = None
        """Why nothing is counted, or None."""
        self._calls: Counter[str] = Counter()
        self._subscriber = ctypes.c_void_p()
        self._cupti = _library()
        if self._cupti is None:
            self.why = "CUPTI was not found beside torch"
            return
        self._callback = _CALLBACK(self._on_call)
        status = self._cupti.cuptiSubscribe(ctypes.byref(self._subscriber), self._callback, None)
        if status != 0:
            self.why = f"CUPTI refused a subscriber (status {status})"
            return
        self._names = self._functions(parts)
        for number in self._names:
            self._cupti.cuptiEnableCallback(1, self._subscriber, _DRIVER_API, number)

    def _functions(self, parts: tuple[str, ...]) -> dict[int, str]:
        names = {}
        for number in range(1, _MOST_FUNCTIONS):
            name = ctypes.c_char_p()
            status = self._cupti.cuptiGetCallbackName(_DRIVER_API, number, ctypes.byref(name))
            text = (name.value or b"").decode() if status == 0 else ""
            if any(part in text for part in parts):
                names[number] = text
        return names

    def _on_call(
        self, _: int, domain: int, number: int, data: ctypes._Pointer[ctypes.c_int]
    ) -> None:
        if domain == _DRIVER_API and data[0] == _ENTER:
            self._calls[self._names.get(number, str(number))] += 1

    def end(self) -> dict[str, int]:
        """Stop counting, and return the number of calls of each function that was called."""
        self._cupti.cuptiUnsubscribe(self._subscriber)
        return dict(self._calls)
