// backend.h: the interface of a device for the device layer: events on streams.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace stagespan::device {

using Event = void*;

/// The stream that was current when a span began. Its end is recorded on the same stream.
struct StreamRef {
  void* stream = nullptr;
  void* context = nullptr;  // events can only be used with streams of the same context
  std::int32_t device = 0;  // the index that torch uses

  friend bool operator<(const StreamRef& a, const StreamRef& b) noexcept {
    return a.context != b.context ? a.context < b.context : a.stream < b.stream;
  }
};

enum class StreamState : std::uint8_t {
  kOk,
  kNone,       // this thread has not used the device, or cannot access it
  kCapturing,  // recorded work does not run now
  kFailed,
};

enum class EventState : std::uint8_t {
  kDone,
  kNotReady,
  kLater,     // not possible now, because of a capture
  kCaptured,  // became part of a capture, so it does not run
  kFailed,
};

/// One kind of device. No call waits for the device, raises, or creates a context.
class EventBackend {
 public:
  virtual ~EventBackend() = default;
  virtual const char* name() const noexcept = 0;

  // Called on the threads that open and close spans.
  virtual StreamState current_stream(StreamRef& found) noexcept = 0;
  /// Whether an event may be recorded on the stream at this moment.
  virtual StreamState state_of(const StreamRef& where) noexcept = 0;
  virtual Event create_event(const StreamRef& where) noexcept = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  virtual bool record(Event event, const StreamRef& where) noexcept = 0;

  // Called on the resolver's thread, between these two. False if not possible now.
  virtual bool begin_resolving() noexcept = 0;
  virtual void end_resolving() noexcept = 0;
  /// Whether events may be queried while another thread captures.
  virtual bool asks_in_captures() const noexcept { return true; }
  /// The most events to query at once, because other threads wait for the resources of begin_resolving().
  virtual std::uint32_t batch() const noexcept { return UINT32_MAX; }
  virtual EventState query(Event event, const StreamRef& where) noexcept = 0;
  /// The time between two finished events; negative if `end` came first.
  virtual bool elapsed_ns(Event begin, Event end, const StreamRef& where, double& ns) noexcept = 0;
  /// Records on a separate stream, on which nothing else runs. False if there is none.
  virtual bool record_base(Event event, const StreamRef& where) noexcept = 0;

  /// The symbols that were looked up at run time, and whether they were found.
  virtual std::map<std::string, bool> symbols() const { return {}; }
  /// The latest status other than success and "not ready"; 0 if there is none.
  virtual int last_error() const noexcept = 0;
  /// Whether the driver has reported that it is shutting down, as at the end of the process.
  virtual bool is_gone() const noexcept { return false; }
};

}  // namespace stagespan::device
