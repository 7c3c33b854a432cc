// sampler.cpp: a thread that takes the Python frames of all threads at regular intervals.
#include <Python.h>
#include <fcntl.h>
#include <frameobject.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "after_fork.h"
#include "module.h"
#include "object.h"
#include "sampled_stacks.h"
#include "stagespan/thread_state.h"
#include "stagespan/without_signals.h"
#include "worker_name.h"

namespace stagespan::python {

namespace {

// A sample counts for the time since the one before. If samples were counted instead, code that holds the interpreter's
// lock would have too few: the thread waits for the lock meanwhile. For each thread, the time is what it computed, by
// its own CPU clock, and what it waited.

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kFirstWriteNs = 100 * kMs, kWriteEveryNs = 1000 * kMs;  // in between, twice as late each time
constexpr std::int64_t kFirstCallNs = 2000 * kMs;  // of the callback, then twice as late each time
constexpr std::int64_t kFreeCpuNs = 4 * kMs;  // for which the sampler's CPU time is not compared with the process's
// Of the process's CPU time, at most this part: 1.6 %. The promise is 2 %, of which a sample may take too much, and
// what the program loses by switches of the lock is not in the sampler's own time.
constexpr int kMostCpuShare = 64;
constexpr int kMostSlowdown = 8;        // of the process, by others on a busy machine
constexpr int kLongestFactor = 16;      // of the interval, in a process that computes little
constexpr int kMostReady = 16;          // times what a thread computed
constexpr std::size_t kMostEnded = 64;  // threads
constexpr std::int64_t kUnknown = -1;

std::int64_t clock_ns(clockid_t clock) noexcept {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return kUnknown;
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The CPU time of a thread of this process, by the kernel's rule for such clocks. Unlike pthread_getcpuclockid, it is
// defined for a thread that has ended: it is unknown then, or, once the number is that of a new thread, it is less.
std::int64_t thread_cpu_ns(pid_t native_id) noexcept {
  constexpr unsigned kPerThread = 4, kScheduled = 2;
  return clock_ns(static_cast<clockid_t>((~static_cast<unsigned>(native_id) << 3) | kPerThread | kScheduled));
}

// The kernel's number of a thread; 0 if it is not known.
pid_t native_id_of(PyThreadState* thread) noexcept {
#if PY_VERSION_HEX >= 0x030b0000
  return static_cast<pid_t>(thread->native_thread_id);
#else
  const Ref name(PyUnicode_FromString("threading"));
  const Ref module(name ? PyImport_GetModule(name.get()) : nullptr);
  const Ref threads = attribute(module.get(), "_active");
  const Ref ident(PyLong_FromUnsignedLong(thread->thread_id));
  PyObject* const object = threads && PyDict_Check(threads.get()) != 0 && ident
                               ? PyDict_GetItemWithError(threads.get(), ident.get())
                               : nullptr;
  const Ref native = attribute(object, "_native_id");
  const long number = native && PyLong_Check(native.get()) != 0 ? PyLong_AsLong(native.get()) : 0;
  const Ref main = attribute(module.get(), "_main_thread");
  PyErr_Clear();
  // In a forked child, `threading` keeps the number that the thread had in the parent.
  const bool is_of_parent = object != nullptr && object == main.get() && thread_cpu_ns(static_cast<pid_t>(number)) < 0;
  return is_of_parent ? getpid() : static_cast<pid_t>(number);
#endif
}

struct Thread {
  pid_t native_id = 0;
  std::int64_t cpu_ns = 0, ready_ns = 0;
  std::uint32_t leaf = UINT32_MAX;
  std::int64_t collecting_since_ns = 0;
  std::int64_t collected_ns = 0;  // in garbage collections since the last sample
  std::int64_t seen_ns = 0;       // when it was last there
};

// All but the fields under "stop" is guarded by the interpreter's lock.
struct Sampler {
  std::string folder, role, worker;
  std::int64_t interval_ns = 0;
  bool is_read_by_others = false;  // the file must be there however the process ends
  bool is_wanted = false;          // between start and stop, also while a fork is going on
  int forks = 0;
  PyObject* callback = nullptr;  // is called with what was seen, in the sampler's thread, until it returns true

  pthread_t thread{};
  pid_t owner = 0;  // the process that has the thread; 0 without it
  std::atomic<pid_t> native_id{0};
  PyThreadState* state = nullptr;
  std::int64_t began_ns = 0, process_cpu_ns = 0;  // when the CPU times began to be compared
  std::int64_t own_cpu_ns = 0;                    // of the sampler's threads that have ended

  SampledStacks stacks;
  std::unordered_map<std::uint64_t, Thread> threads;  // by the number of the thread state, which is never used again
  std::int64_t collected_ns[2] = {0, 0};
  std::int64_t last_ns = 0, wall_ns = 0, samples = 0;
  std::string path;

  // stop
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  bool is_stopping = false;
};

Sampler& sampler() noexcept {
  static Sampler* const found = new Sampler;  // never destroyed: threads may use it until the process has ended
  return *found;
}

void take(Sampler& s, bool is_first) noexcept {
  const NoCollection by_allocations;
  ErrorAside error;
  const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
  const std::int64_t wall_ns = now - s.last_ns;
  s.last_ns = now;
  if (!is_first) {
    s.wall_ns += wall_ns;
    ++s.samples;
  }
  const pid_t main_thread = getpid();
  std::size_t count = 0;
  for (PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Main()); state != nullptr;
       state = PyThreadState_Next(state)) {
    if (state == s.state) continue;
    Thread& thread = s.threads[PyThreadState_GetID(state)];
    const bool is_new = thread.native_id == 0;
    thread.seen_ns = now;
    ++count;
    if (is_new) {
      // Up to 3.11, a thread that has not run yet has the number of its creator.
      const Ref frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(state)));
      if (!frame) continue;
      thread.native_id = native_id_of(state);
    }
    const std::int64_t cpu_ns = thread.native_id == 0 ? kUnknown : thread_cpu_ns(thread.native_id);
    if (cpu_ns == kUnknown) continue;
    // A new thread was not there for all of the time. A number of a thread that has ended is used again.
    const bool is_other = is_new || cpu_ns < thread.cpu_ns;
    const std::int64_t computed_ns = is_other ? std::min(cpu_ns, wall_ns) : cpu_ns - thread.cpu_ns;
    thread.cpu_ns = cpu_ns;
    // A thread without a processor does not wait for anything in the program. The kernel is asked for this time only if
    // much is missing, as that is slow.
    std::int64_t ready_ns = 0;
    const std::int64_t missing_ns = wall_ns - computed_ns;
    if (is_other || (computed_ns > 0 && missing_ns > wall_ns / 8)) {
      const std::int64_t before_ns = std::exchange(thread.ready_ns, run_delay_ns(thread.native_id));
      // A thread that only waits is woken late when there are many: this is still waiting.
      if (!is_other)
        ready_ns =
            std::clamp<std::int64_t>(thread.ready_ns - before_ns, 0, std::min(missing_ns, computed_ns * kMostReady));
    }
    if (is_first) continue;
    const std::uint32_t root =
        thread.native_id == main_thread ? SampledStacks::kMainThread : SampledStacks::kOtherThreads;
    // A thread that has not run since the last sample has the same stack.
    if (computed_ns > 0 || thread.leaf == UINT32_MAX) thread.leaf = s.stacks.leaf_of(state, root);
    const std::int64_t all_ns = is_other ? computed_ns : std::max(wall_ns, computed_ns);
    const std::int64_t collected_ns = std::min(std::exchange(thread.collected_ns, 0), all_ns);
    s.collected_ns[root] += collected_ns;
    const std::int64_t rest_ns = all_ns - collected_ns;
    const std::int64_t rest_cpu_ns = std::max<std::int64_t>(computed_ns - collected_ns, 0);
    s.stacks.add(thread.leaf, rest_ns, rest_cpu_ns, std::max<std::int64_t>(rest_ns - rest_cpu_ns - ready_ns, 0));
  }
  // Threads that have ended are forgotten from time to time.
  if (s.threads.size() > 2 * count + kMostEnded)
    std::erase_if(s.threads, [&](const auto& one) { return one.second.seen_ns != now; });
}

// What multiprocessing calls this process, without numbers: workers of one kind are shown together.
void read_worker(Sampler& s) noexcept {
  s.worker = worker_of_this_process().name;
  if (s.worker == "worker") s.worker.clear();  // it is none
  while (!s.worker.empty() && std::string_view("0123456789-_: ").find(s.worker.back()) != std::string_view::npos)
    s.worker.pop_back();
}

// The content of the file.
std::string text_of(const Sampler& s) {
  std::string text = "process\t" + s.role + '\t' + s.worker;
  for (const std::int64_t field : {s.interval_ns, s.samples, s.wall_ns, s.collected_ns[0], s.collected_ns[1]})
    text += '\t' + std::to_string(field);
  return text + '\n' + s.stacks.text();
}

// Whether the callback does not want to be called again.
bool call_back(Sampler& s) noexcept {
  const NoCollection by_allocations;  // finalizers belong to the program's own threads
  const Ref callback(Py_NewRef(s.callback));
  const std::string text = text_of(s);
  const Ref seen(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  const Ref is_done(seen ? PyObject_CallOneArg(callback.get(), seen.get()) : nullptr);
  PyErr_Clear();
  return !is_done || is_done.get() == Py_True;
}

void write(const Sampler& s) noexcept {
  if (s.samples == 0 || s.folder.empty()) return;
  const std::string text = text_of(s);
  const std::string written = s.path + ".new";
  const int file = open(written.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;  // the command has ended
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t more = ::write(file, text.data() + done, text.size() - done);
    if (more <= 0) break;
    done += static_cast<std::size_t>(more);
  }
  close(file);
  if (done < text.size() || rename(written.c_str(), s.path.c_str()) != 0) unlink(written.c_str());
}

// Waits until a time of CLOCK_MONOTONIC. False if the thread must stop.
bool wait_until(Sampler& s, std::int64_t until_ns) noexcept {
  const timespec until{static_cast<time_t>(until_ns / 1'000'000'000), static_cast<long>(until_ns % 1'000'000'000)};
  pthread_mutex_lock(&s.mutex);
  while (!s.is_stopping && pthread_cond_timedwait(&s.condition, &s.mutex, &until) == 0) continue;
  const bool goes_on = !s.is_stopping;
  pthread_mutex_unlock(&s.mutex);
  return goes_on;
}

// The time until the next sample: the interval, or longer if the sampler would exceed its part of the CPU time. The
// last sample took `cost_ns` of it, and the sampler's thread `own_ns` in all.
std::int64_t next_interval_ns(const Sampler& s, std::int64_t now, std::int64_t own_ns, std::int64_t cost_ns) noexcept {
  const std::int64_t process_ns = std::max<std::int64_t>(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - s.process_cpu_ns, 1);
  const std::int64_t missing_ns = (s.own_cpu_ns + own_ns + cost_ns - kFreeCpuNs) * kMostCpuShare - process_ns;
  if (missing_ns <= 0) return s.interval_ns;
  // The process computes on as before, it is assumed, but is not left alone for long.
  const double until_ns =
      static_cast<double>(missing_ns) * static_cast<double>(now - s.began_ns) / static_cast<double>(process_ns);
  const std::int64_t longest_ns = std::max(s.interval_ns * kLongestFactor, cost_ns * kMostCpuShare * kMostSlowdown);
  return std::max(s.interval_ns, static_cast<std::int64_t>(std::min(until_ns, static_cast<double>(longest_ns))));
}

void* run(void* argument) noexcept {
  Sampler& s = *static_cast<Sampler*>(argument);
  s.native_id = static_cast<pid_t>(syscall(SYS_gettid));
  pthread_setname_np(pthread_self(), "stagespan-sampl");
  PyThreadState* const state = PyThreadState_New(PyInterpreterState_Main());
  const std::int64_t base_ns = s.interval_ns;
  std::int64_t due_ns = clock_ns(CLOCK_MONOTONIC) + base_ns;
  std::int64_t written_ns = due_ns, write_every_ns = kFirstWriteNs;
  std::int64_t call_after_ns = kFirstCallNs, own_ns = 0;
  while (wait_until(s, due_ns)) {
    PyEval_RestoreThread(state);
    s.state = state;
    take(s, false);
    const std::int64_t now = s.last_ns, cost_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - own_ns;
    const bool is_writing = s.is_read_by_others && now - written_ns >= write_every_ns;
    if (is_writing) read_worker(s);
    if (s.callback != nullptr && s.wall_ns >= call_after_ns) {
      call_after_ns *= 2;
      if (call_back(s)) Py_CLEAR(s.callback);
    }
    PyEval_SaveThread();
    if (is_writing) {
      const std::int64_t before_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
      write(s);
      const std::int64_t writing_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before_ns;
      write_every_ns = std::max(std::min(2 * write_every_ns, kWriteEveryNs), writing_ns * kMostCpuShare);
      written_ns = now;
    }
    own_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    const std::int64_t interval_ns = next_interval_ns(s, now, own_ns, cost_ns);
    due_ns += interval_ns;
    if (due_ns <= now || interval_ns > base_ns) due_ns = now + interval_ns;
  }
  PyEval_RestoreThread(state);
  s.state = nullptr;
  s.own_cpu_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID);
  PyThreadState_Clear(state);
  PyThreadState_DeleteCurrent();
  return nullptr;
}

void start_thread(Sampler& s) noexcept {
  if (s.owner == getpid()) return;
  take(s, true);
  s.is_stopping = false;
  pthread_mutex_init(&s.mutex, nullptr);
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&s.condition, &clock);
  pthread_condattr_destroy(&clock);
  const WithoutSignals blocked;
  if (pthread_create(&s.thread, nullptr, run, &s) == 0) s.owner = getpid();
}

void stop_thread(Sampler& s) noexcept {
  if (s.owner != getpid()) return;
  s.owner = 0;
  pthread_mutex_lock(&s.mutex);
  s.is_stopping = true;
  pthread_cond_signal(&s.condition);
  pthread_mutex_unlock(&s.mutex);
  const Unlocked waiting;
  join_before_fork(s.thread, s.native_id);
}

// Forgets what was seen, for a new file.
void clear(Sampler& s) noexcept {
  s.began_ns = clock_ns(CLOCK_MONOTONIC);
  s.process_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  s.own_cpu_ns = 0;
  s.stacks.clear();
  s.threads.clear();
  s.collected_ns[0] = s.collected_ns[1] = s.wall_ns = s.samples = 0;
}

void name_file(Sampler& s) noexcept {
  s.path = s.folder + "/" + std::to_string(getpid()) + "-" + std::to_string(clock_ns(CLOCK_MONOTONIC)) + ".samples";
}

PyObject* py_start(PyObject*, PyObject* arguments) noexcept {
  const char *folder = nullptr, *role = nullptr;
  long long interval_us = 0;
  int is_read_by_others = 0;
  PyObject* callback = nullptr;
  if (PyArg_ParseTuple(arguments, "ysLpO:sampler_start", &folder, &role, &interval_us, &is_read_by_others, &callback) ==
      0)
    return nullptr;
  Sampler& s = sampler();
  stop_thread(s);
  clear(s);
  s.folder = folder;
  s.role = role;
  s.interval_ns = interval_us * 1000;
  s.is_read_by_others = is_read_by_others != 0;
  const Ref before(std::exchange(s.callback, callback == Py_None ? nullptr : Py_NewRef(callback)));
  name_file(s);
  s.is_wanted = true;
  start_thread(s);
  Py_RETURN_NONE;
}

PyObject* py_stop(PyObject*, PyObject*) noexcept {
  Sampler& s = sampler();
  if (!s.is_wanted) Py_RETURN_NONE;
  s.is_wanted = false;
  stop_thread(s);
  read_worker(s);
  write(s);
  Py_RETURN_NONE;
}

PyObject* py_text(PyObject*, PyObject*) noexcept {
  const Sampler& s = sampler();
  if (!s.is_wanted) Py_RETURN_NONE;
  const std::string text = text_of(s);
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

PyObject* py_before_fork(PyObject*, PyObject*) noexcept {
  Sampler& s = sampler();
  ++s.forks;
  stop_thread(s);
  Py_RETURN_NONE;
}

int start_again(void*) noexcept {
  Sampler& s = sampler();
  if (s.is_wanted && s.forks == 0) start_thread(s);
  return 0;
}

PyObject* py_after_fork(PyObject*, PyObject* in_child) noexcept {
  Sampler& s = sampler();
  --s.forks;
  if (in_child == Py_True) {
    s.role = "forked process";
    s.is_read_by_others = true;
    s.forks = 0;
    s.owner = 0;
    s.state = nullptr;
    clear(s);
    name_file(s);
  }
  start_after_fork(start_again, in_child == Py_True);
  Py_RETURN_NONE;
}

PyObject* py_collection(PyObject*, PyObject* const* arguments, Py_ssize_t count) noexcept {
  Sampler& s = sampler();
  if (s.is_wanted && count > 0 && PyUnicode_Check(arguments[0]) != 0) {
    // The thread may not have been sampled yet: its entry then has no CPU time, so that the thread does not count.
    const auto found = s.threads.find(PyThreadState_GetID(PyThreadState_Get()));
    if (found != s.threads.end()) {
      Thread& thread = found->second;
      const std::int64_t now = clock_ns(CLOCK_MONOTONIC);
      if (PyUnicode_CompareWithASCIIString(arguments[0], "start") == 0)
        thread.collecting_since_ns = now;
      else if (thread.collecting_since_ns != 0)
        thread.collected_ns += now - std::exchange(thread.collecting_since_ns, 0);
    }
  }
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef g_sampler_functions[] = {
    {"sampler_start", py_start, METH_VARARGS, nullptr},
    {"sampler_stop", py_stop, METH_NOARGS, nullptr},
    {"sampler_text", py_text, METH_NOARGS, nullptr},
    {"sampler_before_fork", py_before_fork, METH_NOARGS, nullptr},
    {"sampler_after_fork", py_after_fork, METH_O, nullptr},
    {"sampler_collection", as_method(py_collection), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
