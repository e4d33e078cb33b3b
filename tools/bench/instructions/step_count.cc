// 1. The child asks to be traced and stops.
// 2. It runs freely up to a mark, a signal that it sends to itself.
// 3. From there to the next mark the parent steps it, one instruction at a time, and then
//    leaves the count in memory that both share.
#include "tools/bench/instructions/step_count.h"

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "common/base/check.h"

namespace dws::bench {
namespace {

constexpr int kMark = SIGUSR1;

// Null outside CountSteps. Written by the parent, read by the child.
volatile uint64_t* shared_count = nullptr;

[[noreturn]] void RunTraced(const std::function<int()>& run) {
  DWS_CHECK(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0);
  DWS_CHECK(std::raise(SIGSTOP) == 0);
  const int result = run();
  std::fflush(stdout);
  _exit(result);
}

// Runs until the child ends.
int Step(pid_t child) {
  bool is_counting = false;
  uint64_t count = 0;
  while (true) {
    int status = 0;
    DWS_CHECK(waitpid(child, &status, 0) == child);
    if (!WIFSTOPPED(status)) return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    int deliver = 0;
    if (WSTOPSIG(status) == kMark) {
      if (is_counting) *shared_count = count;
      is_counting = !is_counting;
      count = 0;
    } else if (WSTOPSIG(status) == SIGTRAP) {
      ++count;
    } else if (WSTOPSIG(status) != SIGSTOP) {
      deliver = WSTOPSIG(status);  // it crashes
    }
    DWS_CHECK(ptrace(is_counting ? PTRACE_SINGLESTEP : PTRACE_CONT, child, nullptr, deliver) == 0);
  }
}

}  // namespace

int CountSteps(const std::function<int()>& run) {
  void* const page =
      mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  DWS_CHECK(page != MAP_FAILED);
  shared_count = static_cast<volatile uint64_t*>(page);
  std::fflush(stdout);  // else the child prints it again
  const pid_t child = fork();
  DWS_CHECK(child >= 0);
  if (child == 0) RunTraced(run);
  const int result = Step(child);
  shared_count = nullptr;
  DWS_CHECK(munmap(page, sizeof(uint64_t)) == 0);
  return result;
}

void BeginSteps() {
  if (shared_count != nullptr) DWS_CHECK(std::raise(kMark) == 0);
}

std::optional<uint64_t> EndSteps() {
  if (shared_count == nullptr) return std::nullopt;
  DWS_CHECK(std::raise(kMark) == 0);
  return *shared_count;
}

}  // namespace dws::bench
