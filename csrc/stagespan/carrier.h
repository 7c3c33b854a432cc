// carrier.h: the texts that take a request to another process: `traceparent` of W3C Trace Context, and our own key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "layout.h"

namespace stagespan {

inline constexpr std::size_t kMostCarrierBytes = 256;                   // of `traceparent` and of our own key
inline constexpr std::size_t kMostStateBytes = 512;                     // of `tracestate`, and
inline constexpr std::size_t kMostStateMembers = 32;                    // as W3C Trace Context asks for at least
inline constexpr std::size_t kMostWrittenBytes = kMostStateBytes + 32;  // of a `tracestate` with our own member
inline constexpr std::size_t kTraceParentBytes = 55;                    // as we write it
inline constexpr std::uint32_t kMostAttempt = 65'535;
inline constexpr std::uint32_t kNewTraceFlags = 3;    // sampled, and with a random trace id
inline constexpr std::uint32_t kKnownTraceFlags = 3;  // those that have a meaning

/// What a `traceparent` says.
struct TraceParent {
  TraceId trace;
  std::uint64_t hop = 0;
  std::uint32_t flags = kNewTraceFlags;
};

/// What our own key says of a hop. The texts are in UTF-8; those of a key that was read are in `decoded`, and may have
/// been cut by the sender.
struct SentHop {
  std::string_view id, queue, branch;
  std::int64_t monotonic_ns = 0;
  std::int64_t unix_ns = 0;
  std::uint64_t clock = 0;  // the identity of the sender's CLOCK_MONOTONIC
  std::uint64_t segment = 0;
  std::uint32_t attempt = 1;
  std::int64_t age_ns = -1;  // of the request when it was sent; negative if unknown, and then left out
  char decoded[kMostCarrierBytes];

  SentHop() = default;
  SentHop(const SentHop&) = delete;
  SentHop& operator=(const SentHop&) = delete;
};

/// Read a text. False if it is malformed, too long, or, for our own key, of another version; `to` is then undefined.
/// Version 1 of our key has no age.
bool read_traceparent(std::string_view text, TraceParent& to) noexcept;
bool read_sent_hop(std::string_view text, SentHop& to) noexcept;
/// Whether the id of a hop that was read is this one, as its sender wrote it.
bool is_id_of(const SentHop& hop, std::string_view id) noexcept;
/// Whether a header can contain a text: printable characters of ASCII, at most `kMostCarrierBytes`.
bool is_header_text(std::string_view text) noexcept;

/// The members of a `tracestate` that are passed on: the well-formed ones from the left, as far as the limits allow.
/// Our own one stays in its place, beside the limit of bytes, if it is believed: in a trusted carrier, and the only
/// one. The text is in `text` if that can be passed on as it is, else in `buffer`; it never has other members than were
/// checked.
struct TraceState {
  std::string_view text;
  std::size_t dropped = 0;    // members
  std::uint64_t segment = 0;  // the segment in our own member, 0 if none is believed
};
TraceState read_tracestate(std::string_view text, bool is_trusted, char (&buffer)[kMostWrittenBytes]) noexcept;

/// Writes our own member, then the others of a text, of which there is one less if they are as many as there may be.
/// Returns the length.
std::size_t write_tracestate(std::uint64_t segment, std::string_view others, char (&to)[kMostWrittenBytes]) noexcept;

/// Write a text, with the flags that have a meaning; the second one returns its length. Its texts are percent-encoded.
/// One that is too long is cut, and ends with a hash of the whole.
void write_traceparent(const TraceParent& parent, char (&to)[kTraceParentBytes]) noexcept;
std::size_t write_sent_hop(const SentHop& hop, char (&to)[kMostCarrierBytes]) noexcept;

}  // namespace stagespan
