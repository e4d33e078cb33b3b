// Another process of this program: a section, or an exporter of memory. A failure there (a failed
// device, SIGKILL) does not affect this process.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws::gpu_check {

// Lifecycle: the destructor kills it if it still runs. Threads: one.
class ChildProcess {
 public:
  struct Setup {
    std::string program;  // empty: this program
    std::vector<std::string> arguments;
    std::vector<std::pair<std::string, std::string>> environment;  // added to or replacing ours
    // Our descriptor, given to the child.
    int fd = -1;
    int as = 3;  // as this number
  };
  // UNAVAILABLE and others from errno.
  static Result<ChildProcess> Start(const Setup& setup);

  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess() { Kill(); }

  // Sends SIGKILL and waits until it has ended.
  void Kill();
  // Waits until it ends by itself. INTERNAL: it exited with another status than 0, or by a signal.
  Status Wait();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_ = -1;
};

// Raises the limit of descriptors as far as possible: each VMM chunk takes one while it is handed
// over.
void RaiseDescriptorLimit();

}  // namespace dws::gpu_check
