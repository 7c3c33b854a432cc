// device.cpp: attaches a device from Python, and returns facts about it.
#include <pybind11/stl.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "completions.h"
#include "device/driver_backend.h"
#include "device/layer.h"
#include "device_torch_event.h"
#include "module.h"
#include "object.h"
#include "timed_run.h"

namespace py = pybind11;

namespace stagespan::python {

namespace {

std::string g_reason = "no device has been attached";  // guarded by the interpreter's lock

std::unique_ptr<device::EventBackend> make_backend(const std::string& kind, std::string& reason) {
  if (kind == "cuda" || kind == "rocm") return device::DriverBackend::find(kind, reason);
  return make_torch_event_backend(kind, reason);
}

bool attach(const std::string& kind) {
  if (kind.empty() || kind == "cpu") {
    g_reason = "a CPU has only host time";
    return false;
  }
  if (device::is_forked()) {
    g_reason = "this process was forked from one that had its device attached: drivers do not survive that";
    return false;
  }
  const device::Layer* const now = device::attached();
  if (now != nullptr && now->kind() == kind && !now->has_failed()) return true;
  std::string reason;
  std::unique_ptr<device::EventBackend> backend = make_backend(kind, reason);
  if (backend == nullptr) {
    g_reason = reason;
    return false;
  }
  wait_for_devices_too();
  device::attach(kind, std::move(backend));
  g_reason.clear();
  ensure_service();
  return true;
}

/// CUDA_DEVICE_MAX_CONNECTIONS; nothing if it is not set or not a number.
std::optional<unsigned long> max_connections() {
  const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (text == nullptr || std::strchr(text, '-') != nullptr) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const unsigned long number = std::strtoul(text, &end, 10);
  if (end == text || errno != 0 || end[std::strspn(end, " \t\n")] != '\0') return std::nullopt;
  return number;
}

py::dict info() {
  const NoCollection by_allocations;
  py::dict result;
  const bool is_forked = device::is_forked();
  const device::Layer* const attached = device::attached();
  // After a fork, locks of the parent's threads may never be released.
  device::Layer* const layer = is_forked ? nullptr : device::latest();
  const bool works = attached != nullptr && !attached->has_failed();
  result["attached"] = works;
  result["kind"] = layer != nullptr ? py::object(py::str(layer->kind())) : py::none();
  result["backend"] = layer != nullptr ? py::object(py::str(layer->backend().name())) : py::none();
  std::optional<std::string> reason;
  if (is_forked)
    reason = "this process was forked from one that had its device attached: drivers do not survive that";
  else if (attached != nullptr && !works)
    reason = "the driver failed again and again, the last time with status " +
             std::to_string(attached->backend().last_error());
  else if (!works)
    reason = g_reason;
  result["reason"] = reason;
  result["symbols"] = layer != nullptr ? layer->backend().symbols() : std::map<std::string, bool>();
  result["pending"] = device::pending();
  result["resolved"] = layer != nullptr ? layer->resolver().resolved() : 0;
  result["event_pairs"] = layer != nullptr ? layer->pairs() : 0;
  result["event_pairs_limit"] = device::kPairsPerProcess;
  result["threads"] = layer != nullptr ? layer->threads() : 0;
  result["base_error_ns"] = layer != nullptr ? layer->resolver().base_error_ns() : std::nullopt;
  result["base_age_s"] = layer != nullptr ? layer->resolver().base_age_s() : std::nullopt;
  result["device_every"] = device::every();
  result["is_forked"] = is_forked;
  result["max_connections"] = max_connections();
  const int last_error = layer != nullptr ? layer->backend().last_error() : 0;
  result["last_error"] = last_error != 0 ? std::optional(last_error) : std::nullopt;
  return result;
}

std::uint32_t device_every(std::optional<std::int64_t> every) {
  if (every) {
    if (*every < 0 || *every > UINT32_MAX)
      throw py::value_error("device_every is " + std::to_string(*every) +
                            ": pass 0 for none, 1 for all, or n for every n-th span of a stage");
    device::set_every(static_cast<std::uint32_t>(*every));
  }
  return device::every();
}

}  // namespace

void define_device(py::module_& module) {
  module.def("device_attach", attach, py::arg("kind"));
  module.def("device_info", info);
  module.def("device_every", device_every, py::arg("every") = py::none());
}

}  // namespace stagespan::python
