// recorder_requests.cpp: the requests in this process, their chunks, and the links of batches to them.
#include <algorithm>
#include <new>
#include <utility>

#include "recorder.h"
#include "text.h"

namespace stagespan {

namespace {

constexpr auto relaxed = std::memory_order_relaxed;

}  // namespace

void Recorder::record_ticks(std::uint32_t stage, std::uint64_t begin_ticks, std::uint64_t end_ticks,
                            std::uint64_t request) noexcept {
  ThreadState& thread = this_thread();
  if (thread.is_stand_in()) return lose(kLostMemory);
  commit_span(thread, {begin_ticks, end_ticks, ++thread.next_id, 0, request, 0, 0, stage, kNoStage, 0, 0});
}

void Recorder::record_wait(std::uint32_t stage, std::uint64_t sent_ticks, std::uint64_t work_ticks,
                           std::uint64_t received_ticks, std::uint64_t entered_ticks, std::uint64_t request) noexcept {
  std::uint64_t ticks = ticks_between(received_ticks, entered_ticks);
  if (was_behind_others(sent_ticks, work_ticks, received_ticks)) ticks += work_ticks - sent_ticks;
  // One span, so that it counts once everywhere. The hand-off, which lies between the two parts, is before it.
  record_ticks(stage, entered_ticks - ticks, entered_ticks, request);
}

// Whether a finished span is work for a request, in one piece.
bool Recorder::is_work(const SpanRecord& record) const noexcept {
  const StageKind kind = kind_of(record.stage.load(relaxed));
  const bool is_of_request = kind == kBatch || (kind == kExecution && record.request.load(relaxed) != 0);
  return is_of_request && record.suspended_ticks.load(relaxed) == 0 &&
         (record.flags.load(relaxed) & kFlagRecorded) == 0;
}

std::uint64_t Recorder::last_work(ThreadState& thread, std::uint64_t request, std::uint64_t since_ticks) noexcept {
  if (thread.ring == nullptr) return 0;
  if (thread.work_head > thread.head) thread.work_head = 0;  // of another arena
  const std::uint64_t oldest = std::max(thread.work_head, thread.head - std::min(thread.head, thread.ring_mask + 1));
  bool has_own = false;
  for (std::uint64_t number = thread.head; number > oldest; --number) {
    const SpanRecord& record = thread.ring[(number - 1) & thread.ring_mask];
    const std::uint64_t end_ticks = record.end_ticks.load(relaxed), of = record.request.load(relaxed);
    // The records are in the order of their ends, except those with times of other code.
    if (end_ticks <= since_ticks && (record.flags.load(relaxed) & kFlagRecorded) == 0) return 0;
    if (!is_work(record)) continue;
    if (of != 0 && of == request) {
      has_own = true;  // for other requests, it is work for others
      continue;
    }
    thread.work_ticks = end_ticks;
    thread.work_request = of;
    thread.work_head = has_own ? number : thread.head;
    return end_ticks;
  }
  if (!has_own) thread.work_head = thread.head;
  return last_work_in_turns(thread, request);
}

std::uint64_t Recorder::last_work_in_turns(const ThreadState& thread, std::uint64_t request) const noexcept {
  return thread.work_request == 0 || thread.work_request != request ? thread.work_ticks : 0;
}

void Recorder::note_work(ThreadState& thread, std::uint64_t since_id) noexcept {
  if (thread.ring == nullptr || thread.head == 0) return;
  const SpanRecord& record = thread.ring[(thread.head - 1) & thread.ring_mask];
  if (record.id.load(relaxed) <= since_id || !is_work(record)) return;
  thread.work_ticks = record.end_ticks.load(relaxed);
  thread.work_request = record.request.load(relaxed);
}

std::uint32_t Recorder::begin_segment(std::uint64_t number, const SegmentFields& start) noexcept {
  if (!arena_ || number == 0) return 0;
  this_thread();  // the recording begins before the first entry is written
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  std::uint32_t index = header.segment_entries;
  while (index == header.segment_entries && segments_taken_ != segments_freed_) {
    const std::uint32_t free = free_segments_[segments_taken_++ % header.segment_entries];
    is_free_segment_[free] = false;
    const SegmentEntry& found = arena_.segments()[free];
    const bool is_open_again = found.number.load(relaxed) != 0 && found.end_ticks.load(relaxed) == 0;
    if (!is_open_again) index = free;
  }
  if (index == header.segment_entries) {
    // The newest requests are shown.
    index = next_displaced_++ % header.segment_entries;
    lose(kLostRequests);
  }
  claim_piece_locked(header.segment_pieces, kRegionSegments, index, kSegmentsAtOnce);
  SegmentEntry& entry = arena_.segments()[index];
  entry.number.store(0, relaxed);
  store_fence();  // a reader that sees a field of this segment sees that the previous one has been removed
  entry.store(start);
  entry.entered_ticks.store(start.begin_ticks, relaxed);
  entry.number.store(number, std::memory_order_release);
  SingleWriter::add(header.changes, std::uint64_t{1});
  if (header.segment_high_water.load(relaxed) <= index)
    header.segment_high_water.store(index + 1, std::memory_order_release);
  return index;
}

SegmentEntry* Recorder::segment(std::uint64_t number, std::uint32_t index) noexcept {
  if (!arena_ || number == 0 || index >= arena_.header().segment_entries) return nullptr;
  SegmentEntry& entry = arena_.segments()[index];
  return entry.number.load(relaxed) == number ? &entry : nullptr;
}

void Recorder::enter_segment(std::uint64_t number, std::uint32_t index, std::uint32_t queue_stage) noexcept {
  const std::uint64_t now = now_ticks();
  std::uint64_t received_ticks = 0, sent_ticks = 0, work_ticks = 0;
  {
    const std::lock_guard lock(cold_);
    SegmentEntry* const entry = segment(number, index);
    if (entry == nullptr) return;
    SingleWriter::add(arena_.header().changes, std::uint64_t{1});
    entry->entered_ticks.store(now, relaxed);
    entry->end_ticks.store(0, relaxed);
    if (entry->begin_ticks.load(relaxed) != 0) return;
    entry->begin_ticks.store(now, std::memory_order_release);
    if (entry->origin.load(relaxed) != kOriginRepeated) received_ticks = entry->received_ticks.load(relaxed);
    sent_ticks = entry->sent_ticks.load(relaxed);
    work_ticks = entry->work_ticks.load(relaxed);
  }
  if (received_ticks != 0) record_wait(queue_stage, sent_ticks, work_ticks, received_ticks, now, number);
}

std::uint64_t Recorder::end_segment(std::uint64_t number, std::uint32_t index, SegmentStatus status,
                                    std::uint32_t remote_stage) noexcept {
  const std::uint64_t end_ticks = now_ticks();
  std::uint64_t begin_ticks = 0;
  {
    const std::lock_guard lock(cold_);
    SegmentEntry* const entry = segment(number, index);
    if (entry == nullptr || entry->end_ticks.load(relaxed) != 0) return end_ticks;
    if (entry->status.load(relaxed) == kStatusOpen) entry->status.store(status, relaxed);
    if (entry->origin.load(relaxed) == kOriginRemote) begin_ticks = entry->entered_ticks.load(relaxed);
    // Release: a reader that sees the end sees the status.
    entry->end_ticks.store(end_ticks, std::memory_order_release);
    SingleWriter::add(arena_.header().changes, std::uint64_t{1});
    if (!std::exchange(is_free_segment_[index], true))
      free_segments_[segments_freed_++ % arena_.header().segment_entries] = index;
  }
  if (begin_ticks != 0 && remote_stage != kNoStage) record_ticks(remote_stage, begin_ticks, end_ticks, number);
  return end_ticks;
}

void Recorder::count_request(CountedRequest& counted, std::uint32_t pipeline, SegmentStatus status,
                             std::uint64_t ticks) noexcept {
  if (!arena_ || status < kStatusOk || status > kStatusAbandoned) return;
  // A reset clears blocks under the lock, and readers take none: so each addition is atomic in itself.
  const std::lock_guard lock(cold_);
  ArenaHeader& header = arena_.header();
  const std::uint32_t resets = header.resets.load(relaxed);
  if (counted.stage != 0 && counted.resets == resets) take_back_locked(counted);
  counted = {};
  if (StatsBlock* const block = request_block_locked(pipeline, status, counted.stage)) {
    add_span<ManyWriters>(*block, {ticks, 0, 0, kNoStage, status == kStatusError});
    counted.ticks = ticks;
    counted.resets = resets;
  }
  // Last, so that a reader that sees this change sees the figures.
  SingleWriter::add(header.changes, std::uint64_t{1});
}

// The figures of the requests of a pipeline with a status. Null if there is no place for them, which is counted.
StatsBlock* Recorder::request_block_locked(std::uint32_t pipeline, SegmentStatus status,
                                           std::uint32_t& stage) noexcept {
  std::uint32_t name = pipeline;
  try {
    if (kind_of(pipeline) != kRequestOk)
      name = kStageOverflow;  // the table of names was full, or it is not a name
    else if (status != kStatusOk)
      name = intern_locked(name_of(pipeline), static_cast<StageKind>(kRequestOk + (status - kStatusOk)));
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
    return nullptr;
  }
  const std::uint32_t others = arena_.slot(kSharedSlot).stats[kStageOverflow].load(relaxed);
  const std::uint32_t block = name != kStageOverflow ? shared_block_locked(name) : others;
  if (block == others) {
    lose(name == kStageOverflow ? kLostNames : kLostBlocks);
    return nullptr;
  }
  stage = name;
  return &arena_.blocks()[(block & ~kSharedBlock) - 1];
}

void Recorder::take_back_locked(const CountedRequest& counted) noexcept {
  const std::uint32_t index = arena_.slot(kSharedSlot).stats[counted.stage].load(relaxed) & ~kSharedBlock;
  if (index == 0) return;
  StatsBlock& block = arena_.blocks()[index - 1];
  ManyWriters::add(block.edges[0].count, ~std::uint64_t{0});
  ManyWriters::add(block.edges[0].sum_ticks, ~counted.ticks + 1);
  ManyWriters::add(block.buckets[bucket_of(counted.ticks)], ~0U);
  if (kind_of(counted.stage) == kRequestError) ManyWriters::add(block.errors, ~std::uint64_t{0});
}

void Recorder::set_segment_status(std::uint64_t number, std::uint32_t index, SegmentStatus status) noexcept {
  const std::lock_guard lock(cold_);
  SegmentEntry* const entry = segment(number, index);
  if (entry == nullptr) return;
  entry->status.store(status, relaxed);
  SingleWriter::add(arena_.header().changes, std::uint64_t{1});
}

// False if the thread can count nothing.
bool Recorder::note_chunk(SegmentEntry& entry, std::uint64_t amount, std::uint64_t now) noexcept {
  entry.last_chunk_ticks.store(now, relaxed);
  entry.chunks.store(entry.chunks.load(relaxed) + 1, relaxed);
  entry.chunk_amount.store(entry.chunk_amount.load(relaxed) + amount, relaxed);
  ThreadState& thread = this_thread();
  if (thread.is_stand_in()) return false;
  if (thread.slot != nullptr)
    SingleWriter::add(thread.slot->chunks, std::uint64_t{1});
  else
    ManyWriters::add(arena_.slot(kSharedSlot).chunks, std::uint64_t{1});
  return true;
}

void Recorder::count_figure(std::uint32_t stage, std::uint64_t ticks) noexcept {
  add_figures(*t_state, stage, {ticks, 0, 0, kNoStage, false});
}

void Recorder::add_first_chunk(SegmentEntry& entry, std::uint64_t amount, std::uint32_t stage,
                               std::uint32_t part_stage) noexcept {
  const std::uint64_t now = now_ticks();
  entry.first_chunk_ticks.store(now, relaxed);
  const std::uint64_t part_ticks = entry.begin_ticks.load(relaxed), request_ticks = entry.request_ticks.load(relaxed);
  if (!note_chunk(entry, amount, now) || part_ticks == 0) return;
  count_figure(part_stage, ticks_between(part_ticks, now));
  if (request_ticks != 0)
    count_figure(stage, ticks_between(request_ticks, now));
  else
    lose(kLostFirstChunk);
}

void Recorder::add_chunk(SegmentEntry& entry, std::uint64_t amount, std::uint32_t between_stage,
                         std::uint32_t amount_stage) noexcept {
  const std::uint64_t now = now_ticks();
  const std::uint64_t before = entry.last_chunk_ticks.load(relaxed);
  if (!note_chunk(entry, amount, now) || before == 0) return;
  const std::uint64_t ticks = ticks_between(before, now);
  count_figure(between_stage, ticks);
  // The first chunk's time contains the work before it, so it says nothing about a token.
  if (amount != 0) count_figure(amount_stage, ticks / amount);
}

std::uint32_t Recorder::record_field(std::string_view name) noexcept {
  if (!arena_) return kMostFields;
  const std::lock_guard lock(cold_);
  const auto known = std::find(field_names_.begin(), field_names_.end(), cut(name, kFieldNameBytes));
  const auto number = static_cast<std::uint32_t>(known - field_names_.begin());
  if (known != field_names_.end() || number == kMostFields) return number;
  try {
    field_names_.emplace_back(cut(name, kFieldNameBytes));
  } catch (const std::bad_alloc&) {
    lose(kLostMemory);
    return kMostFields;
  }
  show_field_names(number);
  return number;
}

// Those from `first` on: another process may be reading the earlier ones.
void Recorder::show_field_names(std::size_t first) noexcept {
  ArenaHeader& header = arena_.header();
  for (std::size_t i = first; i < field_names_.size(); ++i)
    set_text(header.field_names[i], kFieldNameBytes, field_names_[i]);
  // Release: a reader that sees the count sees the names.
  header.field_count.store(static_cast<std::uint32_t>(field_names_.size()), std::memory_order_release);
}

void Recorder::write_fields(std::uint64_t number, std::uint32_t index, const RequestFields& fields) noexcept {
  const std::lock_guard lock(cold_);
  if (segment(number, index) == nullptr) return;
  ArenaHeader& header = arena_.header();
  claim_piece_locked(header.fields_pieces, kRegionFields, index, kSegmentsAtOnce);
  FieldsEntry& entry = arena_.fields()[index];
  entry.number.store(0, relaxed);
  store_fence();  // a reader that sees a field of this request sees that the previous ones have been removed
  entry.store(fields);
  entry.number.store(number, std::memory_order_release);
  SingleWriter::add(header.changes, std::uint64_t{1});
}

void Recorder::add_failure(const FailureFields& failure) noexcept {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  append_locked<FailureRecord>(failure);
}

bool Recorder::add_sent(SentFields sent, std::uint64_t before) noexcept {
  constexpr std::uint64_t kMostSearched = 64;
  if (!arena_ || sent.stage >= kMaxStages) return true;
  const RingView<SentRecord> ring = arena_.ring_of<SentRecord>();
  const std::uint64_t head = ring.head.load(relaxed);
  for (std::uint64_t number = head; before != 0 && number-- > head - std::min(head, kMostSearched);) {
    SentRecord& record = ring[number];
    if (record.hop.load(relaxed) != before || record.stage.load(relaxed) != sent.stage) continue;
    sent.count = record.count.load(relaxed);
    write_record(record, number, sent);
    arena_.header().changes.fetch_add(1, relaxed);
    return false;
  }
  if (!sent_counts_) sent_counts_.reset(new (std::nothrow) std::uint64_t[kMaxStages]());
  if (!sent_counts_) {
    lose(kLostMemory);
    return true;
  }
  if (head % ring.capacity % kSharedRingSizes[kSentRing].at_once() == 0) {
    const std::lock_guard lock(cold_);
    claim_record_locked(ring, head);
  }
  sent.count = ++sent_counts_[sent.stage];
  write_record(ring[head], head, sent);
  ring.head.store(head + 1, std::memory_order_release);
  return true;
}

void Recorder::count_batch(std::uint32_t stage, std::uint32_t batch_size, std::uint64_t span,
                           const std::uint64_t* requests, std::uint32_t count) noexcept {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  count_amount_locked(stage, kBatchSizeKey, batch_size);
  add_links_locked(span, requests, count, batch_size);
}

void Recorder::add_links(std::uint64_t span, const std::uint64_t* requests, std::uint32_t count,
                         std::uint32_t batch_size) noexcept {
  if (!arena_) return;
  const std::lock_guard lock(cold_);
  add_links_locked(span, requests, count, batch_size);
}

void Recorder::add_links_locked(std::uint64_t span, const std::uint64_t* requests, std::uint32_t count,
                                std::uint32_t batch_size) noexcept {
  const RingView<LinkRecord> ring = arena_.ring_of<LinkRecord>();
  for (std::uint32_t i = 0; i < count; ++i) {
    if (ring.head.load(relaxed) >= ring.capacity) lose(kLostLinks);
    append_locked<LinkRecord>({span, requests[i], batch_size});
  }
}

}  // namespace stagespan
