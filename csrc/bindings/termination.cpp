// termination.cpp: marks the recording when a signal stops the process, and writes the reports before SIGTERM does.
#include "termination.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

#include "after_fork.h"
#include "object.h"
#include "stagespan/clock.h"
#include "stagespan/recorder.h"
#include "stagespan/without_signals.h"

namespace stagespan::python {

namespace {

// A recording says which signal stopped its process. For this, a handler is installed where the action of the signal is
// the default one. It marks the recording and lets the default action end the process. For SIGTERM, it is also
// installed over the handler that Python calls for the program's own one; it then marks the recording and calls that
// handler. Handlers of other libraries are left alone.
//
// Python's own table of handlers does not change: the program finds what it would find without stagespan, and a handler
// that it sets replaces this one.
//
// In debug mode, SIGTERM also lets the reports be written. The signal may interrupt any code, which may hold any lock,
// and the main thread may never run Python code again. The handler therefore only wakes a thread. That thread starts
// another one, which runs the Python code, and ends the process when it has finished or after a few seconds, whatever
// the other threads do.

// `docker stop` kills after 10 s.
constexpr std::int64_t kLongestNs = 8'000'000'000;
// The second of two signals ends the process at once, unless it follows the first one immediately: launchers signal a
// process and also its group.
constexpr std::int64_t kSameSignalNs = 1'000'000'000;

constexpr int kSignals[] = {SIGTERM, SIGHUP, SIGINT};
constexpr std::size_t kSignalCount = std::size(kSignals);

/// What the handler calls after it has marked the recording; null for the default action.
std::atomic<void (*)(int)> g_called[kSignalCount];
std::atomic<bool> g_was_installed[kSignalCount];
/// The function that Python installs for all handlers of the program; null until it is known.
std::atomic<void (*)(int)> g_of_python{nullptr};
// The process whose recording is marked. A forked child has the handlers, but at first no recording of its own.
std::atomic<pid_t> g_marked{0};

PyObject* g_write = nullptr;
sem_t g_received;
sem_t g_written;
std::atomic<pid_t> g_owner{0};  // a forked child has the handler but not the thread
std::atomic<bool> g_is_watching{false};
std::atomic<std::int64_t> g_first_ns{0};
std::atomic<bool> g_is_writing{false};
pthread_t g_writer;

// The thread that waits for SIGTERM. It ends before a fork, since Python 3.12 and later warn of a fork with threads,
// and starts again in the parent. A signal in between is kept by `g_first_ns` and the semaphore. Guarded by Python's
// lock.
pthread_t g_waiter;
std::atomic<pid_t> g_waiter_id{0};
bool g_has_waiter = false;
int g_forks = 0;

std::size_t index_of(int number) noexcept {
  return static_cast<std::size_t>(std::find(kSignals, kSignals + kSignalCount, number) - kSignals);
}

void sleep_ms(long milliseconds) noexcept {
  const timespec duration{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  nanosleep(&duration, nullptr);
}

void on_signal(int number, siginfo_t*, void*);

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

bool is_default(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

void restore_default(int number) noexcept {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

// Installs the handler in place of an action that has just been read.
void install(int number, const struct sigaction& replaced) noexcept {
  const std::size_t index = index_of(number);
  void (*const before)(int) = g_called[index].load();
  struct sigaction action = replaced;
  if (is_default(replaced)) {
    action = {};
    sigemptyset(&action.sa_mask);
    // The program does not expect the signal to interrupt a system call instead of ending it.
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    g_called[index].store(nullptr);
  } else {
    g_called[index].store(replaced.sa_handler);
  }
  action.sa_sigaction = on_signal;
  action.sa_flags |= SA_SIGINFO;
  struct sigaction current{};
  sigaction(number, &action, &current);
  // Code without Python's lock may have set another action in the meantime: it stays.
  if ((current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == replaced.sa_handler) {
    g_was_installed[index].store(true);
    return;
  }
  sigaction(number, &current, nullptr);
  g_called[index].store(before);
}

void mark(int number, bool is_final) noexcept {
  if (g_marked.load() == getpid()) Recorder::get().mark_stop(number, is_final);
}

// Ends the process by the default action. Returns if the kernel ignores it, because the process is the first one of a
// container. Async-signal-safe.
void end_by_default(int number) noexcept {
  mark(number, true);
  restore_default(number);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(number);
  mark(number, false);
}

[[noreturn]] void end_process() noexcept {
  end_by_default(SIGTERM);
  _exit(128 + SIGTERM);
}

void on_signal(int number, siginfo_t*, void*) {
  const int saved = errno;
  if (void (*const called)(int) = g_called[index_of(number)].load(); called != nullptr) {
    mark(number, false);
    errno = saved;
    called(number);
    return;
  }
  if (number == SIGTERM && g_is_watching.load()) {
    if (g_owner.load() != getpid()) end_process();
    const std::int64_t now_ns = monotonic_ns();
    std::int64_t first_ns = 0;
    if (g_first_ns.compare_exchange_strong(first_ns, now_ns))
      sem_post(&g_received);
    else if (now_ns - first_ns > kSameSignalNs)
      end_process();
    errno = saved;
    return;
  }
  struct sigaction current{};
  sigaction(number, nullptr, &current);
  if (is_ours(current)) {
    end_by_default(number);
    install(number, {});
  } else {
    // A handler that has replaced this one calls it. It would not call the default action.
    mark(number, false);
  }
  errno = saved;
}

void* write_reports(void*) {
  const PyGILState_STATE state = PyGILState_Ensure();
  {
    const Ref result(PyObject_CallNoArgs(g_write));
    if (!result) PyErr_WriteUnraisable(g_write);
  }
  sem_post(&g_written);
  PyGILState_Release(state);
  return nullptr;
}

void* wait_for_signal(void*) {
  g_waiter_id.store(static_cast<pid_t>(syscall(SYS_gettid)));
  while (sem_wait(&g_received) != 0) {
  }
  if (g_first_ns.load() == 0) return nullptr;  // no signal, but a fork
  if (pthread_create(&g_writer, nullptr, write_reports, nullptr) == 0) {
    g_is_writing.store(true);
    while (sem_trywait(&g_written) != 0 && monotonic_ns() - g_first_ns.load() < kLongestNs) sleep_ms(2);
  }
  end_process();
}

/// When a process must have ended: some time after its end was asked for.
struct Deadline {
  int fd;  // can be read once it is asked for
  long milliseconds;
};

// Neither needs the interpreter's lock nor waits for a thread that does.
void* end_late(void* argument) {
  const std::unique_ptr<Deadline> deadline(static_cast<Deadline*>(argument));
  pollfd asked{deadline->fd, POLLIN, 0};
  while (poll(&asked, 1, -1) < 0 && errno == EINTR) {
  }
  sleep_ms(deadline->milliseconds);
  _exit(0);
}

bool start_thread(pthread_t& thread, void* (*run)(void*), void* argument = nullptr) noexcept {
  const WithoutSignals blocked;
  return pthread_create(&thread, nullptr, run, argument) == 0;
}

bool is_plain(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

void watch_stop(int number) noexcept {
  struct sigaction current{};
  if (sigaction(number, nullptr, &current) != 0 || is_ours(current)) return;
  // A handler of another library may call the one that it has replaced. If that is this one, they would call each other
  // in turn, so other handlers are only called by one that has never been installed.
  const bool may_be_called =
      is_plain(current) && (current.sa_handler == g_of_python.load() || !g_was_installed[index_of(number)].load());
  if (is_default(current) || (number == SIGTERM && may_be_called)) install(number, current);
}

PyObject* watch_termination(PyObject*, PyObject* write) {
  struct sigaction current{};
  sigaction(SIGTERM, nullptr, &current);
  const bool was_ours = is_ours(current) && g_called[index_of(SIGTERM)].load() == nullptr;
  if (!was_ours && !is_default(current)) Py_RETURN_FALSE;
  keep(g_write, write);
  if (g_owner.load() != getpid()) {
    sem_init(&g_received, 0, 0);
    sem_init(&g_written, 0, 0);
    g_first_ns.store(0);
    g_is_writing.store(false);
    g_has_waiter = start_thread(g_waiter, wait_for_signal);
    if (!g_has_waiter) {
      g_is_watching.store(false);
      Py_RETURN_FALSE;
    }
    g_owner.store(getpid());
  }
  g_is_watching.store(true);
  if (!was_ours) install(SIGTERM, current);
  Py_RETURN_TRUE;
}

PyObject* unwatch_termination(PyObject*, PyObject*) {
  // The handler stays: without a writer, it ends the process at once.
  g_is_watching.store(false);
  Py_RETURN_NONE;
}

PyObject* before_fork(PyObject*, PyObject*) {
  ++g_forks;
  // After a signal, the thread waits for the writer, which may be the thread that forks here.
  if (!g_has_waiter || g_owner.load() != getpid() || g_first_ns.load() != 0) Py_RETURN_NONE;
  g_has_waiter = false;
  sem_post(&g_received);
  // A signal may come before the thread has ended: it then writes the reports, and the process ends instead of forking.
  const Unlocked unlocked;
  join_before_fork(g_waiter, g_waiter_id.load());
  Py_RETURN_NONE;
}

int start_waiting(void*) {
  if (g_forks != 0 || g_owner.load() != getpid() || g_has_waiter) return 0;
  g_has_waiter = start_thread(g_waiter, wait_for_signal);
  // Without its thread, the handler would wait for reports that nobody writes.
  if (!g_has_waiter) g_is_watching.store(false);
  return 0;
}

PyObject* after_fork(PyObject*, PyObject* in_child) {
  if (in_child == Py_True) {
    g_forks = 0;  // a child has no thread, and begins to watch by itself
    Py_RETURN_NONE;
  }
  --g_forks;
  if (g_owner.load() == getpid()) start_after_fork(start_waiting, false);
  Py_RETURN_NONE;
}

PyObject* await_termination(PyObject*, PyObject*) {
  const bool is_due = g_owner.load() == getpid() && g_first_ns.load() != 0;
  const bool is_writer = g_is_writing.load() && pthread_equal(pthread_self(), g_writer) != 0;
  if (is_due && !is_writer) {
    const Unlocked unlocked;
    while (monotonic_ns() - g_first_ns.load() < 2 * kLongestNs) sleep_ms(10);
  }
  Py_RETURN_NONE;
}

PyObject* end_after(PyObject*, PyObject* arguments) {
  auto deadline = std::make_unique<Deadline>();
  if (PyArg_ParseTuple(arguments, "il", &deadline->fd, &deadline->milliseconds) == 0) return nullptr;
  pthread_t thread;
  if (!start_thread(thread, end_late, deadline.get()))
    return PyErr_Format(PyExc_RuntimeError, "can't start new thread");
  pthread_detach(thread);
  (void)deadline.release();  // the thread owns it
  Py_RETURN_NONE;
}

PyObject* watch_stops(PyObject*, PyObject* argument) {
  const long number = PyLong_AsLong(argument);
  if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
  struct sigaction current{};
  if (index_of(static_cast<int>(number)) == kSignalCount) Py_RETURN_NONE;
  if (sigaction(static_cast<int>(number), nullptr, &current) == 0 && is_plain(current))
    g_of_python.store(current.sa_handler);
  if (g_marked.load() == getpid()) watch_stop(static_cast<int>(number));
  Py_RETURN_NONE;
}

PyObject* mark_stop(PyObject*, PyObject* argument) {
  const long number = PyLong_AsLong(argument);
  if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
  mark(static_cast<int>(number), false);
  Py_RETURN_NONE;
}

}  // namespace

void watch_stops_of_recording() noexcept {
  g_marked.store(getpid());
  for (const int number : kSignals) watch_stop(number);
}

PyMethodDef g_termination_functions[] = {
    {"termination_watch", watch_termination, METH_O, nullptr},
    {"termination_unwatch", unwatch_termination, METH_NOARGS, nullptr},
    {"termination_watch_stops", watch_stops, METH_O, nullptr},
    {"termination_mark_stop", mark_stop, METH_O, nullptr},
    {"termination_before_fork", before_fork, METH_NOARGS, nullptr},
    {"termination_after_fork", after_fork, METH_O, nullptr},
    {"termination_await", await_termination, METH_NOARGS, nullptr},
    {"termination_end_after", end_after, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
