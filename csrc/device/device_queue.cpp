// device_queue.cpp: takes events from a thread's pool, and returns them to it.
#include "device_queue.h"

#include <algorithm>
#include <new>
#include <utility>

namespace stagespan::device {

bool DeviceQueue::is_due(std::uint32_t stage, std::uint32_t every) noexcept {
  if (every == 1) return true;
  if (every == 0) return false;
  std::uint32_t& seen = seen_[stage];
  const bool due = seen == 0;
  seen = seen + 1 >= every ? 0 : seen + 1;
  return due;
}

DeviceQueue::ContextEvents* DeviceQueue::events_of(void* context) noexcept {
  for (std::uint32_t i = 0; i < context_count_; ++i)
    if (contexts_[i].context == context) return &contexts_[i];
  if (context_count_ == kContexts) {
    // Contexts can be destroyed, so replace one that has no free events here.
    const auto empty = std::find_if(contexts_.begin(), contexts_.end(),
                                    [](const ContextEvents& events) { return events.free == nullptr; });
    if (empty == contexts_.end()) return nullptr;
    empty->context = context;
    return &*empty;
  }
  contexts_[context_count_] = {context, nullptr};
  return &contexts_[context_count_++];
}

void DeviceQueue::collect() noexcept {
  for (EventPair* pair = nullptr; returned_.pop(pair);) put_back(*pair);
}

void DeviceQueue::put_back(EventPair& pair) noexcept {
  ContextEvents* const events = events_of(pair.stream.context);
  EventPair*& free = events != nullptr ? events->free : strays_;
  pair.next = std::exchange(free, &pair);
}

void DeviceQueue::adopt(EventPair& pair) noexcept {
  pair.home = this;
  owned_.fetch_add(1, std::memory_order_relaxed);
  put_back(pair);
}

EventPair* DeviceQueue::release_free() noexcept {
  collect();
  EventPair* all = nullptr;
  const auto release = [&](EventPair*& free) {
    while (EventPair* const pair = free) {
      free = pair->next;
      pair->next = std::exchange(all, pair);
      lose_one();
    }
  };
  for (std::uint32_t i = 0; i < context_count_; ++i) release(contexts_[i].free);
  release(strays_);
  return all;
}

bool DeviceQueue::spares_one() noexcept {
  if (owned_.load(std::memory_order_relaxed) <= kPairsToKeep) return false;
  lose_one();
  return true;
}

EventPair* DeviceQueue::give_up_one() noexcept {
  collect();
  EventPair** free = &strays_;
  for (std::uint32_t i = 0; i < context_count_ && *free == nullptr; ++i) free = &contexts_[i].free;
  EventPair* const pair = *free;
  if (pair == nullptr) return nullptr;
  *free = pair->next;
  lose_one();
  return pair;
}

EventPair* DeviceQueue::take(const StreamRef& where) noexcept {
  ContextEvents* events = events_of(where.context);
  if (events == nullptr) return nullptr;
  if (events->free == nullptr) {
    collect();
    events = events_of(where.context);  // which was empty, and may belong to another context now
    if (events == nullptr || events->free == nullptr) return nullptr;
  }
  EventPair* const pair = events->free;
  events->free = pair->next;
  pair->stream = where;
  return pair;
}

EventPair* DeviceQueue::make(const StreamRef& where, EventBackend& backend,
                             std::atomic<std::uint32_t>& in_process) noexcept {
  is_refused_ = false;
  if (!has_room() || events_of(where.context) == nullptr) return nullptr;
  if (in_process.fetch_add(1, std::memory_order_relaxed) >= kPairsPerProcess) {
    in_process.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  auto* const pair = new (std::nothrow) EventPair;
  if (pair != nullptr) {
    pair->begin = backend.create_event(where);
    pair->end = pair->begin != nullptr ? backend.create_event(where) : nullptr;
  }
  if (pair == nullptr || pair->end == nullptr) {
    if (pair != nullptr && pair->begin != nullptr) backend.destroy_event(pair->begin);
    delete pair;
    in_process.fetch_sub(1, std::memory_order_relaxed);
    is_refused_ = true;
    return nullptr;
  }
  owned_.fetch_add(1, std::memory_order_relaxed);
  pair->home = this;
  pair->stream = where;
  return pair;
}

}  // namespace stagespan::device
