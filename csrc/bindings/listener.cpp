// listener.cpp: a thread that waits for what other programs ask of this process.
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string_view>

#include "after_fork.h"
#include "module.h"
#include "object.h"
#include "stagespan/clock.h"
#include "stagespan/commands.h"
#include "stagespan/recorder.h"
#include "stagespan/without_signals.h"

namespace stagespan::python {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLingerNs = 60'000'000'000;      // after the last command
constexpr std::int64_t kLongestStopNs = 1'000'000'000;  // how long a fork or an exit waits for the thread

// Commands are handled in turns, by `turn()` in process/commands.py, which returns when it wants to be called again. So
// the thread has no state between turns, and can end before a fork and start again in both processes.
struct Listener {
  // The process in which the thread runs, its negative while the thread is being ended, or another number if there is
  // no thread.
  std::atomic<pid_t> owner{0};
  std::atomic<bool> is_stopping{false};
  std::atomic<bool> is_over{false};  // the process is about to end
  std::atomic<int> forks{0};
  std::atomic<std::uint32_t> has_ended{0};  // a futex
  std::atomic<pid_t> native_id{0};
  pthread_t thread{};
  bool is_kept = false;      // as long as the process runs; guarded by the interpreter's lock until the thread starts
  bool was_running = false;  // before a fork; guarded by the interpreter's lock
  // Of the thread alone.
  std::uint32_t seen_number = 0, seen_bell = 0;
  std::int64_t due_ns = kNever;
};

Listener& listener() noexcept {
  static Listener* const found = new Listener;  // never destroyed: the thread may use it until the process has ended
  return *found;
}

CommandBlock& commands() noexcept { return Recorder::get().arena().header().commands; }

// After how many seconds the next turn is due; infinite if not before the next command.
double take_turn() noexcept {
  const Ref module(PyImport_ImportModule("stagespan.process.commands"));
  const Ref pause(module ? PyObject_CallMethod(module.get(), "turn", nullptr) : nullptr);
  const double pause_s = pause ? PyFloat_AsDouble(pause.get()) : std::numeric_limits<double>::infinity();
  if (PyErr_Occurred() == nullptr) return pause_s;
  PyErr_Clear();
  Recorder::get().lose(kLostHookErrors);
  return std::numeric_limits<double>::infinity();
}

// True if the thread ends now: nothing was asked for a long time.
bool leave(Listener& l) noexcept {
  pid_t mine = getpid();
  commands().listening.store(kListensInSpans, relaxed);
  if (!l.owner.compare_exchange_strong(mine, 0)) return true;  // it is being ended by another thread, which joins it
  // A command that has come meanwhile may not have found a thread, nor a span that starts one.
  pid_t none = 0;
  if (!l.is_over && commands().number.load(std::memory_order_acquire) != l.seen_number &&
      l.owner.compare_exchange_strong(none, getpid())) {
    commands().listening.store(kListensAtOnce, relaxed);
    return false;
  }
  pthread_detach(pthread_self());
  return true;
}

void* run(void*) noexcept {
  Listener& l = listener();
  l.native_id = static_cast<pid_t>(syscall(SYS_gettid));
  pthread_setname_np(pthread_self(), "stagespan-asked");
  PyThreadState* const state = PyThreadState_New(PyInterpreterState_Main());
  CommandBlock& block = commands();
  block.listening.store(kListensAtOnce, relaxed);
  std::int64_t linger_ns = monotonic_ns() + kLingerNs;
  while (true) {
    const std::uint32_t bell = block.bell.load(std::memory_order_acquire);
    if (l.is_stopping) break;
    const std::uint32_t number = block.number.load(std::memory_order_acquire);
    const std::int64_t now = monotonic_ns();
    if (number != l.seen_number || (bell != l.seen_bell && number != 0) || now >= l.due_ns) {
      l.seen_number = number;
      l.seen_bell = bell;
      linger_ns = now + kLingerNs;
      block.noticed.store(number, std::memory_order_release);
      PyEval_RestoreThread(state);
      const double pause_s = take_turn();
      PyEval_SaveThread();
      l.due_ns = pause_s < 1e6 ? monotonic_ns() + static_cast<std::int64_t>(std::max(pause_s, 0.0) * 1e9) : kNever;
      continue;
    }
    const bool may_end = !l.is_kept && l.due_ns == kNever;
    if (may_end && now >= linger_ns && leave(l)) break;
    wait_for_bell(block.bell, bell, std::min(l.due_ns, may_end ? linger_ns : kNever));
  }
  PyEval_RestoreThread(state);
  PyThreadState_Clear(state);
  PyThreadState_DeleteCurrent();
  ring_bell(l.has_ended);
  // Unless another thread joins it. One that has waited too long does not.
  pid_t mine = getpid();
  if (l.owner.compare_exchange_strong(mine, 0)) pthread_detach(pthread_self());
  return nullptr;
}

// In any thread, with or without the interpreter's lock.
void start_thread() noexcept {
  Listener& l = listener();
  const pid_t pid = getpid();
  pid_t before = l.owner.load();
  if (!Recorder::get().arena() || l.is_over || l.forks != 0 || before == pid || before == -pid) return;
  if (!l.owner.compare_exchange_strong(before, pid)) return;
  l.is_stopping = false;
  l.has_ended.store(0, relaxed);
  const WithoutSignals blocked;
  if (pthread_create(&l.thread, nullptr, run, nullptr) == 0) return;
  l.owner = 0;
  commands().listening.store(kListensToNobody, relaxed);
}

// True if there was a thread and it has ended. The interpreter's lock is held.
bool stop_thread() noexcept {
  Listener& l = listener();
  pid_t pid = getpid();
  if (l.native_id == static_cast<pid_t>(syscall(SYS_gettid)) || !l.owner.compare_exchange_strong(pid, -pid))
    return false;
  l.is_stopping = true;
  ring_bell(commands().bell);
  {
    const Unlocked waiting;
    // A turn can need an import that the forking thread has begun.
    wait_for_bell(l.has_ended, 0, monotonic_ns() + kLongestStopNs);
    if (l.has_ended.load(std::memory_order_acquire) == 0) {
      l.is_stopping = false;
      l.owner = pid;
      return false;
    }
    join_before_fork(l.thread, l.native_id);
  }
  commands().listening.store(kListensInSpans, relaxed);
  l.native_id = 0;
  l.owner = 0;
  return true;
}

PyObject* py_start(PyObject*, PyObject*) noexcept {
  Recorder::get().begin_recording();
  listener().is_kept = true;
  start_thread();
  Py_RETURN_NONE;
}

PyObject* py_stop(PyObject*, PyObject*) noexcept {
  listener().is_over = true;
  stop_thread();
  Py_RETURN_NONE;
}

PyObject* py_before_fork(PyObject*, PyObject*) noexcept {
  Listener& l = listener();
  ++l.forks;
  if (stop_thread()) l.was_running = true;
  Py_RETURN_NONE;
}

int start_again(void*) noexcept {
  Listener& l = listener();
  if (l.forks != 0 || !l.was_running) return 0;
  l.was_running = false;
  start_thread();
  return 0;
}

PyObject* py_after_fork(PyObject*, PyObject* in_child) noexcept {
  Listener& l = listener();
  if (in_child == Py_True) {
    // Nothing was asked of the child.
    l.forks = 0;
    l.seen_number = l.seen_bell = 0;
    l.due_ns = kNever;
    l.is_stopping = false;
    l.native_id = 0;
    l.owner = 0;
    l.was_running = l.is_kept;
    if (l.is_kept) Recorder::get().begin_recording();
  } else {
    --l.forks;
  }
  start_after_fork(start_again, in_child == Py_True);
  Py_RETURN_NONE;
}

PyObject* py_command_read(PyObject*, PyObject*) noexcept {
  if (!Recorder::get().arena()) return Py_BuildValue("IIy", 0U, 0U, "");
  const Command command = read_command(commands());
  // "N" takes the reference.
  return Py_BuildValue("IIN", command.number, command.cancelled,
                       PyBytes_FromStringAndSize(command.text.data(), static_cast<Py_ssize_t>(command.text.size())));
}

PyObject* py_command_answer(PyObject*, PyObject* arguments) noexcept {
  unsigned int number = 0;
  PyObject* text = nullptr;
  if (PyArg_ParseTuple(arguments, "IS:command_answer", &number, &text) == 0) return nullptr;
  if (!Recorder::get().arena()) Py_RETURN_FALSE;
  const std::string_view answer(PyBytes_AS_STRING(text), static_cast<std::size_t>(PyBytes_GET_SIZE(text)));
  return PyBool_FromLong(write_answer(commands(), number, answer) ? 1 : 0);
}

}  // namespace

void listen_in_spans() noexcept { Recorder::get().on_command.store(start_thread, relaxed); }

PyMethodDef g_listener_functions[] = {
    {"listener_start", py_start, METH_NOARGS, nullptr},
    {"listener_stop", py_stop, METH_NOARGS, nullptr},
    {"listener_before_fork", py_before_fork, METH_NOARGS, nullptr},
    {"listener_after_fork", py_after_fork, METH_O, nullptr},
    {"command_read", py_command_read, METH_NOARGS, nullptr},
    {"command_answer", py_command_answer, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
