// fuzz_recording.cpp: reads recordings in which numbers were changed. It is a target for libFuzzer;
// fuzz_driver.cpp runs it without clang.
//
// An input is a list of changes to a recording of real spans, so that a fuzzer gets past the checks of the header: a
// byte that says whether the file is truncated, the position, then 12 bytes for each change: structure, offset in it,
// width, value.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stagespan/reader.h"
#include "stagespan/recorder.h"
#include "stagespan/recording_reader.h"
#include "stagespan/scoped_timer.h"
#include "stagespan/segment_row.h"
#include "stagespan/snapshot.h"
#include "stagespan/text.h"

namespace stagespan {
namespace {

constexpr std::size_t kMostChanges = 16;
constexpr std::size_t kChangeBytes = 12;
constexpr std::size_t kPrefixBytes = 5;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fuzz_recording: %s\n", what);
  std::abort();
}

void require(bool condition, const char* what) {
  if (!condition) fail(what);
}

/// A recording of some spans, and the offsets of its structures.
class Base {
 public:
  Base() {
    char folder[] = "/dev/shm/stagespan-fuzz-XXXXXX";
    require(mkdtemp(folder) != nullptr, "no folder can be made in /dev/shm");
    setenv("STAGESPAN_RECORDING_DIR", folder, 1);
    setenv("STAGESPAN_RING_SPANS", "64", 1);
    record();
    const int fd = open(Recorder::get().recording_place().path.c_str(), O_RDONLY | O_CLOEXEC);
    require(fd >= 0, "the recording is not in a file");
    RecordingCopy copy;
    require(copy_recording(fd, "the file", RecordingParts::kAll, copy).empty(), "the recording cannot be read");
    find_ranges(copy.arena);
    keep_bytes(fd);
    close(fd);
    Recorder::get().end_recording();
    rmdir(folder);
  }

  std::pair<std::uint64_t, std::uint64_t> range(std::uint8_t number) const { return ranges_[number % ranges_.size()]; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  /// The whole recording, in a file without a name.
  int file() const {
    const int fd = memfd_create("fuzzed", MFD_CLOEXEC);
    require(fd >= 0 && ftruncate(fd, static_cast<off_t>(size_bytes_)) == 0, "no memory file can be made");
    for (const auto& [offset, bytes] : parts_)
      require(pwrite(fd, bytes.data(), bytes.size(), offset) == static_cast<ssize_t>(bytes.size()), "no memory");
    return fd;
  }

 private:
  static void record() {
    Recorder& recorder = Recorder::get();
    const std::uint32_t stage = recorder.intern("stage"), inner = recorder.intern("stage.inner");
    for (int i = 0; i < 100; ++i) {
      const ScopedTimer a(stage);
      const ScopedTimer b(inner);
    }
    std::thread([&] { const ScopedTimer span(inner); }).join();
    record_cpu_time(recorder.this_thread(), stage);
    recorder.add_work(stage, "tokens", 5, 0.5);
    SegmentFields start;
    set_text(start.id, "request-77");
    start.trace_high = 1;
    start.trace_low = 2;
    recorder.begin_segment(77, start);
    const std::uint64_t requests[] = {77, 78};
    recorder.add_links(5, requests, 2, 2);
    recorder.add_work(stage, "tokens", 3, 0.25, {5, now_ticks()});
    // Left open.
    open_span(stage);
    (void)recorder.open_detached(stage, 0);
  }

  static void record_cpu_time(ThreadState& thread, std::uint32_t stage) {
    FinishedSpan span{};
    span.begin_ticks = span.end_ticks = now_ticks();
    span.id = ++thread.next_id;
    span.stage = stage;
    span.parent_stage = kNoStage;
    begin_cpu_time(thread, {span.id, 0, 0, false});
    commit_span_with_cpu_time(thread, span, 1000);
  }

  void find_ranges(ArenaView arena) {
    const auto add = [&](const void* first, std::uint64_t bytes) {
      ranges_.emplace_back(static_cast<std::uint64_t>(static_cast<const std::byte*>(first) - arena.base()), bytes);
    };
    add(arena.base(), sizeof(ArenaHeader));
    add(arena.base(), 512);
    add(&arena.name(0), 64);
    add(arena.work_keys(), 128);
    add(arena.work(), 512);
    add(arena.detached(), 256);
    add(arena.segments(), 4 * sizeof(SegmentEntry));
    add(arena.ring_of<LinkRecord>().records, 4 * sizeof(LinkRecord));
    add(arena.ring_of<AmountRecord>().records, 4 * sizeof(AmountRecord));
    for (const std::uint32_t slot : {0U, 1U, kSharedSlot}) add(&arena.slot(slot), 512);
    add(arena.frames(0), 512);
    add(arena.ring(0), 64 * sizeof(SpanRecord));
    add(arena.cpu_times(0), 64 * sizeof(CpuTime));
    add(arena.blocks(), 6 * sizeof(StatsBlock));
    add(arena.device_stages(), 64);
  }

  void keep_bytes(int fd) {
    struct stat status{};
    require(fstat(fd, &status) == 0, "the recording cannot be examined");
    size_bytes_ = static_cast<std::uint64_t>(status.st_size);
    for (off_t at = lseek(fd, 0, SEEK_DATA); at >= 0; at = lseek(fd, at, SEEK_DATA)) {
      std::vector<char> bytes(1 << 16);
      const ssize_t got = pread(fd, bytes.data(), bytes.size(), at);
      if (got <= 0) break;
      bytes.resize(static_cast<std::size_t>(got));
      parts_.emplace_back(at, std::move(bytes));
      at += got;
    }
  }

  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges_;  // offset and bytes
  std::vector<std::pair<off_t, std::vector<char>>> parts_;       // the parts that are not holes
  std::uint64_t size_bytes_ = 0;
};

void read_everything(int fd) {
  RecordingCopy copy;
  if (!copy_recording(fd, "the file", RecordingParts::kAll, copy).empty()) return;
  const auto is_stage = [&](std::uint32_t stage) { return stage < copy.names.size(); };
  for (const SpanCopy& span : read_spans(copy.arena)) {
    require(is_stage(span.stage), "a span of an unknown stage");
    require(span.cpu_ns == kUnknownNs || span.cpu_ns >= 0, "a forged CPU time");
    (void)copy.fit.unix_ns(span.begin_ticks);
  }
  for (const OpenCopy& span : read_open(copy.arena)) {
    require(is_stage(span.stage), "an open span of an unknown stage");
    (void)copy.fit.unix_ns(span.begin_ticks);
  }
  for (const auto& [stage, figures] : take_snapshot(copy.arena, copy.fit).stages) {
    require(is_stage(stage), "figures of an unknown stage");
    for (const double q : {0.0, 0.5, 0.99, 1.0}) (void)figures.host.quantile_ticks(q);
  }
  for (const SegmentRow& row : segment_rows(copy, nullptr, true)) {
    require(text_in(row.id).size() <= kRequestIdBytes, "a long request id");
    require(row.status < std::size(kStatusNames) && row.origin < std::size(kOriginNames), "a forged status or origin");
  }
  for (const auto& [span, amounts] : read_amounts(copy.arena))
    for (const auto& [key, amount] : amounts)
      require(key < copy.arena.header().work_key_count.load() && std::isfinite(amount.fraction), "a forged amount");
  (void)recording_marks(fd);
  (void)read_device_spans(copy.arena);
  (void)overwritten(copy.arena);
}

template <class T>
T number_at(const std::uint8_t* bytes) {
  T value{};
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

}  // namespace
}  // namespace stagespan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stagespan;
  static const Base base;
  static int file = base.file();
  if (size < kPrefixBytes) return 0;
  const bool is_cut = data[0] % 8 == 1;
  const std::uint64_t cut_to = number_at<std::uint32_t>(data + 1);
  data += kPrefixBytes;
  size -= kPrefixBytes;
  std::vector<std::pair<std::uint64_t, std::array<char, 8>>> before;
  for (; size >= kChangeBytes && before.size() < kMostChanges; data += kChangeBytes, size -= kChangeBytes) {
    const auto [first, bytes] = base.range(data[0]);
    const std::uint64_t offset = first + number_at<std::uint16_t>(data + 1) % (bytes / 4) * 4;
    const std::size_t width = std::size_t{1} << data[3] % 4;
    std::array<char, 8> old{};
    require(pread(file, old.data(), old.size(), static_cast<off_t>(offset)) == 8, "the file cannot be read");
    require(pwrite(file, data + 4, width, static_cast<off_t>(offset)) == static_cast<ssize_t>(width),
            "the file cannot be written");
    before.emplace_back(offset, old);
  }
  if (is_cut) require(ftruncate(file, static_cast<off_t>(cut_to % base.size_bytes())) == 0, "it cannot be cut off");
  read_everything(file);
  if (is_cut) {
    close(file);
    file = base.file();
    return 0;
  }
  for (; !before.empty(); before.pop_back())
    require(pwrite(file, before.back().second.data(), 8, static_cast<off_t>(before.back().first)) == 8,
            "the file cannot be written");
  return 0;
}
