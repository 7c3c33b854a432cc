// device_torch_event.h: any accelerator that torch knows, through torch.Event.
#pragma once

#include <memory>
#include <string>

#include "device/backend.h"

namespace stagespan::python {

/// The accelerator of this type, as torch has it: "npu", "xpu", or a name that an extension gave its own. Null, with
/// the reason in one sentence, where torch cannot time it. The interpreter's lock is held.
std::unique_ptr<device::EventBackend> make_torch_event_backend(const std::string& kind, std::string& reason);

}  // namespace stagespan::python
