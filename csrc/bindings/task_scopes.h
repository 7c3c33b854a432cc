// task_scopes.h: the scopes of a thread's tasks and greenlets.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "context_variables.h"
#include "stagespan/thread_state.h"

namespace stagespan::python {

struct TaskScope : Scope {
  Inherited stored;           // the inherited value of the context
  TaskScope* next = nullptr;  // in its chain of the table, or in a list of scopes that have left the table
  // When a span last began or ended here: the thread's count of contexts that were entered or left, and the span that
  // was innermost. A span whose id is not higher than `suspended_id` has let other code run.
  std::uint64_t turn = 0;
  std::uint64_t innermost_id = 0;
  std::uint64_t suspended_id = 0;
};

/// The scopes of a thread's tasks by the address of their context: a hash table of chains. It is not one of the
/// standard library's because spans are opened without exceptions: if memory is exhausted, a scope is not made and
/// the table does not grow.
class TaskScopes final : public ScopeTable {
 public:
  /// Allocates the first scope, so that a task that begins while there is no memory is timed too.
  TaskScopes() : spare_(new (std::nothrow) TaskScope), spare_count_(spare_ != nullptr ? 1 : 0) {}

  ~TaskScopes() override {
    for (std::size_t i = 0; i < bucket_count_; ++i) delete_all(buckets_[i]);
    delete_all(spare_);
    if (buckets_ != first_buckets_) delete[] buckets_;
  }

  TaskScope* find(const void* context) {
    TaskScope* scope = bucket_of(context);
    while (scope != nullptr && scope->context != context) scope = scope->next;
    return scope;
  }

  /// Null if there is no memory.
  TaskScope* add(PyObject* context) {
    TaskScope* scope = spare_;
    if (scope == nullptr) {
      scope = new (std::nothrow) TaskScope;
      if (scope == nullptr) return nullptr;
    } else {
      spare_ = scope->next;
      --spare_count_;
      *scope = TaskScope{};
    }
    // The context stays alive while its scope does, so that no other context gets its address.
    scope->context = Py_NewRef(context);
    scope->is_task = true;
    scope->takes_turns = true;
    if (2 * size_ >= bucket_count_) grow();  // so that few chains are longer than one
    link(*scope);
    ++size_;
    return scope;
  }

  void remove(TaskScope& scope) {
    TaskScope** at = &bucket_of(scope.context);
    while (*at != &scope) at = &(*at)->next;
    *at = scope.next;
    --size_;
    recycle(scope);
  }

  /// Whether `take_left_behind` would search.
  bool may_have_left_behind() const noexcept { return size_ >= next_search_; }

  /// Removes empty scopes that were not dropped, for example because another thread ended their spans, and returns them
  /// as a list for `recycle`. Searches only if there are twice as many scopes as after the last search.
  TaskScope* take_left_behind() {
    if (!may_have_left_behind()) return nullptr;
    TaskScope* taken = nullptr;
    for (std::size_t i = 0; i < bucket_count_; ++i) {
      TaskScope** at = &buckets_[i];
      while (TaskScope* const scope = *at) {
        if (scope->top != scope->root || scope->holds != 0) {
          at = &scope->next;
          continue;
        }
        *at = scope->next;
        --size_;
        scope->next = taken;
        taken = scope;
      }
    }
    next_search_ = std::max<std::size_t>(64, 2 * size_);
    return taken;
  }

  /// Keeps a scope that has left the table for the next task. Dropping the last reference to its context may run code
  /// of the program.
  void recycle(TaskScope& scope) {
    auto* const context = static_cast<PyObject*>(const_cast<void*>(scope.context));
    if (spare_count_ < 64) {
      scope.next = spare_;
      spare_ = &scope;
      ++spare_count_;
    } else {
      delete &scope;
    }
    Py_XDECREF(context);
  }

 private:
  static constexpr std::size_t kFirstBuckets = 16;  // a power of two, as each larger number

  TaskScope*& bucket_of(const void* context) {
    // The low bits of an address are those of the allocator's alignment. Multiplying mixes the others upwards.
    const std::uint64_t hash = (reinterpret_cast<std::uintptr_t>(context) >> 4) * 0x9e3779b97f4a7c15;
    return buckets_[(hash >> 32) & (bucket_count_ - 1)];
  }

  void link(TaskScope& scope) {
    TaskScope*& bucket = bucket_of(scope.context);
    scope.next = bucket;
    bucket = &scope;
  }

  static void delete_all(TaskScope* scope) {
    while (scope != nullptr) delete std::exchange(scope, scope->next);
  }

  void grow() {
    TaskScope** const larger = new (std::nothrow) TaskScope*[2 * bucket_count_]{};
    if (larger == nullptr) return;  // the chains become longer
    TaskScope** const before = std::exchange(buckets_, larger);
    const std::size_t count_before = std::exchange(bucket_count_, 2 * bucket_count_);
    for (std::size_t i = 0; i < count_before; ++i) {
      while (TaskScope* const scope = before[i]) {
        before[i] = scope->next;
        link(*scope);
      }
    }
    if (before != first_buckets_) delete[] before;
  }

  TaskScope* first_buckets_[kFirstBuckets] = {};
  TaskScope** buckets_ = first_buckets_;
  std::size_t bucket_count_ = kFirstBuckets;
  std::size_t size_ = 0;
  TaskScope* spare_;
  std::size_t spare_count_;
  std::size_t next_search_ = 64;
};

/// Null until `make_task_scopes`.
inline TaskScopes* task_scopes(ThreadState& thread) { return static_cast<TaskScopes*>(thread.scopes.get()); }

/// Null if there is no memory.
inline TaskScopes* make_task_scopes(ThreadState& thread) {
  if (!thread.scopes) thread.scopes.reset(new (std::nothrow) TaskScopes);
  return task_scopes(thread);
}

inline TaskScope* find_task_scope(ThreadState& thread, const void* context) {
  TaskScopes* const scopes = task_scopes(thread);
  return scopes == nullptr ? nullptr : scopes->find(context);
}

}  // namespace stagespan::python
