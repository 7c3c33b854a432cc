// termination.cpp: writes the reports when the default action of SIGTERM would end the process.
#include "termination.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "object.h"

namespace stagespan::python {

namespace {

// The signal may interrupt any code, which may hold any lock, and the main thread may never run Python code again. The
// handler therefore only wakes a thread. That thread starts another one, which runs the Python code, and ends the
// process when it has finished or after a few seconds, whatever the other threads do. Python's own table of handlers
// still contains SIG_DFL: the program finds what it would find without stagespan, and a handler that it sets replaces
// this one.

// `docker stop` kills after 10 s.
constexpr std::int64_t kLongestNs = 8'000'000'000;
// The second of two signals ends the process at once, unless it follows the first one immediately: launchers signal a
// process and also its group.
constexpr std::int64_t kSameSignalNs = 1'000'000'000;

PyObject* g_write = nullptr;
sem_t g_received;
sem_t g_written;
std::atomic<pid_t> g_owner{0};  // a forked child has the handler but not the thread
std::atomic<std::int64_t> g_first_ns{0};
std::atomic<bool> g_is_writing{false};
pthread_t g_writer;

std::int64_t clock_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void sleep_ms(long milliseconds) noexcept {
  const timespec duration{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  nanosleep(&duration, nullptr);
}

void restore_default() noexcept {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
}

// Async-signal-safe.
[[noreturn]] void end_process() noexcept {
  restore_default();
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(SIGTERM);
  // The kernel ignores the default action of a container's first process.
  _exit(128 + SIGTERM);
}

void on_signal(int, siginfo_t*, void*) {
  const int saved = errno;
  if (g_owner.load() != getpid()) end_process();
  const std::int64_t now_ns = clock_ns();
  std::int64_t first_ns = 0;
  if (g_first_ns.compare_exchange_strong(first_ns, now_ns))
    sem_post(&g_received);
  else if (now_ns - first_ns > kSameSignalNs)
    end_process();
  errno = saved;
}

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
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
  while (sem_wait(&g_received) != 0) {
  }
  if (pthread_create(&g_writer, nullptr, write_reports, nullptr) == 0) {
    g_is_writing.store(true);
    while (sem_trywait(&g_written) != 0 && clock_ns() - g_first_ns.load() < kLongestNs) sleep_ms(2);
  }
  end_process();
}

// Starts the thread that ends the process; it takes no signals, which the main thread must get.
bool start_thread() noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, wait_for_signal, nullptr) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started) pthread_detach(thread);
  return started;
}

PyObject* watch_termination(PyObject*, PyObject* write) {
  struct sigaction current{};
  sigaction(SIGTERM, nullptr, &current);
  const bool was_ours = is_ours(current);
  const bool is_default = (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL;
  if (!was_ours && !is_default) Py_RETURN_FALSE;
  keep(g_write, write);
  if (g_owner.load() != getpid()) {
    sem_init(&g_received, 0, 0);
    sem_init(&g_written, 0, 0);
    g_first_ns.store(0);
    g_is_writing.store(false);
    if (!start_thread()) {
      restore_default();
      Py_RETURN_FALSE;
    }
    g_owner.store(getpid());
  }
  if (!was_ours) {
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    // The program does not expect SIGTERM to interrupt a system call instead of ending it.
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, nullptr);
  }
  Py_RETURN_TRUE;
}

PyObject* unwatch_termination(PyObject*, PyObject*) {
  struct sigaction current{};
  sigaction(SIGTERM, nullptr, &current);
  if (is_ours(current)) restore_default();
  Py_RETURN_NONE;
}

PyObject* await_termination(PyObject*, PyObject*) {
  const bool is_due = g_owner.load() == getpid() && g_first_ns.load() != 0;
  const bool is_writer = g_is_writing.load() && pthread_equal(pthread_self(), g_writer) != 0;
  if (is_due && !is_writer) {
    const Unlocked unlocked;
    while (clock_ns() - g_first_ns.load() < 2 * kLongestNs) sleep_ms(10);
  }
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef g_termination_functions[] = {
    {"watch_termination", watch_termination, METH_O,
     "watch_termination(write)\n--\n\nCall write() in a separate thread before SIGTERM ends the process. "
     "False "
     "if the program handles or ignores SIGTERM: then nothing is changed."},
    {"unwatch_termination", unwatch_termination, METH_NOARGS,
     "unwatch_termination()\n--\n\nLet SIGTERM end the process at once again."},
    {"await_termination", await_termination, METH_NOARGS,
     "await_termination()\n--\n\nIf SIGTERM has been received, wait until it ends the process."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
