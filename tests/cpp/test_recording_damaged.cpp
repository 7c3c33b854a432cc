// test_recording_damaged.cpp: recordings that are truncated, forged or damaged are read as far as possible.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "recording_support.h"
#include "stagespan/text.h"

namespace stagespan {
namespace {

using test::kRing;
using test::Recordings;

/// A copy of a recording, whose bytes a test may change.
class Forged {
 public:
  explicit Forged(const std::string& path) : fd_(memfd_create("forged", MFD_CLOEXEC)) {
    const int from = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    fstat(from, &status);
    size_ = status.st_size;
    EXPECT_EQ(ftruncate(fd_, size_), 0);
    std::vector<char> bytes(1 << 16);
    for (off_t at = lseek(from, 0, SEEK_DATA); at >= 0 && at < size_; at = lseek(from, at, SEEK_DATA)) {
      const ssize_t got = pread(from, bytes.data(), bytes.size(), at);
      if (got <= 0) break;
      EXPECT_EQ(pwrite(fd_, bytes.data(), static_cast<std::size_t>(got), at), got);
      at += got;
    }
    close(from);
  }
  ~Forged() { close(fd_); }
  Forged(const Forged&) = delete;
  Forged& operator=(const Forged&) = delete;

  template <class T>
  T put(std::uint64_t offset, T value) {
    T before{};
    EXPECT_EQ(pread(fd_, &before, sizeof(T), static_cast<off_t>(offset)), static_cast<ssize_t>(sizeof(T)));
    EXPECT_EQ(pwrite(fd_, &value, sizeof(T), static_cast<off_t>(offset)), static_cast<ssize_t>(sizeof(T)));
    return before;
  }
  void cut(off_t size) { EXPECT_EQ(ftruncate(fd_, size), 0); }
  int fd() const { return fd_; }
  off_t size() const { return size_; }

 private:
  int fd_;
  off_t size_ = 0;
};

/// Reads the whole recording; returns the sentence that says what was wrong.
std::string read_everything(int fd) {
  RecordingCopy copy;
  std::string wrong = copy_recording(fd, "the file", RecordingParts::kAll, copy);
  if (!wrong.empty()) return wrong;
  for (const SpanCopy& span : read_spans(copy.arena)) {
    EXPECT_LT(span.stage, copy.names.size());
    EXPECT_TRUE(span.cpu_ns == kUnknownNs || span.cpu_ns >= 0);
    (void)copy.fit.unix_ns(span.begin_ticks);
  }
  for (const OpenCopy& span : read_open(copy.arena)) {
    EXPECT_LT(span.stage, copy.names.size());
    (void)copy.fit.unix_ns(span.begin_ticks);
  }
  const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
  for (const auto& [stage, figures] : snapshot.stages) {
    EXPECT_LT(stage, copy.names.size());
    for (const double q : {0.0, 0.5, 0.99, 1.0}) (void)figures.host.quantile_ticks(q);
  }
  (void)read_device_spans(copy.arena);
  for (const auto& [span, amounts] : read_amounts(copy.arena))
    for (const auto& [key, amount] : amounts) {
      EXPECT_LT(key, copy.arena.header().work_key_count.load());
      EXPECT_TRUE(std::isfinite(amount.fraction));
    }
  (void)recording_marks(fd);
  (void)overwritten(copy.arena);
  return wrong;
}

class Hostile : public Recordings {
 protected:
  void SetUp() override {
    Recordings::SetUp();
    if (IsSkipped()) return;
    const std::uint32_t stage = recorder().intern("hostile"), other = recorder().intern("hostile.inner");
    for (int i = 0; i < 300; ++i) {
      const ScopedTimer a(stage);
      const ScopedTimer b(other);
    }
    test::in_thread([&] { const ScopedTimer span(stage); });
    test::commit_with_cpu_time(stage, 1000);
    recorder().add_work(stage, "tokens", 5, 0.5);
    SegmentFields start;
    set_text(start.id, "request-77");
    start.received_ticks = now_ticks();
    recorder().begin_segment(77, start);
    const std::uint64_t requests[] = {77, 78};
    recorder().add_work(stage, "tokens", 3, 0.25, {5, now_ticks()});
    FinishedSpan ended{};
    ended.id = 5;
    ended.stage = stage;
    recorder().count_span_work(ended);
    recorder().count_batch(stage, 2, 5, requests, 2);
    open_ = open_span(stage);
    token_ = recorder().open_detached(stage, 0);
    path_ = file_of(getpid());
  }
  void TearDown() override {
    if (!IsSkipped()) {
      recorder().close_detached(token_, 0);
      close_span(open_, 0);
    }
    Recordings::TearDown();
  }

  std::string path_;
  OpenSpan open_{};
  DetachedSpan token_{};
};

TEST_F(Hostile, EachKindOfWrongFileGetsASentence) {
  const auto expect_says = [](const Forged& file, const char* words) {
    const std::string wrong = read_everything(file.fd());
    EXPECT_NE(wrong.find(words), std::string::npos) << wrong;
  };
  Forged file(path_);
  ASSERT_EQ(read_everything(file.fd()), "");
  const auto magic = file.put<std::uint64_t>(0, 0x1122334455667788);
  expect_says(file, "is not a recording");
  file.put(0, __builtin_bswap64(magic));
  expect_says(file, "byte order");
  file.put(0, magic);
  const auto version = file.put<std::uint32_t>(offsetof(ArenaHeader, layout_version), 99);
  expect_says(file, "layout 99");
  file.put(offsetof(ArenaHeader, layout_version), version);
  const auto ring = file.put<std::uint32_t>(offsetof(ArenaHeader, ring_spans), 128);
  expect_says(file, "damaged");
  file.put(offsetof(ArenaHeader, ring_spans), ring);
  file.put<std::uint64_t>(offsetof(ArenaHeader, regions), 1);
  expect_says(file, "damaged");
  Forged shorter(path_);
  shorter.cut(100);
  expect_says(shorter, "cut off");
  shorter.cut(0);
  expect_says(shorter, "empty");
}

TEST_F(Hostile, ATruncatedFileIsReadAsFarAsItGoes) {
  test::Random random(12);
  SCOPED_TRACE(random.trace());
  const Forged whole(path_);
  for (std::uint64_t i = 0; i < test::scaled(40); ++i) {
    Forged file(path_);
    const auto most = static_cast<std::uint64_t>(random.chance(2) ? whole.size() : 4 << 20);
    file.cut(static_cast<off_t>(random.below(most)));
    read_everything(file.fd());
  }
}

TEST_F(Hostile, ImpossibleNumbersDoNoHarm) {
  test::Random random(13);
  SCOPED_TRACE(random.trace());
  Forged file(path_);
  RecordingCopy copy;
  ASSERT_EQ(copy_recording(file.fd(), "the file", RecordingParts::kAll, copy), "");
  const ArenaView arena = copy.arena;
  const auto offset = [&](const void* where) {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(where) - arena.base());
  };
  // The relevant ranges: fields of the structures, without the zero pages between them.
  const struct {
    std::uint64_t first, bytes;
  } ranges[] = {
      {0, sizeof(ArenaHeader)},
      {offset(&arena.name(0)), 64},
      {offset(arena.work_keys()), 128},
      {offset(arena.work()), kMaxWork * sizeof(WorkEntry)},
      {offset(arena.detached()), 256},
      {offset(arena.segments()), 4 * sizeof(SegmentEntry)},
      {offset(arena.ring_of<LinkRecord>().records), 4 * sizeof(LinkRecord)},
      {offset(arena.ring_of<AmountRecord>().records), 4 * sizeof(AmountRecord)},
      {offset(&arena.slot(0)), 512},
      {offset(&arena.slot(1)), 512},
      {offset(&arena.slot(kSharedSlot)), 512},
      {offset(arena.frames(0)), 512},
      {offset(arena.ring(0)), kRing * sizeof(SpanRecord)},
      {offset(arena.cpu_times(0)), kRing * sizeof(CpuTime)},
      {offset(arena.blocks()), 6 * sizeof(StatsBlock)},
  };
  const std::uint64_t interesting[] = {0,          1,     0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 32, 1ULL << 62,
                                       1ULL << 63, ~0ULL, 4096,       255,        8193,       1016,       1017};
  for (std::uint64_t round = 0; round < test::scaled(1000, 4); ++round) {
    struct Undo {
      std::uint64_t offset, value;
    };
    std::vector<Undo> undo;
    for (std::uint64_t i = random.between(1, 4); i > 0; --i) {
      const auto& range = ranges[random.below(std::size(ranges))];
      const std::uint64_t where = range.first + random.below(range.bytes / 4) * 4;
      const std::uint64_t value =
          random.chance(3) ? random.engine()() : interesting[random.below(std::size(interesting))];
      std::uint64_t kept = file.put<std::uint64_t>(where, value);
      // A change of half a number is an error too.
      if (random.chance(2)) file.put<std::uint32_t>(where + 4, static_cast<std::uint32_t>(kept >> 32));
      undo.push_back({where, kept});
    }
    read_everything(file.fd());
    for (; !undo.empty(); undo.pop_back()) file.put(undo.back().offset, undo.back().value);
  }
}

}  // namespace
}  // namespace stagespan
