// arguments.cpp: columns of arguments, which grow and can change their types.
#include "trace/arguments.h"

#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#include "trace/text.h"

namespace stagespan::trace {

namespace {

// Doubles are exact for integers up to here.
constexpr std::int64_t kExact = std::int64_t{1} << 53;

constexpr std::array<const char*, static_cast<std::size_t>(Role::kCount)> kRoleNames{
    "",       "correlation", "connection_id", "External id",      "external id",
    "device", "stream",      "Python id",     "Python parent id", "Task Type"};

std::int32_t text_of(std::int64_t value, Interner* texts) {
  char buffer[24];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return static_cast<std::int32_t>(texts->code({buffer, static_cast<std::size_t>(result.ptr - buffer)}));
}

std::int32_t text_of(double value, Interner* texts) {
  char buffer[40];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return static_cast<std::int32_t>(texts->code(text));
}

}  // namespace

const char* name_of(Role role) noexcept { return kRoleNames[static_cast<std::size_t>(role)]; }

void ArgumentColumn::add(const Value& value, bool text, Interner* texts, std::string* scratch) {
  if (type_ != Type::kText && !text) {
    switch (value.kind) {
      case Kind::kTrue:
      case Kind::kFalse:
        return add_integer(value.kind == Kind::kTrue ? 1 : 0, texts);
      case Kind::kNumber: {
        std::int64_t integer = 0;
        if (!value.number.whole) return add_real(as_double(value.number, value.written), texts);
        if (as_integer(value.number, &integer)) return add_integer(integer, texts);
        break;
      }
      default:
        break;
    }
  }
  if (type_ != Type::kText) to_text(texts);
  std::string_view said = value.written;
  if (value.kind == Kind::kString && !value.plain) {
    unescape(value.written, scratch);
    said = *scratch;
  }
  const std::uint32_t guess = narrow_.empty() ? 0 : static_cast<std::uint32_t>(narrow_.back());
  narrow_.push(static_cast<std::int32_t>(texts->code(said, guess)));
}

void ArgumentColumn::add_integer(std::int64_t value, Interner* texts) {
  using Limits = std::numeric_limits<std::int32_t>;
  if (type_ == Type::kEmpty) type_ = Type::kSmall;
  if (type_ == Type::kSmall) {
    if (value >= Limits::min() && value <= Limits::max()) return narrow_.push(static_cast<std::int32_t>(value));
    to_whole();
  }
  if (type_ == Type::kWhole) return whole_.push(value);
  if (value >= -kExact && value <= kExact) return real_.push(static_cast<double>(value));
  to_text(texts);
  narrow_.push(text_of(value, texts));
}

void ArgumentColumn::add_real(double value, Interner* texts) {
  if (type_ == Type::kReal || to_real()) return real_.push(value);
  to_text(texts);
  narrow_.push(text_of(value, texts));
}

void ArgumentColumn::to_whole() {
  for (std::size_t i = 0; i < narrow_.size(); ++i) whole_.push(narrow_[i]);
  narrow_ = Growing<std::int32_t>();
  type_ = Type::kWhole;
}

// Converts integers to doubles. False, with nothing changed, if one of them is too large.
bool ArgumentColumn::to_real() {
  for (std::size_t i = 0; i < whole_.size(); ++i)
    if (whole_[i] > kExact || whole_[i] < -kExact) return false;
  for (std::size_t i = 0; i < narrow_.size(); ++i) real_.push(narrow_[i]);
  for (std::size_t i = 0; i < whole_.size(); ++i) real_.push(static_cast<double>(whole_[i]));
  narrow_ = Growing<std::int32_t>();
  whole_ = Growing<std::int64_t>();
  type_ = Type::kReal;
  return true;
}

void ArgumentColumn::to_text(Interner* texts) {
  for (std::size_t i = 0; i < narrow_.size(); ++i) narrow_[i] = text_of(std::int64_t{narrow_[i]}, texts);
  for (std::size_t i = 0; i < whole_.size(); ++i) narrow_.push(text_of(whole_[i], texts));
  for (std::size_t i = 0; i < real_.size(); ++i) narrow_.push(text_of(real_[i], texts));
  whole_ = Growing<std::int64_t>();
  real_ = Growing<double>();
  type_ = Type::kText;
}

std::uint32_t KeyTree::key(std::string_view text) {
  const std::uint32_t known = texts_.size();
  const std::uint32_t key = texts_.code(text);
  if (key == known) {
    Role role = Role::kNone;
    for (std::size_t i = 1; i < kRoleNames.size(); ++i)
      if (text == kRoleNames[i]) role = static_cast<Role>(i);
    role_.push_back(role);
    had_.emplace_back();
  }
  return key;
}

std::uint32_t KeyTree::find_below(std::uint32_t node, std::uint32_t key) {
  const std::uint64_t edge = std::uint64_t{node} << 32 | key;
  if (const auto found = edges_.find(edge); found != edges_.end()) return next_[node] = found->second;
  if (had_[key].object == object_) return kNoNode;
  const std::uint32_t child = add(node, key);
  edges_.emplace(edge, child);
  return next_[node] = child;
}

std::uint32_t KeyTree::add(std::uint32_t parent, std::uint32_t key) {
  parent_.push(static_cast<std::int32_t>(parent));
  key_.push(key);
  const auto node = static_cast<std::uint32_t>(next_.size());
  next_.push(kNoNode);
  sibling_.push(node);
  if (next_[parent] != kNoNode) std::swap(sibling_[node], sibling_[next_[parent]]);
  leads_.emplace_back();
  return node;
}

void KeyTree::expect(std::uint32_t node, std::string_view lead) noexcept {
  leads_[node] = {};
  if (lead.size() > kLongest) return;
  leads_[node].size = lead.size();
  std::memcpy(leads_[node].text.data(), lead.data(), lead.size());
  std::memset(leads_[node].mask.data(), 0xFF, lead.size());
}

Growing<std::int32_t> KeyTree::take_keys() noexcept {
  Growing<std::int32_t> keys;
  for (std::size_t i = 0; i < key_.size(); ++i) keys.push(i == kRoot ? -1 : static_cast<std::int32_t>(key_[i]));
  return keys;
}

}  // namespace stagespan::trace
