// device_torch_event.h: any accelerator that torch knows, through torch.Event.
#pragma once

#include <memory>
#include <string>

#include "device/backend.h"

namespace stagespan::python {

/// The backend for torch's accelerator of this type: "npu", "xpu", or the name of an extension's device. Null, with a
/// sentence as the reason, if torch cannot time it. The caller holds the interpreter's lock.
std::unique_ptr<device::EventBackend> make_torch_event_backend(const std::string& kind, std::string& reason);

}  // namespace stagespan::python
