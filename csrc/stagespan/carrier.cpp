// carrier.cpp: reads and writes the texts of carriers, which come from anywhere.
#include "carrier.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "text.h"

namespace stagespan {

namespace {

constexpr std::size_t kMostIdBytes = 96;
constexpr std::size_t kMostQueueBytes = 40;
constexpr std::size_t kMostBranchBytes = 16;
constexpr std::string_view kOwnMember = "stagespan=";
constexpr std::int64_t kLatestNs = std::int64_t{1} << 62;

/// By character: the value of a hexadecimal digit in lower case, or -1.
constexpr std::array<signed char, 256> kValues = [] {
  std::array<signed char, 256> values{};
  values.fill(-1);
  for (int value = 0; value < 16; ++value)
    values[static_cast<unsigned char>(kHexadecimal[value])] = static_cast<signed char>(value);
  return values;
}();

int digit(char c) noexcept { return kValues[static_cast<unsigned char>(c)]; }

/// Whether a character of a text is not encoded.
bool is_plain(char c) noexcept {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' || c == '~' || c == '-';
}

/// Takes fields from the start of a text. After the first one that is malformed, nothing is taken.
class Fields {
 public:
  explicit Fields(std::string_view text) noexcept : rest_(text) {}

  std::string_view rest() const noexcept { return rest_; }
  bool is_at_end() const noexcept { return rest_.empty(); }

  bool character(char c) noexcept {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  /// A number of exactly `digits` digits, in lower case.
  template <class Number>
  bool hexadecimal(std::size_t digits, Number& to) noexcept {
    if (rest_.size() < digits) return false;
    std::uint64_t value = 0;
    int all = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const int next = digit(rest_[i]);
      all |= next;
      value = value << 4 | static_cast<std::uint64_t>(next & 0xF);
    }
    if (all < 0) return false;
    to = static_cast<Number>(value);
    rest_.remove_prefix(digits);
    return true;
  }

  bool decimal(std::size_t most_digits, std::uint32_t& to) noexcept {
    std::size_t length = 0;
    to = 0;
    for (; length < rest_.size() && rest_[length] >= '0' && rest_[length] <= '9'; ++length) {
      if (length == most_digits) return false;
      to = to * 10 + static_cast<std::uint32_t>(rest_[length] - '0');
    }
    rest_.remove_prefix(length);
    return length != 0;
  }

  /// A text up to the next semicolon or the end, decoded to `at`, which moves behind it.
  bool encoded(char*& at, std::string_view& to) noexcept {
    char* const begin = at;
    std::size_t i = 0;
    for (; i < rest_.size() && rest_[i] != ';'; ++i) {
      if (rest_[i] != '%') {
        if (!is_plain(rest_[i])) return false;
        *at++ = rest_[i];
        continue;
      }
      const int high = i + 1 < rest_.size() ? digit(rest_[i + 1]) : -1;
      const int low = i + 2 < rest_.size() ? digit(rest_[i + 2]) : -1;
      if (high < 0 || low < 0) return false;
      *at++ = static_cast<char>(high << 4 | low);
      i += 2;
    }
    rest_.remove_prefix(i);
    to = {begin, static_cast<std::size_t>(at - begin)};
    return true;
  }

 private:
  std::string_view rest_;
};

/// Sixteen bytes in one register: SSE2 and NEON add and compare all of them at once.
using Bytes = std::uint8_t __attribute__((vector_size(16)));

/// The first eight bytes of two vectors, alternately.
Bytes interleaved(Bytes first, Bytes second) noexcept {
#if defined(__clang__)
  return __builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#else
  return __builtin_shuffle(first, second, Bytes{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
#endif
}

Bytes vector_of(std::uint64_t eight_bytes) noexcept {
  using Words = std::uint64_t __attribute__((vector_size(16)));
  return reinterpret_cast<Bytes>(Words{eight_bytes, 0});
}

/// Puts sixteen digits at once: a nibble in each byte, then a character.
char* put_sixteen(char* to, std::uint64_t value) noexcept {
  constexpr std::uint64_t kLowNibbles = 0x0F0F0F0F0F0F0F0F;
  const std::uint64_t highest_first = __builtin_bswap64(value);
  const Bytes nibbles =
      interleaved(vector_of(highest_first >> 4 & kLowNibbles), vector_of(highest_first & kLowNibbles));
  const Bytes are_letters = static_cast<Bytes>(nibbles > 9);  // all bits of a byte
  const Bytes text = nibbles + '0' + (are_letters & ('a' - '0' - 10));
  std::memcpy(to, &text, sizeof(text));
  return to + sizeof(text);
}

std::string_view stripped(std::string_view text) noexcept {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Puts whole characters until one does not fit into `most_bytes`. False if one does not.
bool put_characters(std::string_view text, std::size_t most_bytes, char*& to) noexcept {
  const char* const end = to + most_bytes;
  for (std::size_t i = 0; i < text.size();) {
    if (is_plain(text[i])) {
      if (to == end) return false;
      *to++ = text[i++];
      continue;
    }
    std::size_t bytes = 1;
    while (bytes < 4 && i + bytes < text.size() && (static_cast<unsigned char>(text[i + bytes]) & 0xC0) == 0x80)
      ++bytes;
    if (3 * bytes > static_cast<std::size_t>(end - to)) return false;
    for (; bytes > 0; --bytes) {
      *to++ = '%';
      to = put_hexadecimal(to, static_cast<unsigned char>(text[i++]), 2);
    }
  }
  return true;
}

char* put_encoded(char* to, std::string_view text, std::size_t most_bytes) noexcept {
  char* at = to;
  if (put_characters(text, most_bytes, at)) return at;
  const std::uint64_t hash = fnv1a(text);
  const int digits = static_cast<int>(std::min<std::size_t>(16, most_bytes / 2));
  at = to;
  put_characters(text, most_bytes - 1 - static_cast<std::size_t>(digits), at);
  *at++ = '~';
  // The high bits of FNV-1a depend on few of the last characters.
  return put_hexadecimal(at, digits == 16 ? hash : hash ^ hash >> 32, digits);
}

/// Whether a member of a `tracestate` is a key and a value as the specification defines them.
bool is_state_member(std::string_view member) noexcept {
  constexpr std::size_t kMostPartBytes = 256;
  const std::size_t equals = member.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view key = member.substr(0, equals), value = member.substr(equals + 1);
  const auto is_plain_key = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  const auto is_in_key = [&](char c) {
    return is_plain_key(c) || c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
  };
  const auto is_in_value = [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; };
  return !key.empty() && key.size() <= kMostPartBytes && is_plain_key(key.front()) &&
         std::all_of(key.begin(), key.end(), is_in_key) && !value.empty() && value.size() <= kMostPartBytes &&
         std::all_of(value.begin(), value.end(), is_in_value);
}

/// Removes a member and one comma beside it from a state in a buffer, if there is one. Returns the bytes removed.
std::size_t removed(std::string_view member, std::string_view state, char* buffer) noexcept {
  if (member.empty()) return 0;
  const auto at = static_cast<std::size_t>(member.data() - state.data());
  const std::size_t begin = at != 0 ? at - 1 : 0;
  const std::size_t end = std::min(at + member.size() + (at != 0 ? 0 : 1), state.size());
  std::memmove(buffer + begin, buffer + end, state.size() - end);
  return end - begin;
}

}  // namespace

bool read_traceparent(std::string_view text, TraceParent& to) noexcept {
  if (text.size() > kMostCarrierBytes) return false;
  Fields fields(stripped(text));
  std::uint32_t version = 0;
  if (!fields.hexadecimal(2, version) || !fields.character('-') || !fields.hexadecimal(16, to.trace.high) ||
      !fields.hexadecimal(16, to.trace.low) || !fields.character('-') || !fields.hexadecimal(16, to.hop) ||
      !fields.character('-') || !fields.hexadecimal(2, to.flags))
    return false;
  // Later versions may have more fields.
  const bool has_more = !fields.is_at_end();
  if (has_more && (version == 0 || !fields.character('-'))) return false;
  for (const char c : fields.rest())
    if (c < '!' || c > '~') return false;
  return version != 0xFF && (to.trace.high | to.trace.low) != 0 && to.hop != 0;
}

bool read_sent_hop(std::string_view text, SentHop& to) noexcept {
  if (text.size() > kMostCarrierBytes) return false;
  Fields fields(text);
  char* at = to.decoded;
  const bool has_no_age = fields.character('1');
  const bool is_whole = (has_no_age || fields.character('2')) && fields.character(';') && fields.encoded(at, to.id) &&
                        fields.character(';') && fields.hexadecimal(16, to.monotonic_ns) && fields.character(';') &&
                        fields.hexadecimal(16, to.unix_ns) && fields.character(';') &&
                        fields.hexadecimal(16, to.clock) && fields.character(';') &&
                        fields.hexadecimal(16, to.segment) && fields.character(';') && fields.encoded(at, to.queue) &&
                        fields.character(';') && fields.decimal(5, to.attempt) && fields.character(';') &&
                        fields.encoded(at, to.branch);
  to.age_ns = -1;
  const bool has_age = !has_no_age && fields.character(';');
  if (has_age && (!fields.hexadecimal(16, to.age_ns) || to.age_ns < 0 || to.age_ns >= kLatestNs)) return false;
  return is_whole && fields.is_at_end() && to.monotonic_ns >= 0 && to.monotonic_ns < kLatestNs && to.unix_ns >= 0 &&
         to.unix_ns < kLatestNs && to.attempt >= 1 && to.attempt <= kMostAttempt;
}

bool is_id_of(const SentHop& hop, std::string_view id) noexcept {
  if (hop.id == id) return true;
  char sent[kMostIdBytes], own[kMostIdBytes];
  const std::string_view sent_text(sent, static_cast<std::size_t>(put_encoded(sent, hop.id, kMostIdBytes) - sent));
  const std::string_view own_text(own, static_cast<std::size_t>(put_encoded(own, id, kMostIdBytes) - own));
  return sent_text == own_text;
}

bool is_header_text(std::string_view text) noexcept {
  return text.size() <= kMostCarrierBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '!' && c <= '~'; });
}

std::size_t write_tracestate(std::uint64_t segment, std::string_view others, char (&to)[kMostWrittenBytes]) noexcept {
  std::memcpy(to, kOwnMember.data(), kOwnMember.size());
  char* at = put_sixteen(to + kOwnMember.size(), segment);
  for (std::size_t members = 1; !others.empty() && members < kMostStateMembers;) {
    const std::size_t end = std::min(others.find(','), others.size());
    const std::string_view member = stripped(others.substr(0, end));
    others.remove_prefix(std::min(end + 1, others.size()));
    if (member.empty() || member.starts_with(kOwnMember)) continue;
    if (static_cast<std::size_t>(at - to) + 1 + member.size() > kMostWrittenBytes) continue;
    *at++ = ',';
    std::memcpy(at, member.data(), member.size());
    at += member.size();
    ++members;
  }
  return static_cast<std::size_t>(at - to);
}

TraceState read_tracestate(std::string_view text, bool is_trusted, char (&buffer)[kMostWrittenBytes]) noexcept {
  TraceState state;
  std::string_view own_member;  // our member, in the buffer
  bool has_own = false;
  std::size_t members = 0, bytes = 0;
  for (std::string_view unread = text; !unread.empty();) {
    const std::size_t end = std::min(unread.find(','), unread.size());
    const std::string_view member = stripped(unread.substr(0, end));
    const bool is_own = member.starts_with(kOwnMember);
    Fields digits(is_own ? member.substr(kOwnMember.size()) : member);
    if (is_own && (!is_trusted || has_own || !digits.hexadecimal(16, state.segment) || !digits.is_at_end())) {
      // Only one process can have been the last: of several, none is believed.
      state.segment = 0;
      bytes -= removed(own_member, std::string_view(buffer, bytes), buffer);
      members -= own_member.empty() ? 0 : 1;
      own_member = {};
      has_own = true;
    } else if (!member.empty() && !is_own && !is_state_member(member)) {
      ++state.dropped;
    } else if (!member.empty()) {
      const std::size_t counted_bytes = bytes + (bytes != 0 ? 1 : 0) + member.size();
      const std::size_t beside_bytes = is_own ? member.size() + 1 : own_member.empty() ? 0 : own_member.size() + 1;
      if (members == kMostStateMembers || counted_bytes > kMostStateBytes + beside_bytes) {
        // The others are dropped too: members of less weight are on the right.
        state.segment = own_member.empty() ? 0 : state.segment;
        state.dropped += 1 + static_cast<std::size_t>(std::count(unread.begin(), unread.end(), ','));
        break;
      }
      if (bytes != 0) buffer[bytes++] = ',';
      std::memcpy(buffer + bytes, member.data(), member.size());
      if (is_own) own_member = std::string_view(buffer + bytes, member.size());
      has_own = has_own || is_own;
      bytes += member.size();
      ++members;
    }
    unread.remove_prefix(std::min(end + 1, unread.size()));
  }
  const bool is_whole = has_own == !own_member.empty() && state.dropped == 0 && text.size() <= kMostStateBytes;
  state.text = is_whole && bytes != 0 ? text : std::string_view(buffer, bytes);
  return state;
}

void write_traceparent(const TraceParent& parent, char (&to)[kTraceParentBytes]) noexcept {
  char* at = to;
  *at++ = '0';
  *at++ = '0';
  *at++ = '-';
  at = put_sixteen(at, parent.trace.high);
  at = put_sixteen(at, parent.trace.low);
  *at++ = '-';
  at = put_sixteen(at, parent.hop);
  *at++ = '-';
  // Others must be 0 in a new one, until a version of the specification gives them a meaning.
  put_hexadecimal(at, parent.flags & kKnownTraceFlags, 2);
}

std::size_t write_sent_hop(const SentHop& hop, char (&to)[kMostCarrierBytes]) noexcept {
  char* at = to;
  *at++ = '2';
  *at++ = ';';
  at = put_encoded(at, hop.id, kMostIdBytes);
  for (const std::uint64_t number : {static_cast<std::uint64_t>(hop.monotonic_ns),
                                     static_cast<std::uint64_t>(hop.unix_ns), hop.clock, hop.segment}) {
    *at++ = ';';
    at = put_sixteen(at, number);
  }
  *at++ = ';';
  at = put_encoded(at, hop.queue, kMostQueueBytes);
  *at++ = ';';
  at = std::to_chars(at, to + sizeof(to), hop.attempt).ptr;
  *at++ = ';';
  at = put_encoded(at, hop.branch, kMostBranchBytes);
  if (hop.age_ns >= 0) {
    *at++ = ';';
    at = put_sixteen(at, static_cast<std::uint64_t>(hop.age_ns));
  }
  return static_cast<std::size_t>(at - to);
}

}  // namespace stagespan
