// fake_driver.h: what tests do with a fake driver: functions in addition to those that the product calls.
#pragma once

#include <cstdint>

extern "C" {

/// What the fake has counted since fake_reset().
struct FakeCounts {
  std::uint64_t synchronisations;
  std::uint64_t records;
  std::uint64_t queries;
  std::uint64_t queries_while_capturing;  // by a thread that was not in relaxed mode; each one invalidates the capture
  std::uint64_t events;                   // that exist
  std::uint64_t other_context;            // events recorded on a stream of another context, or without a current one
  std::uint64_t queries_in_capture;       // of events that were recorded in a capture
  std::uint64_t contexts_made;            // by a call on an unused device
};

/// The failure that happens from now on.
enum FakeFault {
  kFakeNone,
  kFakeRecordFails,    // every record gives 700
  kFakeQueryFails,     // every query gives 700
  kFakeNoEvents,       // no event can be created
  kFakeDeinitialised,  // everything gives 4
  kFakeNeverDone,      // work that is queued from now on does not end
  kFakeShimFails,      // torch does not return the current stream
  kFakeQueryLater,     // every query gives 900
  kFakeNoExchange,     // the capture mode cannot be exchanged
  kFakeOldCaptures,    // a query ends a capture regardless of its thread's mode
  kFakeUnseenCapture,  // a capture includes what is recorded, but is not reported
};

typedef void (*FakeReset)();
typedef void (*FakeSetFault)(int fault);
typedef void (*FakeGetCounts)(FakeCounts* counts);
/// Queues a kernel of a known duration on a stream, in the device's own time.
typedef void (*FakeLaunch)(void* stream, double duration_ns);
/// Moves the device's time forward, as if so much real time had passed, until fake_reset().
typedef void (*FakeSkip)(double duration_ns);
typedef void* (*FakeMakeStream)(int device);
/// The calling thread's device, with its context current; -1 for a thread that has not used any. As with HIP, a device
/// that is current may be unused: creating a stream or an event on it is the first use.
typedef void (*FakeUseDevice)(int device);
/// Makes the context of the last device an additional one of device 0, as a program may do with CUDA: objects of one
/// context cannot be used in the other.
typedef void (*FakeSecondContext)();
/// The calling thread's current stream on a device, as torch would return it.
typedef void (*FakeUseStream)(int device, void* stream);
typedef void (*FakeBeginCapture)(void* stream);
/// Whether the capture is still valid.
typedef int (*FakeEndCapture)(void* stream);
/// The device time of the event that the calling thread recorded last, in ns.
typedef double (*FakeLastRecord)();
}
