// recorder.h: the recorder of this process: switches, names, threads, and spans outside the stacks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "clock.h"
#include "layout.h"
#include "mode.h"
#include "published_clock.h"
#include "reader.h"
#include "recording_file.h"
#include "span_path.h"
#include "thread_state.h"

namespace stagespan {

/// An open span that is not in any thread's stack: a token, or a coroutine between two turns.
struct DetachedSpan {
  FinishedSpan span;
  std::uint32_t shown_at;  // 1 + index among the arena's detached frames; 0 if it is not shown
  void* device = nullptr;  // its events, if any
};

/// A frame that was open in a thread when it was found.
struct FoundFrame {
  ThreadState* thread = nullptr;
  OpenFrame* frame = nullptr;
  std::uint64_t id = 0;      // the frame may by now belong to another span or to none
  std::uint64_t serial = 0;  // of the thread

  explicit operator bool() const noexcept { return frame != nullptr; }
};

/// The open span that work is added to; none if its id is 0.
struct WorkingSpan {
  std::uint64_t id = 0;
  std::uint64_t begin_ticks = 0;
  OpenFrame* frame = nullptr;  // null if it is not one of the calling thread
  std::uint64_t request = 0;   // if there is no span: the request that is current, or 0
};

/// What the figures of requests contain of one.
struct CountedRequest {
  std::uint32_t stage = 0;  // of its pipeline and status; 0 if it was not counted
  std::uint64_t ticks = 0;
  std::uint32_t resets = 0;  // how often the figures had been reset
};

class Recorder {
 public:
  /// Starts the recorder on first use. It is never destroyed, because threads may outlive static destructors.
  static Recorder& get();

  ArenaView arena() const noexcept { return arena_; }

  /// Index of a stage. A name has the same index until the process ends. If the table is full, or there is no memory
  /// for a new name, names get `kStageOverflow` and are counted. Names longer than 255 bytes are cut, and end with a
  /// hash of the whole name to keep them distinct.
  std::uint32_t intern(std::string_view name, StageKind kind = kExecution) noexcept;
  /// The same for a name that another process has chosen. If it is not the name of a stage yet, it becomes one only
  /// while such names have at most `kMostForeignNames` places; further ones share `kForeignName`, and are counted.
  std::uint32_t intern_foreign(std::string_view name, StageKind kind) noexcept;
  /// The stage of a pipeline of requests, in the same way for at most `kMostPipelines` names. In all kinds, the names
  /// are those that kRequestOk has places for.
  std::uint32_t intern_pipeline(std::string_view name, StageKind kind) noexcept;
  /// The text stays at the same address until the process ends.
  std::string_view name_of(std::uint32_t stage) const noexcept;
  StageKind kind_of(std::uint32_t stage) const noexcept;
  std::vector<std::string> names() const;

  /// Adds to a work counter of a stage, and to the amounts of the span or request that has done the work. If a sum
  /// would exceed the largest double, it stays at that value. When the span or request ends, its amounts are counted.
  void add_work(std::uint32_t stage, std::string_view key, std::int64_t whole, double fraction,
                WorkingSpan span = {}) noexcept;
  /// Adds what the kernel has done for a span that ends to its amounts and to the counters of its stage. It is not in
  /// the distributions, nor in the work of the request, where nested spans would count it twice.
  void add_system_counts(const FinishedSpan& span, const SystemCounts& counts) noexcept;
  /// Counts the amounts of a finished span in the distributions of its stage, and adds them to its request.
  void count_span_work(const FinishedSpan& span) noexcept;
  bool has_request_work(std::uint64_t request) const noexcept { return request_work_.may_have(request); }
  /// Counts the amounts of the spans of a request that has ended in the distributions of its pipeline. `tokens` are
  /// those of its chunks, which are counted if its spans have not added any.
  void count_request_work(std::uint64_t request, std::uint32_t pipeline, std::uint64_t tokens) noexcept;
  /// Adds the amounts of a request that has ended to those of the one around it.
  void pass_request_work(std::uint64_t request, std::uint64_t outer) noexcept;

  /// The calling thread's state, created with its first span. If there is no memory for it, returns a replacement that
  /// all such threads share until they get their own; their spans are counted as lost.
  ThreadState& this_thread() noexcept {
    ThreadState* thread = t_state;
    return thread != nullptr ? *thread : attach();
  }
  ThreadState& attach() noexcept;
  void detach(ThreadState* thread) noexcept;

  /// A shared or own statistics block of a stage; see ThreadSlot::stats for the result.
  std::uint32_t claim_block(ThreadState& thread, std::uint32_t stage) noexcept;

  /// Opens a span outside the stack, as a child of the innermost span of the calling thread.
  DetachedSpan open_detached(std::uint32_t stage, std::uint16_t flags);
  /// Shows an open span among the detached ones.
  std::uint32_t show_detached(const FinishedSpan& span, std::uint32_t thread) noexcept;
  void hide_detached(std::uint32_t shown_at) noexcept;
  /// Ends it, and records it in the calling thread's ring.
  void close_detached(DetachedSpan& detached, std::uint16_t flags);

  /// The innermost frame that `owner_key` opened in a thread other than the calling one.
  FoundFrame find_elsewhere(const void* owner_key) noexcept;
  /// Ends a span that is open in another thread. Returns false and counts it if it has ended in the meantime. Stores
  /// the finished span in `span`, and the note that belongs to the frame in `note`.
  bool close_away(const FoundFrame& found, std::uint16_t flags, FinishedSpan* span = nullptr,
                  void** note = nullptr) noexcept;
  /// The same for a span that will never end, which is not recorded.
  bool drop_away(const FoundFrame& found, void** note) noexcept;

  /// The innermost span in the own code of the thread with this serial, if it belongs to `request`. False if there is
  /// none, or the thread has ended.
  bool innermost_elsewhere(std::uint64_t serial, std::uint64_t request, ParentLink& link);

  /// Calls `function` with the state of the thread with this serial, which cannot end during the call. Does nothing if
  /// it has ended. `function` must not lock the recorder, or run code that could.
  template <class Function>
  void with_thread(std::uint64_t serial, Function function) {
    const std::lock_guard lock(cold_);
    for (ThreadState* const thread : threads_)
      if (thread->serial == serial) return function(*thread);
  }

  /// Records a span that was timed by other code. Returns false and counts it if its times cannot be converted.
  bool record(std::uint32_t stage, std::int64_t begin_ns, std::int64_t end_ns, std::uint16_t flags);

  /// A fresh fit of the clock.
  ClockFit clock_fit() noexcept;
  /// Converts ticks up to now to times that never change. Use it for all times that users see.
  PublishedClock published_clock();
  /// Converts a single time in the same way, without a copy of the clock.
  std::int64_t published_ns(std::uint64_t ticks);
  /// The rate of the clock, from the newest stamps.
  double ns_per_tick() noexcept;
  ClockSource clock_source() const noexcept { return clock_source_; }

  /// Removes everything that was recorded, but keeps names. Spans that are open stay open, and are counted when they
  /// end. A span that ends during the call may be left out, or be in only some figures of a shared block.
  void reset();

  void lose(Cause cause, std::uint64_t n = 1) noexcept {
    if (arena_) count_lost(arena_.header(), cause, n);
  }

  /// The number of forks between the first process and this one.
  std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_relaxed); }

  /// Creates the recording, if no span has done so.
  void begin_recording() noexcept;
  /// Where the recording is, and if it is not in a file, why.
  RecordingPlace recording_place();
  /// Gives the recording a name that readers do not look for. Has no effect once the recording exists.
  void hide_recording() noexcept;
  /// Writes facts about this process to the recording. Texts are cut to the size of their field.
  void describe_process(const ProcessInfo& info) noexcept;
  ProcessInfo process_info() noexcept;
  /// Called when the process exits: notes this in the recording, and removes its file unless it is to be kept.
  void end_recording() noexcept;
  /// Notes in the recording that a signal asks the process to end, or ends it (`is_final`). Async-signal-safe, because
  /// it only stores to memory that is mapped; not to be called in a forked child before its first span.
  void mark_stop(int signal, bool is_final) noexcept;
  /// Called without the lock after a recording was created, by the thread that opens the first span.
  std::atomic<void (*)()> on_recording{nullptr};

  /// Called by a thread that opens a span after another program has written a command.
  std::atomic<void (*)() noexcept> on_command{nullptr};

  /// Called without the lock by a thread that is about to open its first span. Provides its name if it knows a better
  /// one than the system does.
  std::atomic<void (*)(ThreadName& name) noexcept> on_new_thread{nullptr};

  /// Records in the calling thread's ring a span that has ended, for a request. For waits and hops, whose times the
  /// caller has read.
  void record_ticks(std::uint32_t stage, std::uint64_t begin_ticks, std::uint64_t end_ticks,
                    std::uint64_t request) noexcept;

  /// Records in the same way the wait of a message in its queue: behind others, and from received to entered. It counts
  /// as one wait.
  void record_wait(std::uint32_t stage, std::uint64_t sent_ticks, std::uint64_t work_ticks,
                   std::uint64_t received_ticks, std::uint64_t entered_ticks, std::uint64_t request) noexcept;
  /// When the calling thread has last ended work for others than `request`: a span of a request, or a batch, that was
  /// not suspended. 0 if it has not since `since_ticks`. Each record of the ring is searched about once.
  std::uint64_t last_work(ThreadState& thread, std::uint64_t request, std::uint64_t since_ticks) noexcept;
  /// The same where other code may run while a span waits, as in an event loop. The ring does not tell the spans that
  /// were suspended, so it is what `note_work` has noted.
  std::uint64_t last_work_in_turns(const ThreadState& thread, std::uint64_t request) const noexcept;
  /// Notes the span that the calling thread has ended last, if its id is higher than `since_id`, and if it was work.
  void note_work(ThreadState& thread, std::uint64_t since_id) noexcept;

  /// Writes a segment to the recording; see SegmentEntry. Returns the index of its entry. If the entries of all
  /// requests are in use, an open one loses its entry, and is counted.
  std::uint32_t begin_segment(std::uint64_t number, const SegmentFields& start) noexcept;
  /// The entry of a segment, null if it has lost it.
  SegmentEntry* segment(std::uint64_t number, std::uint32_t index) noexcept;
  /// Enters it, again if it has ended and still has its entry.
  void enter_segment(std::uint64_t number, std::uint32_t index, std::uint32_t queue_stage) noexcept;
  /// Ends it, and returns the time of the end. The status is `status` unless one was set before. One that was received
  /// is recorded as a span of `remote_stage`.
  std::uint64_t end_segment(std::uint64_t number, std::uint32_t index, SegmentStatus status,
                            std::uint32_t remote_stage = kNoStage) noexcept;
  /// Counts a request of a pipeline that has ended, also one without an entry. If it was counted before, in `counted`,
  /// because it goes on or has got another status, it is counted instead; the shortest and longest one stay.
  void count_request(CountedRequest& counted, std::uint32_t pipeline, SegmentStatus status,
                     std::uint64_t ticks) noexcept;
  /// Sets the status of a segment that still has its entry.
  void set_segment_status(std::uint64_t number, std::uint32_t index, SegmentStatus status) noexcept;
  /// Adds the first output to a segment, and the times to it to the figures of these stages.
  void add_first_chunk(SegmentEntry& entry, std::uint64_t amount, std::uint32_t stage,
                       std::uint32_t part_stage) noexcept;
  /// Adds a further one, and the figures of the time since the previous one.
  void add_chunk(SegmentEntry& entry, std::uint64_t amount, std::uint32_t between_stage,
                 std::uint32_t amount_stage) noexcept;
  /// Stores the latest value of something. It is lost, and counted, if it is not finite or if there are too many names.
  void set_gauge(std::string_view name, double value) noexcept;
  /// Has the fields of this name recorded from now on. Returns the number of the name, which it keeps until the process
  /// ends; kMostFields if there are others already.
  std::uint32_t record_field(std::string_view name) noexcept;
  /// Writes what the program has said of a request that still has its entry.
  void write_fields(std::uint64_t number, std::uint32_t index, const RequestFields& fields) noexcept;
  /// A type of exceptions, of which at most `kMostExceptionTypes` have a name of their own.
  std::uint32_t intern_exception(std::string_view name) noexcept;
  /// Records the exception that a span or a request has ended with.
  void add_failure(const FailureFields& failure) noexcept;
  /// Records a message that a request has sent; its count is set here. If it is the one of the hop `before`, sent anew,
  /// that one is replaced, and false returned. The interpreter's lock is held.
  bool add_sent(SentFields sent, std::uint64_t before) noexcept;
  /// Counts a batch of `batch_size` requests of a stage, and links its span to the first `count` of them.
  void count_batch(std::uint32_t stage, std::uint32_t batch_size, std::uint64_t span, const std::uint64_t* requests,
                   std::uint32_t count) noexcept;
  /// Links the span of a batch to `count` further ones of its requests.
  void add_links(std::uint64_t span, const std::uint64_t* requests, std::uint32_t count,
                 std::uint32_t batch_size) noexcept;

  /// Gives a thread frames beyond its own ones, which are not shown. False if there is no memory for them.
  bool take_hidden_chunk(ThreadState& thread) noexcept;
  /// Calls `function` with the index of each frame that a thread has used, except the bottom of its own stack. For the
  /// thread itself, and for others while they hold the lock.
  template <class Function>
  void for_each_frame(const ThreadState& thread, Function function) const {
    const std::uint32_t end =
        thread.slot != nullptr ? thread.slot->frames_high_water.load(std::memory_order_relaxed) : thread.frame_capacity;
    for (std::uint32_t index = 1; index < end; ++index) function(index);
    for (std::uint32_t chunk = thread.hidden_chunk; chunk != 0; chunk = next_chunk_[chunk]) {
      const std::uint32_t first = index_of_chunk(thread, chunk);
      for (std::uint32_t index = first; index < first + kHiddenChunkFrames; ++index) function(index);
    }
  }

  /// Reserve memory in the recording before it is first written.
  void reserve_frames(std::uint32_t slot_index, std::uint32_t first) noexcept;
  void reserve_device_ring_locked() noexcept;
  /// Gives a thread its table of CPU times, unless it has no ring.
  void claim_cpu_times(ThreadState& thread) noexcept;
  void reserve_device_stages_locked(std::uint32_t first) noexcept;

  /// Locked while names, slots or blocks change owners. Readers of statistics lock it too.
  std::mutex& cold_mutex() noexcept { return cold_; }

 private:
  Recorder();
  void prepare_arena();
  void follow_clock_locked();
  void watch_for_leaving_threads() noexcept;
  void forget_to_leave() noexcept;
  std::uint32_t intern_locked(std::string_view name, StageKind kind);
  std::uint32_t intern_bounded(std::string_view name, StageKind kind, StageKind counted_kind, std::uint32_t& taken,
                               std::uint32_t most) noexcept;
  void add_work_locked(std::uint32_t stage, std::string_view key, std::int64_t whole, double fraction,
                       WorkingSpan span);
  void add_amount_locked(WorkingSpan span, std::uint32_t key, std::uint64_t value) noexcept;
  void add_counter_locked(std::uint32_t stage, std::uint32_t key, std::int64_t whole, double fraction) noexcept;
  std::uint32_t work_key_locked(std::string_view key);
  void add_open_locked(WorkingSpan span, std::uint32_t key, double amount) noexcept;
  void add_to_request_locked(std::uint64_t request, std::uint32_t key, double amount) noexcept;
  WorkBlock* work_block_locked(std::uint32_t stage, std::uint32_t key);
  void add_links_locked(std::uint64_t span, const std::uint64_t* requests, std::uint32_t count,
                        std::uint32_t batch_size) noexcept;
  void count_amount_locked(std::uint32_t stage, std::uint32_t key, double amount) noexcept;
  void clear_work() noexcept;
  bool take_away_locked(const FoundFrame& found, void** note) noexcept;
  std::uint64_t first_id(std::uint32_t slot_index) const noexcept;
  std::unique_ptr<ThreadState> new_thread() noexcept;
  bool give_own_frames(ThreadState& thread) noexcept;
  std::uint32_t hidden_chunks() const noexcept;
  std::uint32_t index_of_chunk(const ThreadState& thread, std::uint32_t chunk) const noexcept;
  bool take_hidden_chunk_locked(ThreadState& thread) noexcept;
  void give_back_chunks_locked(ThreadState& thread) noexcept;
  std::uint32_t choose_slot_locked() const noexcept;
  void settle(ThreadState& thread, std::uint32_t slot_index) noexcept;
  void prepare_stand_in() noexcept;
  void fold_thread(ThreadSlot& slot) noexcept;
  void free_block_locked(std::uint32_t block) noexcept;
  void free_retired_locked(ThreadState& thread) noexcept;
  std::uint32_t shared_block_locked(std::uint32_t stage) noexcept;
  std::uint32_t take_block_locked() noexcept;
  StatsBlock* request_block_locked(std::uint32_t pipeline, SegmentStatus status, std::uint32_t& stage) noexcept;
  void show_field_names(std::size_t first) noexcept;
  bool note_chunk(SegmentEntry& entry, std::uint64_t amount, std::uint64_t now) noexcept;
  void count_figure(std::uint32_t stage, std::uint64_t ticks) noexcept;
  bool is_work(const SpanRecord& record) const noexcept;
  void take_back_locked(const CountedRequest& counted) noexcept;
  void after_fork() noexcept;
  bool renew_arena_in_child() noexcept;
  void restore_names() noexcept;
  ThreadState& attach_to_slot(bool& begins) noexcept;
  bool start_recording_locked() noexcept;
  void after_start() noexcept;
  bool reserve_locked(Region region, std::uint64_t first, std::uint64_t count) noexcept;
  /// Reserves the elements around one, as many as are reserved at once, unless that was tried before.
  void claim_piece_locked(std::atomic<std::uint8_t>* pieces, Region region, std::uint64_t index,
                          std::uint64_t at_once) noexcept;
  /// The same with the records around one of a ring.
  template <class Record>
  void claim_record_locked(const RingView<Record>& ring, std::uint64_t number) noexcept {
    claim_piece_locked(ring.pieces, region_of(Record::kRing), number % ring.capacity,
                       kSharedRingSizes[Record::kRing].at_once());
  }
  template <class Record>
  void append_locked(const typename Record::Fields& fields) noexcept {
    const RingView<Record> ring = arena_.ring_of<Record>();
    const std::uint64_t number = ring.head.load(std::memory_order_relaxed);
    claim_record_locked(ring, number);
    write_record(ring[number], number, fields);
    ring.head.store(number + 1, std::memory_order_release);
  }
  bool reserve_frames_locked(std::uint32_t slot_index, std::uint32_t first, std::uint32_t count) noexcept;
  void reserve_slot_locked(std::uint32_t slot_index) noexcept;

  ArenaView arena_;
  std::uint64_t arena_bytes_ = 0;
  ArenaOptions arena_sizes_;
  RecordingFile recording_;
  RecordingWish recording_wish_;
  ProcessInfo process_info_{};
  bool is_recording_started_ = false;
  ClockSource clock_source_;
  PublishedClock published_clock_;
  double ns_per_tick_ = 0;  // 0: not known yet
  std::uint64_t rate_ticks_ = 0;
  std::mutex cold_;
  std::unordered_map<std::string, std::uint32_t> stages_;  // by kind (one character) and name
  std::uint32_t foreign_names_ = 0;
  std::uint32_t pipelines_ = 0;
  std::uint32_t exception_types_ = 0;
  std::vector<std::string> field_names_;  // by number
  std::unordered_map<std::string, std::uint32_t> work_keys_;
  std::unordered_map<std::uint64_t, std::uint32_t> work_blocks_;  // by key of a WorkBlock
  OpenWork request_work_;                                         // of open requests, by their numbers
  std::vector<std::uint32_t> free_blocks_;
  std::vector<ThreadState*> threads_;
  ThreadState stand_in_;
  OpenFrame stand_in_frame_{};
  FrameLocal stand_in_local_;
  std::uint32_t slotless_threads_ = 0;
  // Chunks of hidden frames by number, from 1 on. Each has the number of the next one of its thread, or of the free
  // ones.
  std::unique_ptr<std::uint32_t[]> next_chunk_;
  std::uint32_t free_chunk_ = 0;
  std::uint32_t last_chunk_ = 0;  // the highest that was ever used
  // The entries of segments that have ended, or that were never used, in the order in which they are used again.
  std::unique_ptr<std::uint32_t[]> free_segments_;
  std::unique_ptr<bool[]> is_free_segment_;  // whether it is among them
  std::uint64_t segments_freed_ = 0;
  std::uint64_t segments_taken_ = 0;
  std::unique_ptr<std::uint64_t[]> sent_counts_;  // of messages, by the stage of their queue
  std::uint32_t next_displaced_ = 0;              // the next open segment that loses its entry
  std::atomic<std::uint32_t> detached_hint_{0};
  std::atomic<std::uint32_t> generation_{0};
};

}  // namespace stagespan
