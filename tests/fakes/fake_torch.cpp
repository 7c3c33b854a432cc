// fake_torch.cpp: the one function of torch's C shim that is called, as in libtorch_cuda.so and libtorch_hip.so.
#include <cstdint>

extern "C" int fake_current_stream(int device, void** stream);

extern "C" __attribute__((visibility("default"))) int aoti_torch_get_current_cuda_stream(std::int32_t device,
                                                                                         void** stream) {
  return fake_current_stream(device, stream);
}
