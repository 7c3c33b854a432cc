// kept_spans.h: spans as arrays of JSON, in the order of the fields of `stagespan.recording.spans.Span`.
#pragma once

#include <string>
#include <string_view>

#include "stagespan/span_row.h"

namespace stagespan::kept {

/// What is known of a span besides its columns. The last two are JSON.
struct SpanTexts {
  std::string_view stage;
  std::string_view kind;
  std::string_view work = "null";            // an object with the amounts by unit
  std::string_view exception = "null,null";  // its type and its message
};

/// Appends a number; a float always looks like one.
void append_integer(std::string& out, std::int64_t number);
void append_integer(std::string& out, std::uint64_t number);
void append_float(std::string& out, double number);

/// Appends a text in quotes, which has to be UTF-8.
void append_text(std::string& out, std::string_view text);

/// Appends a span, without the fields of open spans and of batches.
void append_span(std::string& out, const SpanRow& row, const SpanTexts& texts);

}  // namespace stagespan::kept
