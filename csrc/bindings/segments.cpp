// segments.cpp: ids of requests, and waits inside of this process.
#include "segments.h"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <iterator>

#include "execution_context.h"
#include "object.h"
#include "stage_names.h"
#include "stagespan/process_life.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

// Random bytes of the system, read in blocks. Guarded by the interpreter's lock. Not Python's `random`, which programs
// seed, so that two ranks would make the same ids.
struct {
  std::uint64_t numbers[64];
  std::size_t left = 0;
  std::uint32_t generation = 0;
} g_random;

}  // namespace

std::uint64_t random_number() noexcept {
  const std::uint32_t generation = Recorder::get().generation();
  // A forked child must not use the rest of its parent's numbers.
  if (g_random.left == 0 || g_random.generation != generation) {
    g_random.generation = generation;
    std::size_t done = 0;
    auto* const bytes = reinterpret_cast<std::byte*>(g_random.numbers);
    while (done < sizeof(g_random.numbers)) {
      const ssize_t got = getrandom(bytes + done, sizeof(g_random.numbers) - done, 0);
      if (got > 0)
        done += static_cast<std::size_t>(got);
      else if (got < 0 && errno != EINTR)
        break;
    }
    if (done < sizeof(g_random.numbers)) {
      // Without the system's generator: ids that differ between processes and times.
      std::uint64_t seed = now_ticks() ^ (static_cast<std::uint64_t>(getpid()) << 32);
      for (std::uint64_t& number : g_random.numbers) {
        seed = (seed ^ now_ticks()) * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d;
        number = seed;
      }
    }
    g_random.left = std::size(g_random.numbers);
  }
  const std::uint64_t number = g_random.numbers[--g_random.left];
  return number != 0 ? number : 1;  // ids of zeroes are invalid
}

std::uint64_t clock_identity() noexcept {
  static std::uint64_t identity = 0;
  static std::uint32_t generation = ~std::uint32_t{0};
  // A child may be in another time namespace than its parent.
  if (const std::uint32_t now = Recorder::get().generation(); now != generation) {
    identity = identity_of_this_process().clock;
    generation = now;
  }
  return identity;
}

namespace {

PyObject* innermost_stage(PyObject*, PyObject*) {
  ThreadState& thread = current_thread();
  const std::uint32_t stage = innermost(thread, *thread.scope).stage;
  publish(thread);  // a scope without open spans is removed again
  if (stage >= kMaxStages) Py_RETURN_NONE;
  return stage_name(stage);
}

// segment_now() -> ticks
PyObject* segment_now(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(mode_has(kModeEnabled) ? now_ticks() : 0);
}

// segment_wait(number, queue, begin_ticks): records a wait that ends now.
PyObject* segment_wait(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "segment_wait() takes 3 arguments, not %zd", count);
  const std::uint64_t number = PyLong_AsUnsignedLongLong(args[0]);
  const std::uint64_t begin_ticks = PyLong_AsUnsignedLongLong(args[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const std::uint64_t now = now_ticks();
  if (begin_ticks != 0 && begin_ticks <= now && mode_has(kModeEnabled))
    Recorder::get().record_ticks(stage_of_kind(args[1], kQueue), begin_ticks, now, number);
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef g_segment_functions[] = {
    {"innermost_stage", innermost_stage, METH_NOARGS, nullptr},
    {"segment_now", segment_now, METH_NOARGS, nullptr},
    {"segment_wait", as_method(segment_wait), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
