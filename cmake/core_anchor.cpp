// Gives the core library one object file when all of it is headers.
namespace stagespan::detail {
extern const int core_anchor;
const int core_anchor = 0;
}  // namespace stagespan::detail
