// loaded_late.cpp: the recorder in a library that is loaded while threads run, as Python loads the extension.
#include <mutex>

#include "stagespan/scoped_timer.h"
#include "stagespan/snapshot.h"

namespace {

std::uint32_t stage() { return stagespan::Recorder::get().intern("late"); }

}  // namespace

extern "C" [[gnu::visibility("default")]] void record_a_span() {
  stagespan::g_mode.store(stagespan::kModeEnabled);
  const stagespan::ScopedTimer timer(stage());
}

extern "C" [[gnu::visibility("default")]] std::uint64_t recorded_spans() {
  stagespan::Recorder& recorder = stagespan::Recorder::get();
  const stagespan::ClockFit fit = recorder.clock_fit();
  const std::uint32_t late = stage();
  const std::lock_guard lock(recorder.cold_mutex());
  const stagespan::Snapshot snapshot = take_snapshot(recorder.arena(), fit);
  const auto found = snapshot.stages.find(late);
  return found == snapshot.stages.end() ? 0 : found->second.host.count;
}
