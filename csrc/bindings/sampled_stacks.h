// sampled_stacks.h: the stacks of Python frames that the sampler has seen, and their times.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stagespan::python {

/// A tree of stacks: each node is a function below its callers, and each leaf a line of a function with the operation
/// that was executed there. Only leaves have times. It keeps references to code and classes, never to frames.
class SampledStacks {
 public:
  /// The roots: the main thread, and all other threads.
  static constexpr std::uint32_t kMainThread = 0, kOtherThreads = 1;

  /// The leaf of the running frame of a thread, below one of the roots; a root if it runs no Python code. Needs the
  /// interpreter's lock. Creates frame objects: call it while NoCollection exists.
  std::uint32_t leaf_of(PyThreadState* thread, std::uint32_t root) noexcept;

  /// Adds to a leaf the time since the sample before, and for how much of it the thread computed and waited. It was
  /// ready for the rest.
  void add(std::uint32_t leaf, std::int64_t wall_ns, std::int64_t cpu_ns, std::int64_t waiting_ns) noexcept {
    nodes_[leaf].wall_ns += wall_ns;
    nodes_[leaf].cpu_ns += cpu_ns;
    nodes_[leaf].waiting_ns += waiting_ns;
  }

  /// Everything as lines: fields with tabs between them. `process/sampler.py` describes them.
  std::string text() const;

  /// Forgets everything, in a forked child. Needs the interpreter's lock.
  void clear() noexcept;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Code {
    PyCodeObject* object;
    PyObject* operations;  // the bytes of its operations, once a leaf is in it
    std::string module, name, file;
    int line;
    bool shows_class;
  };
  struct Key {
    std::uint32_t parent, code, type, leaf;  // leaf: 0, or the line and the operation
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Node {
    Key key;
    std::int64_t wall_ns = 0, cpu_ns = 0, waiting_ns = 0;
  };

  std::uint32_t code_of(PyFrameObject* frame) noexcept;
  std::uint32_t class_of(PyFrameObject* frame) noexcept;
  std::uint32_t operation_of(PyFrameObject* frame, Code& code) noexcept;
  std::uint32_t child(const Key& key, std::uint32_t otherwise) noexcept;

  std::vector<Code> codes_;
  std::vector<std::pair<PyTypeObject*, std::string>> classes_;
  std::vector<Node> nodes_{Node{}, Node{}};
  std::unordered_map<PyCodeObject*, std::uint32_t> code_places_;
  std::unordered_map<PyTypeObject*, std::uint32_t> class_places_;
  std::unordered_map<Key, std::uint32_t, KeyHash> places_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> path_;  // code and class, from the inside out
};

}  // namespace stagespan::python
