// test_recording.cpp: another process reads what a process recorded, whatever happened to the process and the file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <set>

#include "stagespan/recording_reader.h"
#include "support.h"

namespace stagespan {
namespace {

constexpr std::uint64_t kRing = 256;
constexpr std::uint64_t kSequence = (std::uint64_t{1} << 40) - 1;  // of an id: the rest distinguishes threads

// Before the recorder starts, because it reads them only once.
std::string make_folder() {
  char name[] = "/dev/shm/stagespan-test-XXXXXX";
  const char* const made = mkdtemp(name);
  return made != nullptr ? made : "";
}
const std::string& folder() {
  struct Folder {
    std::string path = make_folder();
    pid_t owner = getpid();
    ~Folder() {
      std::error_code ignored;
      if (!path.empty() && getpid() == owner) std::filesystem::remove_all(path, ignored);
    }
  };
  static const Folder made;
  return made.path;
}
const bool g_settings = setenv("STAGESPAN_RING_SPANS", std::to_string(kRing).c_str(), 1) == 0 &&
                        (folder().empty() || setenv("STAGESPAN_RECORDING_DIR", folder().c_str(), 1) == 0);

class Recordings : public test::RecorderTest {
 protected:
  void SetUp() override {
    if (folder().empty()) GTEST_SKIP() << "no folder can be made in /dev/shm";
    test::RecorderTest::SetUp();
  }

  /// The only file of a process.
  static std::string file_of(pid_t pid) {
    for (const auto& entry : std::filesystem::directory_iterator(folder()))
      if (entry.path().filename().string().starts_with(std::to_string(pid) + "-")) return entry.path();
    return {};
  }
  static std::string read(const std::string& path, RecordingCopy& copy, RecordingParts parts = RecordingParts::kAll) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return "no file " + path;
    std::string wrong = copy_recording(fd, "the file", parts, copy);
    close(fd);
    return wrong;
  }
};

/// What a victim counts itself, in memory that it shares with the test.
struct Log {
  struct alignas(64) OfThread {
    std::atomic<std::uint64_t> begun;
    std::atomic<std::uint64_t> ended;
    std::atomic<std::uint32_t> thread;
  } threads[8];

  static Log* make() {
    void* const memory = mmap(nullptr, sizeof(Log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? nullptr : new (memory) Log{};
  }
};

TEST_F(Recordings, AProcessKilledAtAnyMomentLeavesAllSpansThatHadEnded) {
  test::Random random(11);
  SCOPED_TRACE(random.trace());
  constexpr unsigned kWriters = 8;
  std::uint32_t stages[kWriters];
  for (unsigned i = 0; i < kWriters; ++i) stages[i] = recorder().intern("writer " + std::to_string(i));
  const std::uint32_t outer = recorder().intern("main");
  for (std::uint64_t round = 0; round < test::scaled(200, 10); ++round) {
    SCOPED_TRACE(round);
    // GIVEN a process whose threads write spans, and count them separately
    Log* const log = Log::make();
    ASSERT_NE(log, nullptr);
    const pid_t victim = fork();
    if (victim == 0) {
      const ScopedTimer timer(outer);
      const auto threads = test::start_threads(kWriters, [&](unsigned i) {
        Log::OfThread& own = log->threads[i];
        own.thread.store(static_cast<std::uint32_t>(gettid()));
        for (std::uint64_t n = 1;; ++n) {
          own.begun.store(n, std::memory_order_release);
          {
            const ScopedTimer span(stages[i]);
          }
          own.ended.store(n, std::memory_order_release);
        }
      });
      pause();
      _exit(0);
    }
    // WHEN it is killed
    while (file_of(victim).empty()) usleep(200);
    usleep(static_cast<useconds_t>(random.below(8000)));
    kill(victim, SIGKILL);
    waitpid(victim, nullptr, 0);
    // THEN its recording can be read, and nothing in it is damaged
    RecordingCopy copy;
    ASSERT_EQ(read(file_of(victim), copy), "");
    EXPECT_EQ(copy.damaged, 0U);
    EXPECT_EQ(copy.missing_bytes, 0U);
    std::map<std::uint32_t, std::vector<SpanCopy>> of_thread;
    for (const SpanCopy& span : read_spans(copy.arena)) of_thread[span.thread].push_back(span);
    std::map<std::uint32_t, OpenCopy> open;
    for (const OpenCopy& span : read_open(copy.arena)) open[span.thread] = span;
    if (log->threads[0].begun.load() != 0) {
      EXPECT_EQ(open.at(static_cast<std::uint32_t>(victim)).stage, outer);
    }
    const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
    for (unsigned i = 0; i < kWriters; ++i) {
      SCOPED_TRACE(i);
      const std::uint64_t ended = log->threads[i].ended.load(), begun = log->threads[i].begun.load();
      const std::uint32_t thread = log->threads[i].thread.load();
      if (begun == 0) continue;  // it had not begun by then
      // THEN statistics count each span that had ended, and none that had not begun
      const auto found = snapshot.stages.find(stages[i]);
      const std::uint64_t count = found == snapshot.stages.end() ? 0 : found->second.host.count;
      EXPECT_GE(count, ended);
      EXPECT_LE(count, begun);
      // THEN the newest spans of the thread are there, none of them torn
      std::vector<SpanCopy>& spans = of_thread[thread];
      std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
      EXPECT_GE(spans.size() + 1, std::min(ended, kRing));
      if (spans.empty()) continue;
      EXPECT_GE(spans.back().id & kSequence, ended);
      for (std::size_t k = 0; k < spans.size(); ++k) {
        EXPECT_EQ(spans[k].stage, stages[i]);
        EXPECT_EQ(spans[k].depth, 0);
        EXPECT_LE(spans[k].begin_ticks, spans[k].end_ticks);
        if (k == 0) continue;
        EXPECT_EQ(spans[k].id, spans[k - 1].id + 1);
        EXPECT_GE(spans[k].begin_ticks, spans[k - 1].end_ticks);
      }
      // THEN the sum of the durations is right, if the ring still has all of them
      if (count == spans.size() && count == ended && begun == ended) {
        std::uint64_t sum = 0;
        for (const SpanCopy& span : spans) sum += span.end_ticks - span.begin_ticks;
        EXPECT_EQ(found->second.host.sum_ticks, sum);
      }
      // THEN its open spans are named
      if (open.contains(thread)) {
        EXPECT_EQ(open.at(thread).stage, stages[i]);
        EXPECT_GE(open.at(thread).id & kSequence, spans.back().id & kSequence);
      }
    }
    munmap(log, sizeof(Log));
  }
}

TEST_F(Recordings, ALiveProcessIsReadWhileItWrites) {
  const std::uint32_t outer = recorder().intern("live.outer"), inner = recorder().intern("live.inner");
  // GIVEN threads that write
  std::atomic<bool> is_over{false};
  auto threads = test::start_threads(3, [&](unsigned) {
    while (!is_over.load(std::memory_order_relaxed)) {
      const ScopedTimer a(outer);
      const ScopedTimer b(inner);
    }
  });
  {
    const ScopedTimer own(outer);
  }
  // WHEN the file is read repeatedly, as from another process
  const std::string path = file_of(getpid());
  std::uint64_t before = 0;
  for (std::uint64_t round = 0; round < test::scaled(200, 10); ++round) {
    RecordingCopy copy;
    ASSERT_EQ(read(path, copy), "");
    EXPECT_EQ(copy.damaged, 0U);
    // THEN every record is complete
    for (const SpanCopy& span : read_spans(copy.arena)) {
      ASSERT_LE(span.begin_ticks, span.end_ticks);
      ASSERT_EQ(span.depth, span.stage == inner ? 1 : 0);
      ASSERT_EQ(span.parent == 0, span.stage == outer);
      if (span.stage == inner) {
        ASSERT_EQ(span.parent + 1, span.id);
      }
    }
    for (const OpenCopy& span : read_open(copy.arena)) ASSERT_TRUE(span.stage == inner || span.stage == outer);
    // THEN counts only increase
    const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
    const std::uint64_t count = test::figures_of(snapshot, inner).host.count;
    EXPECT_GE(count, before);
    before = count;
  }
  is_over.store(true);
  threads.clear();
  // THEN in the end they equal those of the process itself
  RecordingCopy copy;
  ASSERT_EQ(read(path, copy), "");
  EXPECT_EQ(test::figures_of(take_snapshot(copy.arena, copy.fit), inner).host.count, test::count_of(inner));
}

TEST_F(Recordings, NoChildWritesItsParentsFile) {
  const std::uint32_t stage = recorder().intern("storm"), of_child = recorder().intern("storm.child");
  // GIVEN threads that write while their process forks
  std::atomic<bool> is_over{false};
  auto threads = test::start_threads(4, [&](unsigned) {
    while (!is_over.load(std::memory_order_relaxed)) {
      for (int k = 0; k < 5000; ++k) const ScopedTimer span(stage);
      usleep(500);  // otherwise they would use the processors, and not the children
    }
  });
  // WHEN each child records some spans, and reads its own file
  for (std::uint64_t i = 0; i < test::scaled(1000, 40); ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      for (int k = 0; k < 3; ++k) const ScopedTimer span(of_child);
      RecordingCopy copy;
      if (!read(file_of(getpid()), copy).empty()) _exit(1);
      const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
      if (snapshot.stages.size() != 1 || test::figures_of(snapshot, of_child).host.count != 3) _exit(2);
      if (read_spans(copy.arena).size() != 3 || copy.names.at(stage) != "storm") _exit(3);
      recorder().end_recording();
      _exit(file_of(getpid()).empty() ? 0 : 4);
    }
    int status = 0;
    waitpid(child, &status, 0);
    // THEN it finds only its own spans there
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  is_over.store(true);
  threads.clear();
  // THEN the parent's file has the parent's spans, and none of its children's
  RecordingCopy copy;
  ASSERT_EQ(read(file_of(getpid()), copy), "");
  const Snapshot snapshot = take_snapshot(copy.arena, copy.fit);
  EXPECT_EQ(test::figures_of(snapshot, stage).host.count, test::count_of(stage));
  EXPECT_EQ(test::figures_of(snapshot, of_child).host.count, 0U);
}

TEST_F(Recordings, MoreThreadsAndDeeperSpansGrowTheFile) {
  const std::uint32_t stage = recorder().intern("deep");
  // GIVEN a thread with more open spans than are reserved at once, and several threads one after another
  test::in_thread([&] {
    constexpr int kDepth = 1000;
    std::vector<OpenSpan> open;
    for (int i = 0; i < kDepth; ++i) open.push_back(open_span(stage));
    // WHEN the file is read
    RecordingCopy copy;
    ASSERT_EQ(read(file_of(getpid()), copy), "");
    // THEN all of its open spans are in it
    const auto thread = static_cast<std::uint32_t>(gettid());
    const std::vector<OpenCopy> found = read_open(copy.arena);
    EXPECT_EQ(std::count_if(found.begin(), found.end(), [&](const auto& span) { return span.thread == thread; }),
              kDepth);
    while (!open.empty()) {
      close_span(open.back(), 0);
      open.pop_back();
    }
  });
  const std::uint64_t before = test::count_of(stage);
  for (int i = 0; i < 20; ++i) test::in_thread([&] { const ScopedTimer span(stage); });
  RecordingCopy copy;
  ASSERT_EQ(read(file_of(getpid()), copy), "");
  EXPECT_EQ(test::figures_of(take_snapshot(copy.arena, copy.fit), stage).host.count, before + 20);
}

// --- files that are not as they should be -----------------------------------------------------------------

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
    recorder().add_work(stage, "tokens", 5, 0.5);
    recorder().begin_request(77, "request-77");
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
      {offset(arena.requests()), kMaxRequests * sizeof(RequestEntry)},
      {offset(&arena.slot(0)), 512},
      {offset(&arena.slot(1)), 512},
      {offset(&arena.slot(kSharedSlot)), 512},
      {offset(arena.frames(0)), 512},
      {offset(arena.ring(0)), kRing * sizeof(SpanRecord)},
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
