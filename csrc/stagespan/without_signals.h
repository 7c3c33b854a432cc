// without_signals.h: blocks signals, also for threads and processes that are started meanwhile.
#pragma once

#include <signal.h>

namespace stagespan {

/// Blocks all signals of the calling thread while this object exists. A thread that is started meanwhile never handles
/// signals, so the program's own threads do.
class WithoutSignals {
 public:
  WithoutSignals() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace stagespan
