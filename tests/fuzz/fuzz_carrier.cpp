// fuzz_carrier.cpp: reads texts of carriers, which come from anywhere. It is a target for libFuzzer; fuzz_driver.cpp
// runs it without clang.
//
// The first byte of an input says what the others are: a text, or pairs of position and character that change a text
// that can be read, so that a fuzzer gets past the first checks.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "stagespan/carrier.h"

namespace stagespan {
namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz_carrier: %s\n", what);
  std::abort();
}

bool is_equal(const TraceParent& a, const TraceParent& b) {
  return a.trace.high == b.trace.high && a.trace.low == b.trace.low && a.hop == b.hop;
}

void try_traceparent(std::string_view text) {
  TraceParent found, again;
  if (!read_traceparent(text, found)) return;
  require((found.trace.high | found.trace.low) != 0 && found.hop != 0, "ids of zeroes were read");
  char written[kTraceParentBytes];
  write_traceparent(found, written);
  require(read_traceparent({written, sizeof(written)}, again) && is_equal(found, again), "a header changes");
  require(again.flags == (found.flags & kKnownTraceFlags), "flags without a meaning are passed on");
}

void try_own_key(std::string_view text) {
  SentHop found, again;
  if (!read_sent_hop(text, found)) return;
  require(found.attempt >= 1 && found.attempt <= kMostAttempt, "an impossible attempt was read");
  require(found.age_ns >= -1, "an impossible age was read");
  require(found.monotonic_ns >= 0 && found.unix_ns >= 0, "a negative time was read");
  char written[kMostCarrierBytes];
  const std::string_view rewritten(written, write_sent_hop(found, written));
  for (const char c : rewritten) require(c > ' ' && c <= '~' && !(c >= 'A' && c <= 'Z'), "a character is not plain");
  require(read_sent_hop(rewritten, again), "what was written cannot be read");
  require(found.monotonic_ns == again.monotonic_ns && found.unix_ns == again.unix_ns && found.clock == again.clock &&
              found.segment == again.segment && found.attempt == again.attempt && found.age_ns == again.age_ns,
          "a number changes");
  require(3 * found.id.size() > 96 || found.id == again.id, "an id changes");
  require(3 * found.queue.size() > 40 || found.queue == again.queue, "a queue changes");
  require(3 * found.branch.size() > 16 || found.branch == again.branch, "a branch changes");
}

void try_tracestate(std::string_view text, bool is_trusted) {
  char first[kMostWrittenBytes], second[kMostWrittenBytes];
  const TraceState found = read_tracestate(text, is_trusted, first);
  const bool has_own = found.text.find("stagespan=") != std::string_view::npos;
  require(is_trusted || found.segment == 0, "a segment of an untrusted state is believed");
  require(found.text.size() <= kMostStateBytes || (has_own && found.text.size() <= kMostWrittenBytes),
          "a state is too long");
  for (const char c : found.text) require((c >= ' ' && c <= '~') || c == '\t', "a state contains a control");
  const TraceState again = read_tracestate(found.text, is_trusted, second);
  require(again.dropped == 0 && again.text == found.text && again.segment == found.segment,
          "a state that was kept changes");
}

}  // namespace
}  // namespace stagespan

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stagespan;
  if (size == 0) return 0;
  std::string text;
  if (data[0] % 4 == 0) {
    text.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  } else {
    text = data[0] % 4 == 1 ? "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                            : "2;req%20%c3%bc;0000000000001388;0000000000001770;0000000000000007;0000000000000008;"
                              "decode;12;b;00000000000003e8";
    for (std::size_t i = 1; i + 1 < size; i += 2) {
      const std::size_t place = data[i] % (text.size() + 1);
      const char c = static_cast<char>(data[i + 1] % 2 == 0 ? data[i + 1] : "0123456789abcdef%;-"[data[i + 1] % 19]);
      if (place == text.size())
        text.push_back(c);
      else
        text[place] = c;
    }
  }
  try_traceparent(text);
  try_own_key(text);
  try_tracestate(text, true);
  try_tracestate(text, false);
  return 0;
}
