// request_tables.cpp: tables of open requests, and rings of those that have begun and ended.
#include "request_tables.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <new>
#include <utility>

#include "object.h"
#include "segments.h"
#include "stagespan/recorder.h"

namespace stagespan::python {

namespace {

constexpr std::size_t kMostBegun = 16'384;
constexpr std::size_t kMostEnded = 1'024;
constexpr std::size_t kMostFinished = 1'024;

/// Mixes a number, differently in each process: clients choose the ids of traces and hops, and could choose equal ones.
std::uint64_t mixed(std::uint64_t number) noexcept {
  static const std::uint64_t factor = random_number() | 1;
  return number * factor;
}

std::uint64_t hash_of_number(const RequestObject& request) noexcept { return mixed(request.number); }

std::uint64_t hash_of_trace(const TraceId& trace) noexcept { return mixed(trace.high ^ (mixed(trace.low) >> 7)); }

std::uint64_t hash_of_request_trace(const RequestObject& request) noexcept {
  return hash_of_trace(request.parent.trace);
}

/// Requests in chains by hash, the latest first. Without memory, the chains become longer.
template <RequestObject* RequestObject::* next, std::uint64_t (*hash)(const RequestObject&) noexcept>
class Chains {
 public:
  void add(RequestObject& request) noexcept {
    if (size_ >= count_) grow();
    push(request);
    ++size_;
  }

  void remove(RequestObject& request) noexcept {
    for (RequestObject** at = &chain(hash(request)); *at != nullptr; at = &((*at)->*next)) {
      if (*at != &request) continue;
      *at = std::exchange(request.*next, nullptr);
      --size_;
      return;
    }
  }

  template <class Is>
  RequestObject* find(std::uint64_t hash_value, Is is) noexcept {
    RequestObject* found = chain(hash_value);
    while (found != nullptr && !is(*found)) found = found->*next;
    return found;
  }

  template <class Function>
  bool for_each(Function function) {
    for (std::size_t i = 0; i < count_; ++i)
      for (RequestObject* one = chains_[i]; one != nullptr; one = one->*next)
        if (!function(*one)) return false;
    return true;
  }

 private:
  RequestObject*& chain(std::uint64_t hash_value) noexcept { return chains_[(hash_value >> 32) & (count_ - 1)]; }

  void push(RequestObject& request) noexcept {
    RequestObject*& first = chain(hash(request));
    request.*next = std::exchange(first, &request);
  }

  void grow() noexcept {
    RequestObject** const larger = new (std::nothrow) RequestObject*[2 * count_]{};
    if (larger == nullptr) return;
    RequestObject** const before = std::exchange(chains_, larger);
    const std::size_t count_before = std::exchange(count_, 2 * count_);
    for (std::size_t i = 0; i < count_before; ++i) {
      // Turned round twice, so that the latest one stays the first.
      RequestObject* turned = nullptr;
      while (RequestObject* const one = before[i]) {
        before[i] = one->*next;
        one->*next = std::exchange(turned, one);
      }
      while (RequestObject* const one = turned) {
        turned = one->*next;
        push(*one);
      }
    }
    if (before != first_) delete[] before;
  }

  RequestObject* first_[64] = {};
  RequestObject** chains_ = first_;
  std::size_t count_ = std::size(first_);  // a power of two
  std::size_t size_ = 0;
};

Chains<&RequestObject::next_of_number, hash_of_number> g_open;
Chains<&RequestObject::next_of_trace, hash_of_request_trace> g_roots;

struct Known {
  std::uint64_t number = 0;
  PyObject* id = nullptr;
  TraceId trace;
};

Known g_begun[kMostBegun];  // by number
Known g_ended[kMostEnded];  // in order
std::size_t g_ends = 0;

void remember(Known& place, const RequestObject& request) noexcept {
  PyObject* const before = std::exchange(place.id, Py_XNewRef(request.id));
  place.number = request.number;
  place.trace = request.parent.trace;
  Py_XDECREF(before);
}

/// What is known of a request; the number is 0 if nothing is.
Known find_known(std::uint64_t number) noexcept {
  if (const Known& begun = g_begun[number % kMostBegun]; begun.number == number) return begun;
  if (const RequestObject* const open = find_open(number)) return {number, open->id, open->parent.trace};
  for (std::size_t i = 0; i < kMostEnded; ++i)
    if (const Known& ended = g_ended[(g_ends - 1 - i) % kMostEnded]; ended.number == number) return ended;
  return {};
}

// The object may be about to be freed: weak references and finalizers run before.
bool is_alive(const RequestObject& request) noexcept {
  return Py_REFCNT(reinterpret_cast<PyObject*>(const_cast<RequestObject*>(&request))) > 0;
}

// --- finished requests ----------------------------------------------------------------------------------

/// A request that has ended. The dict is made when it is asked for, because nobody reads those of most requests.
struct Finished {
  PyObject* id = nullptr;        // null in an empty place
  PyObject* metadata = nullptr;  // the request's own; null while it has none
  PyObject* entry = nullptr;     // the dict, or null
  std::uint64_t number = 0;
  TraceId trace;
  std::uint64_t begin_ticks = 0;
  std::uint64_t end_ticks = 0;
  SegmentStatus status = kStatusOk;
};

Finished g_finished[kMostFinished];
std::uint64_t g_listed = 0;  // the number of requests that have been listed; the latest is in the place before

Finished& finished_at(std::uint64_t listed) noexcept { return g_finished[(listed - 1) % kMostFinished]; }

/// Replaces what is in a place. Freeing what was there before may run code of the program.
void replace(Finished& place, const Finished& by) noexcept {
  const Finished before = std::exchange(place, by);
  const Ref id(before.id), metadata(before.metadata), entry(before.entry);
}

/// The place of a listed request, or null if later ones have taken it.
Finished* place_of(const RequestObject& request) noexcept {
  if (request.listed == 0) return nullptr;
  Finished& place = finished_at(request.listed);
  return place.id != nullptr && place.number == request.number ? &place : nullptr;
}

PyObject* make_entry(const Finished& finished) noexcept {
  constexpr std::size_t kCount = 8;
  static PyObject* names[kCount];
  static PyObject* statuses[kStatusCount];
  if (names[0] == nullptr) {
    const char* const texts[kCount] = {"id",       "number", "trace_id", "metadata",
                                       "begin_ns", "end_ns", "status",   "figures"};
    for (std::size_t i = 0; i < kStatusCount; ++i) statuses[i] = PyUnicode_InternFromString(kStatusNames[i]);
    for (std::size_t i = kCount; i-- > 0;) names[i] = PyUnicode_InternFromString(texts[i]);
  }
  Recorder& recorder = Recorder::get();
  const Ref values[kCount] = {
      Ref(Py_NewRef(finished.id)),
      Ref(PyLong_FromUnsignedLongLong(finished.number)),
      Ref(text_of_trace(finished.trace)),
      Ref(Py_NewRef(finished.metadata)),
      Ref(PyLong_FromLongLong(recorder.published_ns(finished.begin_ticks))),
      Ref(PyLong_FromLongLong(recorder.published_ns(finished.end_ticks))),
      Ref(Py_XNewRef(statuses[finished.status])),
      Ref(Py_NewRef(Py_None)),
  };
  Ref entry(PyDict_New());
  if (!entry) return nullptr;
  for (std::size_t i = 0; i < kCount; ++i)
    if (names[i] == nullptr || !values[i] || PyDict_SetItem(entry.get(), names[i], values[i].get()) != 0)
      return nullptr;
  return entry.release();
}

/// The dict of a place, borrowed; null with an exception set if there is no memory.
PyObject* entry_of_place(Finished& place) noexcept {
  if (place.metadata == nullptr && (place.metadata = PyDict_New()) == nullptr) return nullptr;
  if (place.entry == nullptr) place.entry = make_entry(place);
  return place.entry;
}

// requests_finished() -> the latest 1,024 requests that have ended, oldest first; the same dict for each each time
PyObject* requests_finished(PyObject*, PyObject*) {
  const NoCollection by_allocations;  // finalizers may change the list
  Ref list(PyList_New(0));
  const std::uint64_t oldest = g_listed - std::min<std::uint64_t>(g_listed, kMostFinished);
  for (std::uint64_t listed = oldest + 1; list && listed <= g_listed; ++listed) {
    Finished& place = finished_at(listed);
    if (place.id == nullptr) continue;  // forgotten
    PyObject* const entry = entry_of_place(place);
    if (entry == nullptr || PyList_Append(list.get(), entry) != 0) return nullptr;
  }
  return list.release();
}

PyObject* requests_forget_finished(PyObject*, PyObject*) {
  for (Finished& place : g_finished) replace(place, {});
  Py_RETURN_NONE;
}

// --- the latest hops ------------------------------------------------------------------------------------

constexpr std::size_t kMostHops = 4'096;

struct Hop {
  std::uint64_t id = 0;
  std::uint16_t next = 0;  // 1 + the place of the next one in its chain; 0 at the end
};
Hop g_hops[kMostHops];
std::uint16_t g_hop_chains[kMostHops];
std::size_t g_next_hop = 0;
std::uint32_t g_hops_generation = 0;

std::uint16_t& chain_of_hop(std::uint64_t hop) noexcept { return g_hop_chains[mixed(hop) >> 52]; }
static_assert(kMostHops == std::size_t{1} << 12);

// --- the functions --------------------------------------------------------------------------------------

/// (id, trace id)
PyObject* pair_of(PyObject* id, const TraceId& trace) noexcept {
  return Py_BuildValue("(ON)", id, text_of_trace(trace));
}

PyObject* request_known(PyObject*, PyObject* object) {
  const std::uint64_t number = PyLong_AsUnsignedLongLong(object);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const Known known = number != 0 ? find_known(number) : Known{};
  return known.id != nullptr ? pair_of(known.id, known.trace) : Py_BuildValue("(sO)", "", Py_None);
}

PyObject* requests_known(PyObject*, PyObject*) {
  const NoCollection by_allocations;  // finalizers may change the tables
  Ref by_number(PyDict_New());
  if (!by_number) return nullptr;
  const auto add = [&](std::uint64_t number, PyObject* id, const TraceId& trace) {
    if (number == 0 || id == nullptr) return true;
    const Ref key(PyLong_FromUnsignedLongLong(number));
    const Ref pair(pair_of(id, trace));
    return key && pair && PyDict_SetItem(by_number.get(), key.get(), pair.get()) == 0;
  };
  const auto add_known = [&](const Known& known) { return add(known.number, known.id, known.trace); };
  if (!g_open.for_each([&](const RequestObject& one) { return add(one.number, one.id, one.parent.trace); }) ||
      !std::all_of(std::begin(g_ended), std::end(g_ended), add_known) ||
      !std::all_of(std::begin(g_begun), std::end(g_begun), add_known))
    return nullptr;
  return by_number.release();
}

}  // namespace

void add_open(RequestObject& request) noexcept {
  request.generation = Recorder::get().generation();
  g_open.add(request);
  if (request.is_root) g_roots.add(request);
}

void remove_open(RequestObject& request) noexcept {
  g_open.remove(request);
  if (std::exchange(request.is_root, false)) g_roots.remove(request);
}

RequestObject* find_open(std::uint64_t number) noexcept {
  const std::uint64_t hash = mixed(number);
  return g_open.find(hash, [&](const RequestObject& one) { return one.number == number && is_alive(one); });
}

RequestObject* find_root(const TraceId& trace, const SentHop& hop) noexcept {
  // In a forked child, the requests of the parent do not go on.
  const std::uint32_t generation = Recorder::get().generation();
  return g_roots.find(hash_of_trace(trace), [&](const RequestObject& one) {
    return one.parent.trace.high == trace.high && one.parent.trace.low == trace.low && one.generation == generation &&
           is_alive(one) && is_id_of(hop, Utf8(one.id).view());
  });
}

void remember_begun(const RequestObject& request) noexcept { remember(g_begun[request.number % kMostBegun], request); }

void remember_ended(const RequestObject& request) noexcept { remember(g_ended[g_ends++ % kMostEnded], request); }

void list_finished(RequestObject& request, std::uint64_t end_ticks, SegmentStatus status) noexcept {
  request.listed = ++g_listed;
  replace(finished_at(request.listed), {Py_NewRef(request.id), Py_XNewRef(request.metadata), nullptr, request.number,
                                        request.parent.trace, request.begin_ticks, end_ticks, status});
}

PyObject* metadata_of(RequestObject& request) noexcept {
  if (request.metadata != nullptr) return request.metadata;
  Finished* const place = place_of(request);  // what is added later is also seen there
  if (place != nullptr && place->metadata != nullptr) return request.metadata = Py_NewRef(place->metadata);
  request.metadata = PyDict_New();
  if (place != nullptr) place->metadata = Py_XNewRef(request.metadata);
  return request.metadata;
}

bool is_repeated_hop(std::uint64_t hop) noexcept {
  if (const std::uint32_t generation = Recorder::get().generation(); generation != g_hops_generation) {
    g_hops_generation = generation;
    for (Hop& one : g_hops) one = {};
    for (std::uint16_t& chain : g_hop_chains) chain = 0;
  }
  for (std::uint16_t at = chain_of_hop(hop); at != 0; at = g_hops[at - 1].next)
    if (g_hops[at - 1].id == hop) return true;
  const std::size_t place = g_next_hop++ % kMostHops;
  Hop& taken = g_hops[place];
  const auto index = static_cast<std::uint16_t>(place + 1);
  if (taken.id != 0) {
    std::uint16_t* at = &chain_of_hop(taken.id);
    while (*at != index) at = &g_hops[*at - 1].next;
    *at = taken.next;
  }
  std::uint16_t& chain = chain_of_hop(hop);
  taken = {hop, chain};
  chain = index;
  return false;
}

PyObject* text_of_trace(const TraceId& trace) noexcept {
  if ((trace.high | trace.low) == 0) return Py_NewRef(Py_None);
  char text[kTraceParentBytes];
  write_traceparent({trace, 0, 0}, text);
  return PyUnicode_FromStringAndSize(text + 3, 32);
}

PyMethodDef g_request_table_functions[] = {
    {"request_known", request_known, METH_O, nullptr},
    {"requests_known", requests_known, METH_NOARGS, nullptr},
    {"requests_finished", requests_finished, METH_NOARGS, nullptr},
    {"requests_forget_finished", requests_forget_finished, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace stagespan::python
