// layout.h: the structures of an arena. Threads write them while other threads read them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

/// For functions that every span calls. Otherwise the compiler would pass whole structures in memory.
#define STAGESPAN_HOT [[gnu::always_inline]] inline

namespace stagespan {

// An arena is one block of fixed size that contains everything the core records. It is position-independent: regions
// are found by offsets from its first byte, so a copy of it can be read at any address. It is in the process's own
// memory until the process opens its first span. Then the pieces in use are moved to a file in a tmpfs, at the same
// addresses, and other pieces follow when they are claimed (recording_file.h). * marks regions reserved in pieces.
//
//   +-------------+ 0
//   | ArenaHeader |  magic, version, offset / stride / count of each region, losses, clock stamps, process facts,
//   |             |  and which pieces are in the file
//   +-------------+ regions[kRegionNames]
//   | NameEntry   |  x max_stages, then the name pool; never wraps, so that no record loses its name
//   +-------------+ regions[kRegionWorkKeys], regions[kRegionWork]
//   | work        |  work counters by (stage, key)
//   +-------------+ regions[kRegionDetached]
//   | OpenFrame   |  x max_detached: open spans outside the stacks (tokens, suspended coroutines)
//   +-------------+ regions[kRegionDeviceStages]
//   | number      |  x max_stages: where a stage's device figures are
//   +-------------+ regions[kRegionSlots]
//   | ThreadSlot *|  x (max_threads + 1); the last one is the shared slot
//   +-------------+ regions[kRegionFrames]
//   | OpenFrame  *|  x frames_per_slot x (max_threads + hidden_slots): open spans of each thread. Those of the hidden
//   |             |  slots belong to any thread, are never in a file and are not shown
//   +-------------+ regions[kRegionLocals]
//   | FrameLocal *|  as many: further fields of each frame
//   +-------------+ regions[kRegionRings]
//   | SpanRecord *|  x ring_spans x max_threads: the latest finished spans of each thread
//   +-------------+ regions[kRegionCpuTimes]
//   | CpuTime    *|  x cpu_times_per_slot() x max_threads: the CPU time of the span in the same place of its ring
//   +-------------+ regions[kRegionBlocks]
//   | StatsBlock *|  x max_blocks: figures of one (thread, stage), claimed when first needed
//   +-------------+ regions[kRegionDevice]
//   | DeviceRec. *|  x device_spans: device times of the latest spans, in the resolver's order
//   +-------------+ regions[kRegionDeviceBlocks]
//   | StatsBlock *|  x 3 x max_device_stages: elapsed, queue and tail of a stage
//   +-------------+ regions[kRegionSegments]
//   | SegmentEntry*|  x segment_entries: the latest requests in this process, found through their numbers
//   +-------------+ regions[kRegionFields]
//   | FieldsEntry*|  x segment_entries: what the program has said of the request in the same place
//   +-------------+ regions[kRegionSharedRings + i], for each of STAGESPAN_SHARED_RINGS
//   | records    *|  x capacity: the latest ones that all threads have written
//   +-------------+ regions[kRegionWorkBlocks]
//   | WorkBlock  *|  x kMaxWorkBlocks: distributions by (stage, work key), claimed when first needed
//   +-------------+ size_bytes

inline constexpr std::uint64_t kMagic = 0x4e50534547415453;  // "STAGESPN", read as little endian
inline constexpr std::uint32_t kLayoutVersion = 19;
inline constexpr std::uint32_t kByteOrderMark = 0x01020304;

inline constexpr std::uint32_t kMaxStages = 4096;
inline constexpr std::uint32_t kMaxThreads = 256;
inline constexpr std::uint32_t kSharedSlot = kMaxThreads;
// Slots of exited threads that are kept before one of them is reused. The spans in them can be read.
inline constexpr std::uint32_t kExitedSlotsKept = 32;
inline constexpr std::uint32_t kMaxFrames =
    16384;  // shown, per thread: two for each asyncio task that waits inside a span
inline constexpr std::uint32_t kFewestFrames = 256;
// Frames for the open spans of threads whose own frames are all in use, as many as these slots would have. A thread
// takes them in chunks.
inline constexpr std::uint32_t kHiddenSlots = 128;
inline constexpr std::uint32_t kHiddenChunkFrames = 64;
inline constexpr std::uint32_t kMaxDetached = 4096;
inline constexpr std::uint32_t kMaxBlocks = 8192;
inline constexpr std::uint32_t kMaxNameBytes = 255;
inline constexpr std::uint32_t kNamePoolBytes = kMaxStages * 128;
inline constexpr std::uint32_t kMaxWorkKeys = 256;
inline constexpr std::uint32_t kMaxWork = 4096;
inline constexpr std::uint32_t kWorkKeyBytes = 63;
inline constexpr std::uint32_t kBatchSizeKey = kMaxWorkKeys;  // stands for the number of requests of a batch
inline constexpr std::uint32_t kMaxWorkBlocks = 1024;         // the last one is shared by all further keys
inline constexpr std::uint32_t kDefaultRingSpans = 8192;
inline constexpr std::uint32_t kLeastRingSpans = 64;
inline constexpr std::uint32_t kMostRingSpans = 1U << 20;
inline constexpr std::uint32_t kMaxStamps = 64;
inline constexpr std::uint32_t kDeviceSpans = 1U << 16;
inline constexpr std::uint32_t kMaxDeviceStages = 1024;  // the last one is shared by all further stages
inline constexpr std::uint32_t kDefaultRequests = 4096;
inline constexpr std::uint32_t kFewestRequests = 64;
inline constexpr std::uint32_t kMostRequests = 1U << 16;
inline constexpr std::uint32_t kMostFields = 8;  // of a request
inline constexpr std::uint32_t kFieldNameBytes = 32;
inline constexpr std::uint32_t kFieldTextBytes = 64;
inline constexpr std::uint32_t kMessageBytes = 200;
inline constexpr std::uint32_t kMostExceptionTypes = 256;
inline constexpr std::uint32_t kMostGauges = 64;
inline constexpr std::uint32_t kGaugeNameBytes = 56;
inline constexpr std::uint32_t kRequestIdBytes = 64;
inline constexpr std::uint32_t kBranchBytes = 16;
inline constexpr std::uint32_t kThreadNameBytes = 64;
inline constexpr std::uint32_t kCommandBytes = 2048;
inline constexpr std::uint32_t kAnswerBytes = 4096;

inline constexpr std::uint32_t kPageBytes = 4096;
/// The offset of a slot's first FrameLocal in its pages. Frames begin on a page, and processors confuse addresses with
/// the same offset in two pages: a span takes a fifth longer if both begin at offset 0.
inline constexpr std::uint32_t kLocalsShiftBytes = 2064;

// The number of elements of a region that are reserved in a recording's file at once, in whole pages.
inline constexpr std::uint32_t kFramesAtOnce = 256;
inline constexpr std::uint32_t kBlocksAtOnce = 16;
inline constexpr std::uint32_t kDeviceStagesAtOnce = 16;
inline constexpr std::uint32_t kSegmentsAtOnce = 64;
inline constexpr std::uint32_t kWorkBlocksAtOnce = 4;

/// The distance of two slots' frames in the arrays of frames and of locals. It is the same in both, so that a thread
/// finds a frame and its local by one index, also beyond its own frames. The locals of a slot reach into the next page
/// because of their shift, so there are some frames between two slots that are never used.
constexpr std::uint32_t frames_per_slot(std::uint32_t frames_per_thread) { return frames_per_thread + kFramesAtOnce; }

/// The distance of two slots' CPU times: whole pages, also for the smallest rings.
constexpr std::uint32_t cpu_times_per_slot(std::uint32_t ring_spans) {
  constexpr std::uint32_t kFewest = 256;
  return ring_spans < kFewest ? kFewest : ring_spans;
}

// Stages that exist from the start.
inline constexpr std::uint32_t kStageOverflow = 0;       // for names and statistics beyond the limits of the tables
inline constexpr std::uint32_t kStageInvalid = 1;        // for spans whose name is not a valid string
inline constexpr std::uint32_t kMostForeignNames = 256;  // places of names that other processes have chosen
inline constexpr std::uint32_t kMostPipelines = 200;     // pipelines of requests that have figures of their own
inline constexpr const char* kForeignName = "(other)";   // for further ones
inline constexpr std::uint32_t kNoStage = 0xffffffff;
inline constexpr std::uint32_t kSeveralStages = 0xfffffffe;

/// Causes of losses. The header has a counter for each.
enum Cause : std::uint32_t {
  kLostNames,            // spans whose name did not fit into the table
  kLostInvalidNames,     // spans whose name was not a valid string
  kLostThreads,          // records of threads without a slot: statistics only
  kLostBlocks,           // statistics in a shared block, because no other block was free
  kLostOpen,             // spans that are timed but not shown as open: their thread's frames were in use
  kLostDetached,         // tokens and suspended coroutines that are timed but not shown as open
  kLostUnmatched,        // ends without a start
  kLostAbandoned,        // begins without an end
  kLostWork,             // work without a counter or distribution of its own, or whose amount is not finite or negative
  kLostCompletions,      // log lines for which the queue was full
  kLostHookErrors,       // exceptions inside hooks
  kLostRecords,          // `record` with times that cannot be placed
  kLostDecorators,       // decorated functions that could not be switched on or off
  kLostDevicePool,       // spans without a free event: their device time is unknown
  kLostDeviceFailed,     // spans whose events the driver refused
  kLostDeviceCaptured,   // spans inside a graph capture, during which the device does not run
  kLostDeviceTimeout,    // spans whose device work did not end within the time limit
  kLostDeviceElsewhere,  // spans that ended where their device cannot be used: in another thread, without Python's lock
  kLostDeviceClamped,    // negative device times, which were set to zero
  kLostDevicePlace,      // device spans whose position on the host's timeline is unknown
  kLostDeviceStages,  // device times of stages that did not fit into the table: in the records, not in the statistics
  kLostMemory,        // spans, names and work counters that were lost because memory was exhausted
  kLostRequests,      // open requests that the recording does not show
  kLostLinks,         // links from batches to requests that later ones have overwritten
  kLostTraceState,    // members of a `tracestate` that were not passed on
  kLostFirstChunk,    // first chunks of requests whose begin is not known on this process's clock
  kCauseCount,
};

inline constexpr const char* kCauseNames[kCauseCount] = {
    "names",
    "invalid_names",
    "threads",
    "statistics_blocks",
    "open_spans",
    "detached_open_spans",
    "unmatched",
    "abandoned",
    "work",
    "log_lines",
    "hook_errors",
    "records",
    "decorator_errors",
    "device_pool",
    "device_failed",
    "device_captured",
    "device_timeout",
    "device_elsewhere",
    "device_clamped",
    "device_place",
    "device_stages",
    "memory",
    "requests",
    "links",
    "tracestate",
    "first_chunk_clock",
};

// The rings that all threads of a process write, one record after another. RING(Name, LIST, per_request, further): a
// `Name`Record has the fields of the list, and there are so many for each entry of a request, and so many in any case.
#define STAGESPAN_SHARED_RINGS(RING)                                                          \
  RING(Link, STAGESPAN_LINK_FIELDS, 4, 0)          /* which requests a batch served */        \
  RING(Sent, STAGESPAN_SENT_FIELDS, 4, 0)          /* the messages that requests have sent */ \
  RING(Amount, STAGESPAN_AMOUNT_FIELDS, 8, 0)      /* the work of single spans */             \
  RING(Failure, STAGESPAN_FAILURE_FIELDS, 0, 4096) /* the exceptions that spans and requests ended with */

#define STAGESPAN_RING_NUMBER(Name, LIST, per_request, further) k##Name##Ring,
enum SharedRing : std::uint32_t { STAGESPAN_SHARED_RINGS(STAGESPAN_RING_NUMBER) kSharedRings };

struct SharedRingSizes {
  std::uint32_t per_request;
  std::uint32_t further;

  constexpr std::uint64_t capacity(std::uint32_t segment_entries) const {
    return std::uint64_t{segment_entries} * per_request + further;
  }
  /// The number of records that are reserved in a recording's file at once, in whole pages.
  constexpr std::uint32_t at_once() const { return kSegmentsAtOnce * std::max(per_request, 2U); }
};

#define STAGESPAN_RING_SIZES(Name, LIST, per_request, further) {per_request, further},
inline constexpr SharedRingSizes kSharedRingSizes[kSharedRings] = {STAGESPAN_SHARED_RINGS(STAGESPAN_RING_SIZES)};
inline constexpr std::uint32_t kMostRingPieces = kMostRequests / kSegmentsAtOnce;

enum Region : std::uint32_t {
  kRegionNames,
  kRegionNamePool,
  kRegionWorkKeys,
  kRegionWork,
  kRegionDetached,
  kRegionDeviceStages,
  kRegionSlots,
  kRegionFrames,
  kRegionLocals,
  kRegionRings,
  kRegionCpuTimes,
  kRegionBlocks,
  kRegionDevice,
  kRegionDeviceBlocks,
  kRegionSegments,
  kRegionFields,
  kRegionSharedRings,
  kRegionWorkBlocks = kRegionSharedRings + std::uint32_t{kSharedRings},
  kRegionCount,
};
constexpr Region region_of(SharedRing ring) { return static_cast<Region>(kRegionSharedRings + std::uint32_t{ring}); }

struct RegionInfo {
  std::uint64_t offset;
  std::uint32_t stride;
  std::uint32_t count;
};

/// One reading of the recorder's clock together with the system's, used to convert ticks to time.
struct ClockStamp {
  std::uint64_t ticks;
  std::int64_t monotonic_ns;
  std::int64_t unix_ns;
  std::uint32_t bracket_ns;  // the two clocks were read within this time of each other
  std::uint32_t reserved;
};

/// Whether a piece of the arena is in the recording's file, in which other processes can read it.
enum PieceState : std::uint8_t {
  kPieceUnclaimed,  // nothing has been written to it since the file was created
  kPieceRecorded,
  kPieceRefused,  // it stays in this process's memory, see Refusal
};

enum Refusal : std::uint8_t {
  kRefusedNoSpace = 1,  // the tmpfs was full
  kRefusedClosed = 2,   // the program had closed the file
  kRefusedMapping = 4,  // the system refused to map the file
};

/// A thread's name in UTF-8, terminated by zero.
using ThreadName = char[kThreadNameBytes];

/// Id of a distributed trace, as in W3C Trace Context; zero if there is none.
struct TraceId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
};

/// Texts end with a zero byte unless they fill their field.
struct ProcessInfo {
  std::int32_t rank;          // -1 if unknown
  std::uint32_t world_size;   // 0 if unknown
  std::uint32_t shares_rank;  // a worker with the rank of the process that started it, such as one of a data loader
  std::uint32_t reserved;
  char job[128];      // the common id of the processes of a job, or empty
  char service[128];  // how the user calls the service in metrics, or empty
  char pipeline[128];
  char program[128];  // of a worker: the program that started it
  char argument[40];  // the first argument of the program if it is a plain word, such as "decode"; else empty
  char name[64];      // what the user calls this process, or empty
  char worker[64];    // what a worker is called, "worker 2"; empty if the user started this process
  char host[64];
  char version[32];         // of stagespan
  char python_version[32];  // empty if the process does not use Python
};

/// The latest value of something that the program observes. The name never changes.
struct GaugeEntry {
  char name[kGaugeNameBytes];
  std::atomic<double> value;
};

/// Who notices a command.
enum Listening : std::uint32_t {
  kListensInSpans,   // the next thread that opens a span
  kListensAtOnce,    // a thread that waits for it
  kListensToNobody,  // no thread could be started
};

/// What another program asks of this process, and its answer: both are texts. See commands.h.
struct CommandBlock {
  // Written by the program that asks, one at a time: it holds a lock (flock) on the file meanwhile.
  std::atomic<std::uint32_t> bell;       // the futex of the thread that waits: it changes with each command
  std::atomic<std::uint32_t> cancelled;  // the number of the command that is to end
  std::atomic<std::uint32_t> number;     // of the latest command, which follows
  std::atomic<std::uint32_t> text_bytes;
  char text[kCommandBytes];
  // Written by this process.
  std::atomic<std::uint32_t> listening;  // a Listening
  std::atomic<std::uint32_t> noticed;    // the number of the latest command that a thread has noticed
  std::atomic<std::uint32_t> version;    // odd while the answer changes
  std::atomic<std::uint32_t> answered;   // the number of the command that the answer is about
  std::atomic<std::uint32_t> answer_bytes;
  char answer[kAnswerBytes];
};

inline constexpr std::uint32_t kStopIsFinal = 0x100;

struct ArenaHeader {
  // The first four fields have the same offsets in every version of the layout.
  std::uint64_t magic;
  std::uint32_t layout_version;
  std::uint32_t byte_order;
  std::uint64_t size_bytes;
  std::uint32_t header_bytes;
  std::uint32_t pid;
  std::uint32_t clock_source;
  std::uint32_t ring_spans;
  std::uint32_t frames_per_thread;
  std::uint32_t segment_entries;
  RegionInfo regions[kRegionCount];
  std::atomic<std::uint32_t> name_count;
  std::atomic<std::uint32_t> name_pool_used;
  std::atomic<std::uint32_t> work_key_count;
  std::atomic<std::uint32_t> block_count;
  std::atomic<std::uint32_t> slot_high_water;  // slots ever used
  std::atomic<std::uint32_t> fold_version;     // odd while figures move because a thread leaves or statistics are reset
  std::atomic<std::uint64_t> lost[kCauseCount];
  std::atomic<std::uint32_t> stamp_count;
  std::atomic<std::uint32_t> resets;              // figures from before and after a reset cannot be subtracted
  std::atomic<std::uint64_t> device_head;         // device records ever written
  std::atomic<std::uint64_t> device_floor;        // the records before this number were removed by a reset
  std::atomic<std::uint32_t> device_stage_count;  // stages with device figures
  std::atomic<std::uint32_t> stamp_version;       // odd while the stamps change
  ClockStamp stamps[kMaxStamps];
  // About the recording; all zero while the arena is in the process's memory.
  std::uint64_t process_start_ticks;      // field 22 of /proc/PID/stat, which distinguishes processes with the same pid
  std::uint64_t pid_namespace;            // its inode, 0 if unknown: pids of another namespace are meaningless here
  std::uint64_t boot;                     // hash of the boot id: counters and start times of another boot differ
  std::uint64_t clock;                    // hash of the boot id and the time namespace: of CLOCK_MONOTONIC
  std::int64_t begin_unix_ns;             // when the recording was created
  std::atomic<std::int64_t> end_unix_ns;  // when the process exited, 0 if it has not exited or was killed
  std::atomic<std::int64_t> stop_unix_ns;  // when `stop_signal` was stored
  // The signal that asked the process to end, 0 if none did that is known; with kStopIsFinal, it ended the process.
  std::atomic<std::uint32_t> stop_signal;
  std::atomic<std::uint32_t> is_deferred;   // it is to be removed when the last process of its job ends
  std::uint32_t is_locked;                  // the process holds a lock on the file for its whole life
  std::atomic<std::uint32_t> info_version;  // odd while `info` changes
  ProcessInfo info;
  std::atomic<std::uint32_t> frames_recorded[kMaxThreads];  // the number of frames of each slot that are in the file
  std::atomic<std::uint8_t> slot_pieces[kMaxThreads + 1];
  std::atomic<std::uint8_t> frame_pieces[kMaxThreads];  // state of the first frames that are not in the file
  std::atomic<std::uint8_t> ring_pieces[kMaxThreads];
  std::atomic<std::uint8_t> cpu_time_pieces[kMaxThreads];  // also claimed while there is no file
  std::atomic<std::uint8_t> block_pieces[kMaxBlocks / kBlocksAtOnce];
  std::atomic<std::uint8_t> device_block_pieces[kMaxDeviceStages / kDeviceStagesAtOnce];
  std::atomic<std::uint8_t> segment_pieces[kMostRequests / kSegmentsAtOnce];
  std::atomic<std::uint8_t> fields_pieces[kMostRequests / kSegmentsAtOnce];
  std::atomic<std::uint8_t> shared_pieces[kSharedRings][kMostRingPieces];
  std::atomic<std::uint8_t> work_block_pieces[kMaxWorkBlocks / kWorkBlocksAtOnce];
  std::atomic<std::uint32_t> work_block_count;
  std::atomic<std::uint32_t> field_count;  // names of fields that are recorded; a name never changes
  std::atomic<std::uint32_t> gauge_count;
  char field_names[kMostFields][kFieldNameBytes];
  GaugeEntry gauges[kMostGauges];
  std::atomic<std::uint32_t> segment_high_water;          // segment entries ever used
  std::atomic<std::uint32_t> detached_high_water;         // detached frames ever used
  std::atomic<std::uint64_t> shared_heads[kSharedRings];  // records ever written to each of the shared rings
  std::atomic<std::uint64_t> amounts_since_ticks;         // the amounts of spans that began later are all there
  // Changes of requests, and amounts of work: with the heads of rings, it shows whether anything was recorded.
  std::atomic<std::uint64_t> changes;
  std::atomic<std::uint8_t> device_ring_piece;
  std::atomic<std::uint8_t> refusals;  // why pieces were refused: bits of Refusal
  CommandBlock commands;
};

/// What the spans of a stage are. One name may occur in several kinds, which are different stages.
enum StageKind : std::uint16_t {
  kExecution,
  kQueue,    // a wait inside a process, or from received to entered
  kHandOff,  // from sent in one process to received in another
  kBatch,    // an execution that serves several requests
  kRemote,   // the part of a request in a process that another one has sent it to
  // Without spans, only figures:
  kPartFirstChunk,  // from the start of a segment to its first chunk
  kBetweenChunks,   // from one chunk to the next one
  kPerToken,        // the same, divided by the amount of the chunk
  kFirstChunk,      // from the start of the request to the first chunk of a segment
  // Requests of a pipeline that began in this process and have ended, by their status in the order of SegmentStatus.
  // Their figures are in one block that all threads share.
  kRequestOk,
  kRequestError,
  kRequestCancelled,
  kRequestDiscarded,
  kRequestAbandoned,
  kException,  // not a stage, but a type of exceptions
  kStageKinds,
};

struct NameEntry {
  std::uint32_t offset;  // offset in the name pool
  std::uint16_t length_bytes;
  std::uint16_t kind;  // a StageKind
};

struct WorkKey {
  char text[kWorkKeyBytes + 1];
};

/// The sum of one work counter. Integers and fractions are kept separately so that integers stay exact.
struct WorkEntry {
  std::atomic<std::uint64_t> key;  // 0 if free, otherwise (stage + 1) << 32 | work key
  std::atomic<std::int64_t> whole;
  std::atomic<double> fraction;
};

enum SlotState : std::uint32_t { kSlotFree, kSlotLive, kSlotExited };

/// High bit of an entry of ThreadSlot::stats: the block is shared, and written with atomic additions.
inline constexpr std::uint32_t kSharedBlock = 0x80000000;

/// Begins on its own page, so that a file can contain some slots and not others.
struct alignas(4096) ThreadSlot {
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> thread;        // the system's thread id
  std::atomic<std::uint64_t> ident;         // pthread_self(), which Python calls the thread's ident
  std::atomic<std::uint64_t> exited_ticks;  // when a thread left this slot; the earliest is reused first
  std::atomic<std::uint32_t> frames_high_water;
  std::atomic<std::uint64_t> name[kThreadNameBytes / 8];  // terminated by zero
  // Only the ring's writer writes this cache line.
  alignas(64) std::atomic<std::uint64_t> head;               // number of records written so far
  std::atomic<std::uint64_t> floor;                          // the records before this number were removed by a reset
  std::atomic<std::uint64_t> next_id;                        // kept when the thread changes, so that ids stay unique
  std::atomic<std::uint64_t> chunks;                         // outputs of streams, which have no record
  alignas(64) std::atomic<std::uint32_t> stats[kMaxStages];  // 0, or 1 + index of a StatsBlock
};

/// Flags of a record; also bits of an open frame.
enum SpanFlag : std::uint16_t {
  kFlagError = 1,
  kFlagAsync = 2,
  kFlagGenerator = 4,
  kFlagCaptured = 8,
  kFlagFirstOfShape = 16,
  kFlagDebug = 32,
  kFlagRecorded = 64,       // timed elsewhere, so not in its ring's order of ends
  kFlagPublished = 127,     // the bits above are visible in a record
  kFrameWork = 128,         // work was added to it, which is counted when it ends
  kFrameInactive = 256,     // latched while off: keeps begin and end paired, records nothing
  kFrameRoot = 512,         // bottom of a scope
  kFrameClosedAway = 1024,  // ended by another thread; its owner drops it
  kFrameOrphan = 2048,      // its parent ended before it did
  kFrameDevice = 4096,      // has an event on a device
};

/// In the flags that readers return: the StageKind of the span's stage. Writers leave these bits free.
inline constexpr std::uint32_t kKindShift = 13;

/// How a field is stored that others read while it is written: texts are arrays of words.
template <class T>
struct SharedField {
  using Stored = std::atomic<T>;
};
template <class T, std::size_t size>
struct SharedField<std::array<T, size>> {
  using Stored = std::array<std::atomic<T>, size>;
};

template <class T>
void store_field(std::atomic<T>& to, T value) noexcept {
  to.store(value, std::memory_order_relaxed);
}
template <class T, std::size_t size>
void store_field(std::array<std::atomic<T>, size>& to, const std::array<T, size>& value) noexcept {
  for (std::size_t i = 0; i < size; ++i) store_field(to[i], value[i]);
}

template <class T>
T load_field(const std::atomic<T>& from) noexcept {
  return from.load(std::memory_order_relaxed);
}
template <class T, std::size_t size>
std::array<T, size> load_field(const std::array<std::atomic<T>, size>& from) noexcept {
  std::array<T, size> value;
  for (std::size_t i = 0; i < size; ++i) value[i] = load_field(from[i]);
  return value;
}

// Each record is described by one list of its fields: FIELD(type, name, initial value). From the list come the record
// that others read while it is written, a plain copy of it, and the functions between the two.
#define STAGESPAN_PLAIN_FIELD(type, name, initial) type name = initial;
#define STAGESPAN_SHARED_FIELD(type, name, initial) SharedField<type>::Stored name;
#define STAGESPAN_STORE_FIELD(type, name, initial) store_field(name, from.name);
#define STAGESPAN_LOAD_FIELD(type, name, initial) load_field(name),
// clang-format off
#define STAGESPAN_SHARED_FIELDS(Fields, LIST)                               \
  LIST(STAGESPAN_SHARED_FIELD)                                              \
  void store(const Fields& from) noexcept { LIST(STAGESPAN_STORE_FIELD) }   \
  Fields load() const noexcept { return {LIST(STAGESPAN_LOAD_FIELD)}; }
// clang-format on

// A finished span, 64 bytes: one cache line.
//
//   0        8        16       24       32       40         48     52      56     58     60      64
//   | begin  | end    | id     | parent | request| suspended| stage| thread| depth| flags| commit|
//
// `commit` is the low half of 1 + the record's number in its ring once the record is complete, and 0 while it is being
// written. A reader that finds the same number before and after copying has a complete record. The number of every
// 2^32nd record is also 0; readers leave these records out.
#define STAGESPAN_SPAN_FIELDS(FIELD)       \
  FIELD(std::uint64_t, begin_ticks, 0)     \
  FIELD(std::uint64_t, end_ticks, 0)       \
  FIELD(std::uint64_t, id, 0)              \
  FIELD(std::uint64_t, parent, 0)          \
  FIELD(std::uint64_t, request, 0)         \
  FIELD(std::uint64_t, suspended_ticks, 0) \
  FIELD(std::uint32_t, stage, 0)           \
  FIELD(std::uint32_t, thread, 0)          \
  FIELD(std::uint16_t, depth, 0)           \
  FIELD(std::uint16_t, flags, 0)

struct SpanFields {
  STAGESPAN_SPAN_FIELDS(STAGESPAN_PLAIN_FIELD)
};

struct alignas(64) SpanRecord {
  STAGESPAN_SHARED_FIELDS(SpanFields, STAGESPAN_SPAN_FIELDS)
  std::atomic<std::uint32_t> commit;
};
static_assert(sizeof(SpanRecord) == 64);

// The CPU time of a span, which its record has no room for. It is in the same place as the record, but in a table that
// is reserved for a thread when one of its spans first asks for CPU time. `span` is the id in the record, 0 while the
// time is being written, and stored last.
struct CpuTime {
  std::atomic<std::uint64_t> span;
  std::atomic<std::uint64_t> cpu_ns;
};
static_assert(cpu_times_per_slot(kLeastRingSpans) * sizeof(CpuTime) % 4096 == 0);

// An open span, 64 bytes. `id` is 0 while the frame is free or being filled, and is stored last, so a reader that finds
// the same id before and after copying has a complete frame.
//
// The `as_parent_*` fields describe the parent of a span that is opened above this frame. For an active span they are
// its own, for an inactive span those of the frame below, and for the root of a task's scope those of the creating
// task. `begin` can therefore treat all frames alike.
//
// `attention` is used in the first frame of a thread only. It is there, and not in the thread's state, so that another
// program can set a bit of it; a span needs the address of the frames anyway.
struct alignas(64) OpenFrame {
  std::atomic<std::uint64_t> id;
  std::atomic<std::uint64_t> begin_ticks;
  std::atomic<std::uint64_t> parent;
  std::atomic<std::uint64_t> as_parent_id;
  std::atomic<std::uint64_t> child_ticks;  // time of children that ran in this span's own scope
  std::atomic<std::uint32_t> stage;
  std::atomic<std::uint32_t> as_parent_stage;
  std::atomic<std::uint32_t> below;      // next lower frame in the scope; the next free frame while free
  std::atomic<std::uint32_t> effective;  // this frame or the nearest active one below: charged for children
  std::atomic<std::uint16_t> depth;
  std::atomic<std::uint16_t> as_parent_depth;
  std::atomic<std::uint16_t> flags;
  std::atomic<std::uint16_t> attention;  // bits of Attention
};
static_assert(sizeof(OpenFrame) == 64);

/// Reasons why a thread cannot open a span with the fast path.
enum Attention : std::uint16_t {
  kAttentionClosedAway = 1,  // another thread has ended one of its spans
  kAttentionNoCounter = 2,   // permanent: its clock is a system call
  kAttentionNoMemory = 4,    // permanent: used instead of the states of threads for which there was no memory
  kAttentionNoScope = 8,     // the running code may have no scope
  kAttentionAsked = 0x100,   // another program has written a command; it sets the whole second byte
};

struct Scope;

/// More fields of an open frame. Readers in other processes use only the request, and which frames have the same scope:
/// the others are addresses in this process.
struct FrameLocal {
  alignas(std::atomic_ref<const void*>::required_alignment) const void* owner = nullptr;
  alignas(std::atomic_ref<Scope*>::required_alignment) Scope* scope = nullptr;
  std::uint64_t request = 0;
  void* note = nullptr;                   // the bindings' own
  void* device = nullptr;                 // what DeviceHooks::begin returned, if the span has kFrameDevice
  std::uint32_t parent_stage = kNoStage;  // of a frame whose parent is no longer below it
  std::uint32_t padding = 0;              // a whole number of them fills whole pages

  /// Other threads read only the owner, the scope and the request.
  void open_by(const void* who) noexcept { std::atomic_ref<const void*>(owner).store(who, std::memory_order_relaxed); }
  const void* opened_by() noexcept { return std::atomic_ref<const void*>(owner).load(std::memory_order_relaxed); }
  void open_in(Scope* where) noexcept { std::atomic_ref<Scope*>(scope).store(where, std::memory_order_relaxed); }
  const void* opened_in() noexcept { return std::atomic_ref<Scope*>(scope).load(std::memory_order_relaxed); }
  void belong_to(std::uint64_t number) noexcept {
    std::atomic_ref<std::uint64_t>(request).store(number, std::memory_order_relaxed);
  }
  std::uint64_t belongs_to() noexcept {
    return std::atomic_ref<std::uint64_t>(request).load(std::memory_order_relaxed);
  }
  /// Resets the fields to those of an unused frame.
  void clear() noexcept {
    open_by(nullptr);
    belong_to(0);
    open_in(nullptr);
    note = nullptr;
    device = nullptr;
    parent_stage = kNoStage;
  }
};
static_assert(sizeof(FrameLocal) == 48);
static_assert(kFramesAtOnce * sizeof(FrameLocal) % 4096 == 0 && kFramesAtOnce * sizeof(OpenFrame) % 4096 == 0);

/// How a segment came to this process.
enum SegmentOrigin : std::uint8_t {
  kOriginRoot,      // the request began here
  kOriginRemote,    // another process has sent it
  kOriginReturn,    // not a segment, but a hop that has come back to a segment of this process
  kOriginRepeated,  // the carrier was received before
  kOriginNested,    // it began inside of another request of this process, its parent
};
inline constexpr const char* kOriginNames[] = {"root", "remote", "return", "repeated", "nested"};

enum SegmentStatus : std::uint8_t {
  kStatusOpen,
  kStatusOk,
  kStatusError,
  kStatusCancelled,
  kStatusDiscarded,
  kStatusAbandoned,
  kStatusUnused,  // received, and never entered
  kStatusCount,
};
inline constexpr const char* kStatusNames[kStatusCount] = {"open",      "ok",        "error", "cancelled",
                                                           "discarded", "abandoned", "unused"};

enum SegmentTrait : std::uint32_t {
  kTraitHttp = 1,   // it serves a call by HTTP
  kTraitRoute = 2,  // its pipeline is the template of a route
};

/// A text that fills its field, or is followed by zeroes.
template <std::size_t bytes>
using TextWords = std::array<std::uint64_t, bytes / 8>;

#define STAGESPAN_SEGMENT_FIELDS(FIELD)                                                                         \
  FIELD(std::uint64_t, begin_ticks, 0) /* when it was entered; 0 while it waits */                              \
  FIELD(std::uint64_t, end_ticks, 0)   /* 0 while it is open */                                                 \
  FIELD(std::uint64_t, first_chunk_ticks, 0)                                                                    \
  FIELD(std::uint64_t, last_chunk_ticks, 0)                                                                     \
  FIELD(std::uint64_t, chunks, 0)                                                                               \
  FIELD(std::uint64_t, chunk_amount, 0)                                                                         \
  FIELD(std::uint32_t, hops_sent, 0)                                                                            \
  FIELD(std::uint8_t, status, kStatusOpen) /* a SegmentStatus */                                                \
  FIELD(std::uint8_t, origin, kOriginRoot) /* a SegmentOrigin */                                                \
  FIELD(std::uint16_t, attempt, 1)                                                                              \
  FIELD(std::uint64_t, trace_high, 0) /* of the trace's id; both 0 if it belongs to no trace */                 \
  FIELD(std::uint64_t, trace_low, 0)                                                                            \
  FIELD(std::uint64_t, segment, 0)          /* its id in the trace */                                           \
  FIELD(std::uint64_t, parent_hop, 0)       /* the hop that brought it, or its parent in another system */      \
  FIELD(std::uint64_t, parent_segment, 0)   /* that the hop was sent from, 0 if unknown */                      \
  FIELD(std::uint64_t, received_ticks, 0)   /* 0 if it began here */                                            \
  FIELD(std::uint64_t, sent_ticks, 0)       /* on this process's clock; 0 if it was sent on another one */      \
  FIELD(std::int64_t, sent_monotonic_ns, 0) /* on the sender's clock */                                         \
  FIELD(std::int64_t, sent_unix_ns, 0)                                                                          \
  FIELD(std::uint64_t, sent_clock, 0)  /* ArenaHeader::clock of the sender; 0 if nothing is known of the hop */ \
  FIELD(std::uint32_t, queue_stage, 0) /* where it waited from received to entered */                           \
  FIELD(std::uint32_t, trace_flags, 0)                                                                          \
  FIELD(std::uint64_t, entered_ticks, 0) /* the latest time at which it was entered */                          \
  FIELD(std::uint32_t, pipeline, 0)      /* the stage of kind kRequestOk with the pipeline's name */            \
  FIELD(std::uint32_t, traits, 0)        /* bits of SegmentTrait */                                             \
  FIELD(std::uint64_t, linked, 0)        /* the number of the request here that it began in, 0 if none */       \
  FIELD(std::uint64_t, request_ticks, 0) /* when the request began, perhaps elsewhere; 0 if unknown */          \
  FIELD(std::uint64_t, work_ticks, 0)    /* when the thread that received it had last ended work for others */  \
  FIELD(TextWords<kBranchBytes>, branch, {})                                                                    \
  FIELD(TextWords<kRequestIdBytes>, id, {})

struct SegmentFields {
  STAGESPAN_SEGMENT_FIELDS(STAGESPAN_PLAIN_FIELD)
};

// A request in this process: 320 bytes. `number` is 0 while the entry is free or being filled, and is stored last. The
// fields from `begin_ticks` to `status` change while it is open; each of them is complete in itself.
struct alignas(64) SegmentEntry {
  std::atomic<std::uint64_t> number;
  STAGESPAN_SHARED_FIELDS(SegmentFields, STAGESPAN_SEGMENT_FIELDS)
};
static_assert(sizeof(SegmentEntry) == 320);
static_assert(kSegmentsAtOnce * sizeof(SegmentEntry) % 4096 == 0);

/// Whether a message waited, because the thread that received it worked for others after it was sent. All three are on
/// one clock; 0 if unknown.
inline bool was_behind_others(std::uint64_t sent_ticks, std::uint64_t work_ticks,
                              std::uint64_t received_ticks) noexcept {
  return sent_ticks != 0 && sent_ticks < work_ticks && work_ticks <= received_ticks;
}

enum FieldKind : std::uint64_t {
  kFieldMissing,
  kFieldWhole,     // the bits of an std::int64_t
  kFieldFraction,  // those of a double, which is finite
  kFieldText,      // the number is not used
};

#define STAGESPAN_REQUEST_FIELDS(FIELD)                                                   \
  FIELD(TextWords<8 * kMostFields>, kinds, {}) /* FieldKind, by the number of the name */ \
  FIELD(TextWords<8 * kMostFields>, numbers, {})                                          \
  FIELD(TextWords<kFieldTextBytes * kMostFields>, texts, {})

/// What a program has said of a request, of the fields that it records.
struct RequestFields {
  STAGESPAN_REQUEST_FIELDS(STAGESPAN_PLAIN_FIELD)
};

/// `number` as in the SegmentEntry with the same index.
struct alignas(64) FieldsEntry {
  std::atomic<std::uint64_t> number;
  STAGESPAN_SHARED_FIELDS(RequestFields, STAGESPAN_REQUEST_FIELDS)
};
static_assert(sizeof(FieldsEntry) == 704);
static_assert(kSegmentsAtOnce * sizeof(FieldsEntry) % 4096 == 0);

// The exception that a span or a request has ended with.
#define STAGESPAN_FAILURE_FIELDS(FIELD)                                                            \
  FIELD(std::uint64_t, span, 0)                /* its id; 0 if the request ended so */             \
  FIELD(std::uint64_t, request, 0)             /* the number of the request that ended so, or 0 */ \
  FIELD(TextWords<kMessageBytes>, message, {}) /* empty unless the program asks for it */          \
  FIELD(std::uint32_t, type, 0)                /* a name of kind kException */

// One of the requests that a batch served.
#define STAGESPAN_LINK_FIELDS(FIELD)                                               \
  FIELD(std::uint64_t, span, 0)                                                    \
  FIELD(std::uint64_t, request, 0) /* the number of its segment in this process */ \
  FIELD(std::uint32_t, size, 0)    /* the number of requests of the batch */

// A message that a request has sent. Written with the interpreter's lock.
#define STAGESPAN_SENT_FIELDS(FIELD)                                                     \
  FIELD(std::uint64_t, hop, 0)                                                           \
  FIELD(std::uint64_t, request, 0) /* the number of the segment here that has sent it */ \
  FIELD(std::uint64_t, ticks, 0)                                                         \
  FIELD(std::uint64_t, count, 0) /* of messages to this queue that were sent up to it */ \
  FIELD(std::uint32_t, stage, 0) /* of kind kQueue */

/// In AmountFields::key: the value is a double, and not an integer.
inline constexpr std::uint32_t kAmountIsFraction = 0x80000000;

// What a span has done, in one unit. The value of the latest records may still grow.
#define STAGESPAN_AMOUNT_FIELDS(FIELD)                                         \
  FIELD(std::uint64_t, span, 0)                                                \
  FIELD(std::uint64_t, span_begin_ticks, 0)                                    \
  FIELD(std::uint64_t, value, 0) /* the bits of an std::int64_t or a double */ \
  FIELD(std::uint32_t, key, 0)   /* a work key, and kAmountIsFraction */

// clang-format off
/// `Name`Fields, and `Name`Record as threads write it. `commit` as in a SpanRecord.
#define STAGESPAN_RING_RECORD(Name, LIST, per_request, further)                              \
  struct Name##Fields { LIST(STAGESPAN_PLAIN_FIELD) };                                       \
  struct alignas(16) Name##Record {                                                          \
    static constexpr SharedRing kRing = k##Name##Ring;                                       \
    using Fields = Name##Fields;                                                             \
    STAGESPAN_SHARED_FIELDS(Fields, LIST)                                                    \
    std::atomic<std::uint32_t> commit;                                                       \
  };                                                                                         \
  static_assert(kSharedRingSizes[k##Name##Ring].at_once() * sizeof(Name##Record) % 4096 == 0); \
  static_assert(kSharedRingSizes[k##Name##Ring].capacity(kMostRequests) <=                   \
                std::uint64_t{kMostRingPieces} * kSharedRingSizes[k##Name##Ring].at_once());
STAGESPAN_SHARED_RINGS(STAGESPAN_RING_RECORD)
// clang-format on
static_assert(sizeof(LinkRecord) == 32 && sizeof(SentRecord) == 48 && sizeof(AmountRecord) == 32);
static_assert(sizeof(FailureRecord) == 224);

inline constexpr std::uint32_t kBuckets = 1016;
inline constexpr std::uint32_t kEdges = 6;
inline constexpr std::uint32_t kWraps = 8;

/// Count and sum of a stage's spans under one parent stage. The sums over all edges are those of the stage.
struct Edge {
  std::atomic<std::uint32_t> used;  // 0, or the value of edge_mark() for the parent or the top level
  std::uint32_t reserved;
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> sum_ticks;
};

/// A bucket of 32 bits that overflowed, and how often.
struct Wrap {
  std::atomic<std::uint32_t> bucket_plus_one;
  std::atomic<std::uint32_t> times;
};

// Figures of one stage in one thread: 256 bytes, of which most spans touch only the first 64, then a histogram of 4 KB.
//
// A span is added to the histogram when the next one ends; until then `latest` is 1 + its ticks, and readers add it.
// The reason: a bucket's address depends on the time just read, and on processors that do not start a clock read before
// all earlier reads of memory are done, the next span would wait for it. Blocks that several threads write are updated
// at once.
struct alignas(64) StatsBlock {
  std::atomic<std::uint64_t> min_ticks;
  std::atomic<std::uint64_t> max_ticks;
  std::atomic<std::uint64_t> latest;  // 0 if there is none
  std::atomic<std::uint64_t> children_ticks;
  std::atomic<std::uint64_t> errors;
  Edge edges[kEdges];
  std::atomic<std::uint64_t> suspended_ticks;
  Wrap wraps[kWraps];
  std::atomic<std::uint32_t> buckets[kBuckets];
  std::atomic<std::uint64_t> cpu_ns;     // of the spans whose CPU time is known
  std::atomic<std::uint64_t> cpu_count;  // the number of these
  std::uint32_t padding[4];
};
static_assert(sizeof(StatsBlock) == 256 + 4096);
static_assert(kBlocksAtOnce * sizeof(StatsBlock) % 4096 == 0);

inline constexpr std::uint32_t kAmountBuckets = 994;

// The distribution of the amounts that the runs of a stage, or the requests of a pipeline, have had in one unit: one
// page. Written with the recorder's lock, and read without it.
struct alignas(64) WorkBlock {
  std::atomic<std::uint64_t> key;  // as in a WorkEntry; also with kBatchSizeKey
  std::atomic<std::uint64_t> count;
  std::atomic<double> sum;
  std::atomic<double> least;
  std::atomic<double> most;
  std::atomic<std::uint64_t> fractions;  // how many are not whole numbers
  std::uint64_t reserved[2];
  std::atomic<std::uint32_t> buckets[kAmountBuckets];
  std::uint32_t padding[14];
};
static_assert(sizeof(WorkBlock) == 4096);

/// A device time that is not known.
inline constexpr std::int64_t kUnknownNs = INT64_MIN;

#define STAGESPAN_DEVICE_FIELDS(FIELD)                                              \
  FIELD(std::uint64_t, id, 0)                                                       \
  FIELD(std::int64_t, elapsed_ns, kUnknownNs) /* from start to end on the stream */ \
  FIELD(std::int64_t, queue_ns, kUnknownNs)   /* device begin - host begin */       \
  FIELD(std::int64_t, tail_ns, kUnknownNs)    /* device end - host end */           \
  FIELD(std::uint32_t, stage, 0)                                                    \
  FIELD(std::uint32_t, device, 0) /* its index as torch counts */

/// The device times of a span, which readers find by its id.
struct DeviceFields {
  STAGESPAN_DEVICE_FIELDS(STAGESPAN_PLAIN_FIELD)
};

/// Only the resolver writes it; `commit` as in a SpanRecord.
struct DeviceRecord {
  STAGESPAN_SHARED_FIELDS(DeviceFields, STAGESPAN_DEVICE_FIELDS)
  std::atomic<std::uint32_t> commit;
  std::uint32_t reserved;
};
static_assert(sizeof(DeviceRecord) == 48);

enum DeviceFigure : std::uint32_t { kDeviceElapsed, kDeviceQueue, kDeviceTail, kDeviceFigures };

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<double>::is_always_lock_free);

/// Orders earlier stores before later ones. ThreadSanitizer does not model fences; as all shared fields are
/// atomic, leaving it out there hides no race.
inline void store_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

/// Orders earlier loads before later ones.
inline void load_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

/// To be called before the fields of a record of a ring are stored.
template <class Record>
STAGESPAN_HOT void open_record(Record& record) noexcept {
  record.commit.store(0, std::memory_order_relaxed);
  store_fence();  // a reader that sees a field of this record sees that the previous one has been removed
}

/// To be called after that.
template <class Record>
STAGESPAN_HOT void commit_record(Record& record, std::uint64_t number) noexcept {
  // Release: a reader that sees this number sees the fields.
  record.commit.store(static_cast<std::uint32_t>(number + 1), std::memory_order_release);
}

template <class Record, class Fields>
void write_record(Record& record, std::uint64_t number, const Fields& fields) noexcept {
  open_record(record);
  record.store(fields);
  commit_record(record, number);
}

/// Copies a record of a ring. Returns false if it is another record, or was being written.
template <class Record, class Fields>
bool read_record(const Record& record, std::uint64_t number, Fields& fields) noexcept {
  const auto wanted = static_cast<std::uint32_t>(number + 1);
  // 0 is also the number of a record that is being written. Acquire: the fields that are read next are at least as new
  // as this number.
  if (wanted == 0 || record.commit.load(std::memory_order_acquire) != wanted) return false;
  fields = record.load();
  // A writer clears the number before it changes a field, so the same number means that no field has changed.
  load_fence();
  return record.commit.load(std::memory_order_relaxed) == wanted;
}

}  // namespace stagespan
