// A kernel that runs for a given number of nanoseconds of the device's own timer.
#include <cuda_runtime.h>

__global__ void spin(unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

extern "C" int launch_spin(unsigned long long nanoseconds, void* stream) {
  spin<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(nanoseconds);
  return static_cast<int>(cudaGetLastError());
}
