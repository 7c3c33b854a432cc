// sampled_stacks.cpp: reads frames of other threads by public functions, and the first argument without f_locals.
#include "sampled_stacks.h"

#include <frameobject.h>

#include <algorithm>
#include <string_view>

#include "object.h"

namespace stagespan::python {

namespace {

constexpr std::size_t kDeepest = 4096;   // frames that are read of a stack
constexpr std::size_t kMostShown = 192;  // frames that are kept of them, the outermost ones
constexpr std::size_t kMostNodes = 200'000;
constexpr std::size_t kMostCodes = 50'000;  // a program may make code without end

// Methods that tell less than the class of their object: those of modules of torch, and calls of objects.
constexpr std::string_view kNamedByClass[] = {"forward", "__call__", "_call_impl", "_wrapped_call_impl"};

std::string text_of(PyObject* object) {
  const char* const text = object != nullptr && PyUnicode_Check(object) != 0 ? PyUnicode_AsUTF8(object) : nullptr;
  PyErr_Clear();
  std::string printable(text == nullptr ? "?" : text);
  // The characters that end fields and lines.
  std::replace_if(printable.begin(), printable.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return printable;
}

Ref globals_of(PyFrameObject* frame) noexcept {
#if PY_VERSION_HEX >= 0x030b0000
  return Ref(PyFrame_GetGlobals(frame));
#else
  return Ref(Py_NewRef(frame->f_globals));
#endif
}

Ref first_parameter(PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030b0000
  const Ref names(PyCode_GetVarnames(code));
  return Ref(names && PyTuple_GET_SIZE(names.get()) > 0 ? Py_NewRef(PyTuple_GET_ITEM(names.get(), 0)) : nullptr);
#else
  return Ref(PyTuple_GET_SIZE(code->co_varnames) > 0 ? Py_NewRef(PyTuple_GET_ITEM(code->co_varnames, 0)) : nullptr);
#endif
}

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000
// The beginnings of Python 3.11's frames, which did not change between its releases. It has no function that reads a
// variable of a frame, and `f_locals` would keep the values of all variables alive until the function returns.
struct InterpreterFrame311 {
  PyObject *function, *globals, *builtins, *locals;
  PyCodeObject* code;
  PyFrameObject* frame_object;
  InterpreterFrame311* previous;
  void* previous_instruction;
  int stack_top;
  bool is_entry;
  char owner;
  PyObject* variables[1];
};
struct Frame311 {
  PyObject head;
  PyFrameObject* back;
  InterpreterFrame311* frame;
};
#endif

// The object `self` of a frame whose function has it as first parameter; empty if it has been deleted.
Ref self_of(PyFrameObject* frame) noexcept {
#if PY_VERSION_HEX >= 0x030c0000
  Ref self(PyFrame_GetVarString(frame, "self"));
  PyErr_Clear();
  return self;
#else
#if PY_VERSION_HEX >= 0x030b0000
  PyObject* self = reinterpret_cast<Frame311*>(frame)->frame->variables[0];
#else
  PyObject* self = frame->f_localsplus[0];
  // An inner function uses it: the frame has it in a cell.
  if (self == nullptr && PyTuple_GET_SIZE(frame->f_code->co_cellvars) > 0)
    self = frame->f_localsplus[frame->f_code->co_nlocals];
#endif
  if (self != nullptr && PyCell_Check(self) != 0) self = PyCell_GET(self);
  return Ref(Py_XNewRef(self));
#endif
}

int instruction_of(PyFrameObject* frame) noexcept {
#if PY_VERSION_HEX >= 0x030b0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti * 2;
#endif
}

PyObject* operations_of(PyCodeObject* code) noexcept {
#if PY_VERSION_HEX >= 0x030b0000
  return PyCode_GetCode(code);
#else
  return Py_NewRef(code->co_code);
#endif
}

}  // namespace

std::size_t SampledStacks::KeyHash::operator()(const Key& key) const noexcept {
  const std::uint64_t both[] = {(std::uint64_t{key.parent} << 32) | key.code,
                                (std::uint64_t{key.type} << 32) | key.leaf};
  std::uint64_t mixed = both[0] * 0x9e3779b97f4a7c15 ^ both[1] * 0xc2b2ae3d27d4eb4f;
  mixed ^= mixed >> 29;
  return mixed * 0xbf58476d1ce4e5b9;
}

std::uint32_t SampledStacks::child(const Key& key, std::uint32_t otherwise) noexcept {
  const auto found = places_.find(key);
  if (found != places_.end()) return found->second;
  if (nodes_.size() >= kMostNodes) return otherwise;
  nodes_.push_back({key});
  places_.emplace(key, static_cast<std::uint32_t>(nodes_.size() - 1));
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::uint32_t SampledStacks::code_of(PyFrameObject* frame) noexcept {
  Ref held(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  auto* const code = reinterpret_cast<PyCodeObject*>(held.get());
  const auto found = code_places_.find(code);
  if (found != code_places_.end()) return found->second;
  if (codes_.size() == kMostCodes) codes_.push_back({nullptr, nullptr, "?", "(other code)", "<other>", 0, false});
  if (codes_.size() > kMostCodes) return kMostCodes;
  const Ref globals = globals_of(frame);
  const Ref parameter = first_parameter(code);
  const std::string name = text_of(code->co_name);
  bool shows_class = code->co_argcount > 0 && parameter && text_of(parameter.get()) == "self";
#if PY_VERSION_HEX >= 0x030b0000
  const std::string qualified = text_of(code->co_qualname);
  shows_class &= std::find(std::begin(kNamedByClass), std::end(kNamedByClass), name) != std::end(kNamedByClass);
#else
  const std::string& qualified = name;  // the class of `self` is all that tells of the class
#endif
  PyObject* const module =
      globals && PyDict_Check(globals.get()) != 0 ? PyDict_GetItemString(globals.get(), "__name__") : nullptr;
  codes_.push_back(
      {code, nullptr, text_of(module), qualified, text_of(code->co_filename), code->co_firstlineno, shows_class});
  held.release();
  code_places_.emplace(code, static_cast<std::uint32_t>(codes_.size() - 1));
  return static_cast<std::uint32_t>(codes_.size() - 1);
}

std::uint32_t SampledStacks::class_of(PyFrameObject* frame) noexcept {
  const Ref self = self_of(frame);
  if (!self) return kNone;
  PyTypeObject* const type = Py_TYPE(self.get());
  const auto found = class_places_.find(type);
  if (found != class_places_.end()) return found->second;
  const std::string_view name(type->tp_name);
  const std::size_t dot = name.rfind('.');  // before it, types of extensions have the name of their module
  Py_INCREF(type);
  classes_.emplace_back(type, std::string(dot == std::string_view::npos ? name : name.substr(dot + 1)));
  class_places_.emplace(type, static_cast<std::uint32_t>(classes_.size() - 1));
  return static_cast<std::uint32_t>(classes_.size() - 1);
}

// The line and the operation that a frame executes, as one number above 0.
std::uint32_t SampledStacks::operation_of(PyFrameObject* frame, Code& code) noexcept {
  if (code.operations == nullptr && code.object != nullptr) code.operations = operations_of(code.object);
  PyErr_Clear();
  const int at = instruction_of(frame);
  const bool is_known = code.operations != nullptr && PyBytes_Check(code.operations) != 0 && at >= 0 &&
                        at < PyBytes_GET_SIZE(code.operations);
  const auto operation =
      is_known ? static_cast<unsigned char>(PyBytes_AS_STRING(code.operations)[at]) : static_cast<unsigned char>(0);
  const int line = std::max(PyFrame_GetLineNumber(frame), 0);
  return (static_cast<std::uint32_t>(line) << 9) | (1U << 8) | operation;
}

std::uint32_t SampledStacks::leaf_of(PyThreadState* thread, std::uint32_t root) noexcept {
  Ref frame(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
  if (!frame) return root;
  path_.clear();
  const auto innermost = reinterpret_cast<PyFrameObject*>(frame.get());
  const std::uint32_t leaf = operation_of(innermost, codes_[code_of(innermost)]);
  while (frame && path_.size() < kDeepest) {
    auto* const at = reinterpret_cast<PyFrameObject*>(frame.get());
    const std::uint32_t code = code_of(at);
    path_.emplace_back(code, codes_[code].shows_class ? class_of(at) : kNone);
    frame = Ref(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  const std::size_t below = path_.size() - std::min(path_.size(), kMostShown);
  std::uint32_t node = root;
  for (std::size_t at = path_.size(); at-- > below;) node = child({node, path_[at].first, path_[at].second, 0}, node);
  return below > 0 ? node : child({node, path_[0].first, path_[0].second, leaf}, node);
}

std::string SampledStacks::text() const {
  std::string out;
  out.reserve(64 * codes_.size() + 40 * nodes_.size());
  for (const Code& code : codes_)
    out += "code\t" + code.module + '\t' + code.name + '\t' + code.file + '\t' + std::to_string(code.line) + '\n';
  for (const auto& [type, name] : classes_) out += "class\t" + name + '\n';
  for (std::size_t at = 0; at < nodes_.size(); ++at) {
    const Node& node = nodes_[at];
    const bool is_root = at <= kOtherThreads;
    out += "node";
    const std::int64_t fields[] = {is_root ? -1 : std::int64_t{node.key.parent},
                                   is_root ? -1 : std::int64_t{node.key.code},
                                   is_root || node.key.type == kNone ? -1 : std::int64_t{node.key.type},
                                   node.key.leaf == 0 ? -1 : std::int64_t{node.key.leaf >> 9},
                                   std::int64_t{node.key.leaf & 0xff},
                                   node.wall_ns,
                                   node.cpu_ns,
                                   node.waiting_ns};
    for (const std::int64_t field : fields) out += '\t' + std::to_string(field);
    out += '\n';
  }
  return out;
}

void SampledStacks::clear() noexcept {
  nodes_.assign(2, Node{});
  places_.clear();
  // Codes and classes stay: a forked child runs mostly what its parent ran.
}

}  // namespace stagespan::python
