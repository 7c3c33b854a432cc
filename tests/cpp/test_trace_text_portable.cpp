// test_trace_text_portable.cpp: strings of JSON, on processors without SSE2.
#define STAGESPAN_PORTABLE 1
#include "../../csrc/trace/text.cpp"
#include "trace_text_cases.h"

namespace stagespan::trace {
namespace {

TEST(TraceTextPortable, StringsEndWhereTheyEnd) { strings_end_where_they_end(); }

}  // namespace
}  // namespace stagespan::trace
