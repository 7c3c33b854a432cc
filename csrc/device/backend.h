// backend.h: what the device layer asks of a device: events on streams, and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace stagespan::device {

using Event = void*;

/// A stream as it was when a span began: its end is recorded on the same one, whatever is current by then.
struct StreamRef {
  void* stream = nullptr;
  void* context = nullptr;  // events and streams of one context go together
  std::int32_t device = 0;  // as torch counts

  friend bool operator<(const StreamRef& a, const StreamRef& b) noexcept {
    return a.context != b.context ? a.context < b.context : a.stream < b.stream;
  }
};

enum class StreamState : std::uint8_t {
  kOk,
  kNone,       // this thread has not used the device, or cannot ask it
  kCapturing,  // nothing that is recorded now runs now
  kFailed,
};

enum class EventState : std::uint8_t {
  kDone,
  kNotReady,
  kLater,     // must not be called now, because of a capture
  kCaptured,  // was taken into a capture, and does not happen
  kFailed,
};

/// One kind of device. No call waits for the device, raises, or creates a context.
class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual const char* name() const noexcept = 0;

  // On the threads that open and close spans.
  virtual StreamState current_stream(StreamRef& found) noexcept = 0;
  /// Whether an event may be recorded on the stream at this moment.
  virtual StreamState state_of(const StreamRef& where) noexcept = 0;
  virtual Event create_event(const StreamRef& where) noexcept = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  virtual bool record(Event event, const StreamRef& where) noexcept = 0;

  // On the resolver's thread, between these two. False: not now.
  virtual bool begin_resolving() noexcept = 0;
  virtual void end_resolving() noexcept = 0;
  /// Whether events may be asked for while another thread captures.
  virtual bool asks_in_captures() const noexcept { return true; }
  /// Most events to be asked for in one go, because others wait for what begin_resolving() took.
  virtual std::uint32_t batch() const noexcept { return UINT32_MAX; }
  virtual EventState query(Event event, const StreamRef& where) noexcept = 0;
  /// Time from one event to another, both done; below zero if `end` came first.
  virtual bool elapsed_ns(Event begin, Event end, const StreamRef& where, double& ns) noexcept = 0;
  /// Records on a separate stream, on which nothing else runs. False if there is none.
  virtual bool record_base(Event event, const StreamRef& where) noexcept = 0;

  /// What was looked for at run time, and whether it was found.
  virtual std::map<std::string, bool> symbols() const { return {}; }
  /// The latest status that was neither success nor "not ready"; 0 without one.
  virtual int last_error() const noexcept = 0;
  /// Whether the driver has said that nothing will work any more, as it does when the process ends.
  virtual bool is_gone() const noexcept { return false; }
};

}  // namespace stagespan::device
