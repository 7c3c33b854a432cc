// fake_driver.h: what tests do to a fake driver; the functions beside those that the product calls.
#pragma once

#include <cstdint>

extern "C" {

/// What the fake has counted since fake_reset().
struct FakeCounts {
  std::uint64_t synchronisations;
  std::uint64_t records;
  std::uint64_t queries;
  std::uint64_t queries_while_capturing;  // by a thread that was not in relaxed mode: each one breaks the capture
  std::uint64_t events;                   // that are there
  std::uint64_t other_context;            // events recorded on a stream of another context, or without a current one
  std::uint64_t queries_in_capture;       // of events that were recorded in a capture
  std::uint64_t contexts_made;            // by a call on a device that nobody had used
};

/// What goes wrong from now on.
enum FakeFault {
  kFakeNone,
  kFakeRecordFails,    // every record gives 700
  kFakeQueryFails,     // every query gives 700
  kFakeNoEvents,       // no event can be made
  kFakeDeinitialised,  // everything gives 4
  kFakeNeverDone,      // work that is queued from now on does not end
  kFakeShimFails,      // torch does not tell the current stream
  kFakeQueryLater,     // every query gives 900
  kFakeNoExchange,     // the capture mode cannot be exchanged
  kFakeOldCaptures,    // a query ends a capture whatever the mode of its thread is
  kFakeUnseenCapture,  // a capture takes in what is recorded, and says nothing of itself
};

typedef void (*FakeReset)();
typedef void (*FakeSetFault)(int fault);
typedef void (*FakeGetCounts)(FakeCounts* counts);
/// Queues a kernel of a known duration on a stream, in the device's own time.
typedef void (*FakeLaunch)(void* stream, double duration_ns);
typedef void* (*FakeMakeStream)(int device);
/// The calling thread's device, with its context current; -1 for a thread that has not touched any. As in HIP, a
/// device that is current there need not have been used: a stream or an event on it does that.
typedef void (*FakeUseDevice)(int device);
/// Has the context of the last device be one more of device 0, as a program may make with CUDA: what is made in the one
/// is of no use in the other.
typedef void (*FakeSecondContext)();
/// The calling thread's current stream on a device, as torch would tell.
typedef void (*FakeUseStream)(int device, void* stream);
typedef void (*FakeBeginCapture)(void* stream);
/// Whether nothing has broken the capture.
typedef int (*FakeEndCapture)(void* stream);
/// Device time that the event which the calling thread recorded last will get, in ns.
typedef double (*FakeLastRecord)();
}
