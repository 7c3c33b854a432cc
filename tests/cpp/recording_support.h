// recording_support.h: a folder for the recordings of a test, and common code to read them.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "stagespan/recording_reader.h"
#include "support.h"

namespace stagespan::test {

inline constexpr std::uint64_t kRing = 256;

// Before the recorder starts, because it reads them only once.
inline std::string make_folder() {
  char name[] = "/dev/shm/stagespan-test-XXXXXX";
  const char* const made = mkdtemp(name);
  return made != nullptr ? made : "";
}
inline const std::string& folder() {
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
inline const bool g_settings = setenv("STAGESPAN_RING_SPANS", std::to_string(kRing).c_str(), 1) == 0 &&
                               (folder().empty() || setenv("STAGESPAN_RECORDING_DIR", folder().c_str(), 1) == 0);

class Recordings : public RecorderTest {
 protected:
  void SetUp() override {
    if (folder().empty()) GTEST_SKIP() << "no folder can be made in /dev/shm";
    RecorderTest::SetUp();
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
  /// What a reader takes of this process.
  static RecordingCopy copied() {
    RecordingCopy copy;
    EXPECT_EQ(read(file_of(getpid()), copy), "");
    EXPECT_EQ(copy.damaged, 0U);
    return copy;
  }
};

}  // namespace stagespan::test
