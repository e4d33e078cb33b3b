// A flag that tells other threads of something that goes on.
#pragma once

#include <atomic>

namespace dws {

// Sets the flag while it lives.
class Mark {
 public:
  explicit Mark(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true); }
  ~Mark() { flag_.store(false); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace dws
