#include "export/kept_spans.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include "stagespan/text.h"

namespace stagespan::kept {

namespace {

template <class Number>
void append_number(std::string& out, Number number) {
  char text[32];  // the shortest text of a double has at most 24 characters
  out.append(text, std::to_chars(text, text + sizeof(text), number).ptr);
}

}  // namespace

void append_integer(std::string& out, std::int64_t number) { append_number(out, number); }

void append_integer(std::string& out, std::uint64_t number) { append_number(out, number); }

void append_float(std::string& out, double number) {
  const std::size_t begin = out.size();
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  append_number(out, number);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

void append_text(std::string& out, std::string_view text) {
  out += '"';
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20) {
      out += "\\u00";
      char digits[2];
      out.append(digits, put_hexadecimal(digits, code, 2));
      continue;
    }
    if (letter == '"' || letter == '\\') out += '\\';
    out += letter;
  }
  out += '"';
}

void append_span(std::string& out, const SpanRow& row, const SpanTexts& texts) {
  const auto next = [&out](auto number) {
    out += ',';
    append_number(out, number);
  };
  out += '[';
  append_number(out, row.id);
  next(row.parent);
  out += ',';
  append_text(out, texts.stage);
  out += ',';
  append_text(out, texts.kind);
  next(row.begin_ns);
  next(row.end_ns);
  next(row.thread);
  out += (row.flags & kFlagError) != 0 ? ",true" : ",false";
  next(row.suspended_ns);
  next(row.depth);
  out += ',';
  if (std::isfinite(row.device_elapsed_ns))
    append_number(out, row.device_elapsed_ns);
  else
    out += "null";
  out += ',';
  out += texts.work;
  out += ',';
  out += texts.exception;
  out += ',';
  // A double may be written with an exponent, and readers take such a number for a float.
  if (std::fabs(row.cpu_ns) < 0x1p63)
    append_number(out, static_cast<std::int64_t>(row.cpu_ns));
  else
    out += "null";
  out += ']';
}

}  // namespace stagespan::kept
