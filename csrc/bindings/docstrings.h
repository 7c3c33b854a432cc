// docstrings.h: the docstrings of those public names for which help() shows the same text as _core.pyi.
#pragma once

namespace stagespan::python::docs {

inline constexpr const char* kSpan = R"doc(span(name=..., *, compile_safe=False)
--

Time a block or the calls of a function as a stage.

With a name, the result is a context manager for `with` and `async with`, and a decorator for
functions, methods, coroutine functions and generators. Without a name it is a decorator only,
and the stage gets the function's qualified name (`__qualname__`).

Spans are recorded unless `disable` was called. A span measures host time, and device time if an
accelerator is in use. It never waits for a device.

Args:
    name: Name of the stage; or, without parentheses (`@span`), the function to decorate. An
        empty name, or an object that is neither a string nor callable, is counted and replaced
        by "(invalid name)"; the program continues.
    compile_safe: On Python 3.10 and 3.11, keep the decorated function a plain function, so that
        torch.compile with fullgraph=True accepts it. Each call then costs more. It makes no
        difference from Python 3.12 on.

Raises:
    TypeError: If it decorates a class, a property or an object that cannot be called.

Example:
    ```python
    with stagespan.span("decode") as decode:
        decode.add(tokens=230)

    @stagespan.span("tokenize")
    def tokenize(text): ...

    @stagespan.span  # the stage is called "Model.forward"
    def forward(self, x): ...
    ```
)doc";

inline constexpr const char* kProfilingContext =
    R"doc(ProfilingContext(name=..., reset_peak_memory=True, *, capture_memory=False, compile_safe=False)
--

Time a stage as `span` does, and log the time and the peak memory of each run.

The background thread writes the log line `[Profile] NAME cost S seconds`, and a line with the
peak memory. Runs of stages that `enable_profiler_for_names` lists are recorded by
torch.profiler.

Args:
    name: Name of the stage. Without it, a decorated function's qualified name, as in `span`.
    reset_peak_memory: Reset the peak of the accelerator's memory for each run. An outer context
        still reports its own peak.
    capture_memory: Also record the memory before and after each run.
    compile_safe: As in `span`.

Raises:
    TypeError: If it decorates a class, a property or an object that cannot be called.

Example:
    ```python
    @stagespan.ProfilingContext("denoise", reset_peak_memory=False)
    def denoise(latents): ...

    @stagespan.ProfilingContext
    def decode(latents): ...
    ```
)doc";

inline constexpr const char* kProfilingContext4Debug =
    R"doc(ProfilingContext4Debug(name=..., reset_peak_memory=True, *, capture_memory=False)
--

Time a stage as `ProfilingContext` does, in debug mode only.

In debug mode (`set_debug`, or STAGESPAN_DEBUG=true) the device is synchronised before and after
each run, and the signatures of inputs and outputs are captured. Outside debug mode, a decorated
function costs nothing.

Args:
    name: Name of the stage. Without it, a decorated function's qualified name, as in `span`.
    reset_peak_memory: Reset the peak of the accelerator's memory for each run. An outer context
        still reports its own peak.
    capture_memory: Also record the memory before and after each run.

Raises:
    TypeError: If it decorates a class, a property or an object that cannot be called.

Example:
    ```python
    @stagespan.ProfilingContext4Debug("decode")
    def process(latents): ...

    with stagespan.ProfilingContext4Debug("layers") as layers:
        layers.inputs(hidden=hidden)
        hidden = model(hidden)
        layers.output(hidden)
    ```
)doc";

inline constexpr const char* kSpanType = R"doc(A timed context: `with`, `async with`, or a decorator.

`span`, `ProfilingContext` and `ProfilingContext4Debug` return it. You can enter it several
times, recursively, and in several threads and tasks at the same time. `with` returns the span
itself.
)doc";

inline constexpr const char* kSpanAdd = R"doc(add($self, /, **work)
--

Add to the stage's work counters.

`stats` and reports show the sums, and the rates over the stage's time.

Args:
    **work: Amounts by the counter's name. The unit is yours.

Raises:
    TypeError: If an amount is not a number.

Example:
    ```python
    with stagespan.span("decode") as decode:
        decode.add(tokens=230)
    ```
)doc";

inline constexpr const char* kSpanInputs = R"doc(inputs($self, /, **arguments)
--

Record the inputs of a `with` block in the stage's signature.

Does nothing outside debug mode. A decorated function does not need it: its arguments are
known.

Args:
    **arguments: The inputs by name.
)doc";

inline constexpr const char* kSpanOutput = R"doc(output($self, value, /)
--

Record the output of a `with` block in the stage's signature.

Does nothing outside debug mode. A decorated function does not need it: its result is known.

Args:
    value: The output, of any type.
)doc";

inline constexpr const char* kUnnamedSpan =
    R"doc(A decorator, which `span()` and its siblings return if you pass no name.)doc";

inline constexpr const char* kToken = R"doc(An open span that `begin` returned. `end` closes it, in any scope or thread.

If a token is freed before `end`, no span is recorded, and it is counted as lost ("abandoned").
)doc";

inline constexpr const char* kBegin = R"doc(begin(name, /)
--

Open a span that `end` closes, in any scope or thread.

The parent is the innermost span that is open when you call `begin`. The new span does not
become the parent of other spans.

Args:
    name: Name of the stage.

Returns:
    The token to pass to `end`.

Example:
    ```python
    token = stagespan.begin("transfer")
    queue.put((data, token))  # another thread calls stagespan.end(token)
    ```
)doc";

inline constexpr const char* kEnd = R"doc(end(token, *, error=False)
--

Close a span that `begin` opened.

A second `end` of the same token does nothing and is counted as lost ("unmatched").

Args:
    token: The result of `begin`.
    error: Whether the span failed. It then counts in the stage's `errors`.

Raises:
    TypeError: If `token` is not a token.
)doc";

inline constexpr const char* kRecord = R"doc(record(name, begin_ns, end_ns, *, error=False)
--

Record a span that you have timed yourself.

Args:
    name: Name of the stage.
    begin_ns: Begin, in Unix nanoseconds, as `time.time_ns()` gives it.
    end_ns: End, in Unix nanoseconds.
    error: Whether the span failed. It then counts in the stage's `errors`.

Raises:
    ValueError: If the span ends before it begins.

Example:
    ```python
    begin_ns = time.time_ns()
    wait_for_reply()
    stagespan.record("reply", begin_ns, time.time_ns())
    ```
)doc";

inline constexpr const char* kIsEnabled =
    R"doc(Return whether spans are recorded: True unless `disable` or STAGESPAN_ENABLED=false.)doc";

inline constexpr const char* kIsDebug =
    R"doc(Return whether debug mode is on, by `set_debug` or STAGESPAN_DEBUG=true.)doc";

inline constexpr const char* kStageNames =
    R"doc(Return the names of all stages; the `stage` column of `spans` is an index into this list.

A stage keeps its index while the process lives. The first names are those of spans without a
valid name, and of spans beyond the largest number of stages.
)doc";

inline constexpr const char* kLost = R"doc(Return how much the recorder has lost since the process began, by cause.

The result contains all causes, including those with 0. The page "Run it in production" of the
documentation describes them.
)doc";

}  // namespace stagespan::python::docs
