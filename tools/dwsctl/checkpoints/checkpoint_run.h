// What the commands over checkpoints share: threads, progress, ^C and exit codes. They ask no
// daemon.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/model/delta_profile.h"
#include "tools/checkpoint/progress.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/base/interrupts.h"
#include "tools/dwsctl/text/progress_text.h"

namespace dws::dwsctl {

struct CheckpointFlags {
  uint32_t threads = 0;  // 0: as many as the machine has cores
  bool json = false;
};
// Adds --threads; --json comes with the command.
void AddCheckpointFlags(CLI::App& command, CheckpointFlags& flags);

// Adds --profile, of those of a delta: fast, wan, direct.
void AddProfileFlag(CLI::App& command, std::string& profile);
DeltaProfile ProfileNamed(const std::string& profile);  // one that the flag let pass

// One command's work. Lifecycle: made before the work, destroyed after it. ^C, SIGTERM and SIGHUP
// end the work with CANCELLED at its next sign of progress. Threads: the one that made it.
class CheckpointRun {
 public:
  static Result<std::unique_ptr<CheckpointRun>> Start(const CheckpointFlags& flags,
                                                      Console& console);
  ~CheckpointRun() { Clear(); }

  ThreadPool& pool() { return pool_; }
  const checkpoint::Progress& progress() const { return progress_; }
  // Takes the progress off the terminal: before anything else is printed.
  void Clear();

 private:
  CheckpointRun(std::unique_ptr<Interrupts> interrupts, size_t threads, Console& console);
  Status Show(const checkpoint::ProgressStep& step);

  const std::unique_ptr<Interrupts> interrupts_;  // before the pool: its threads inherit the mask
  ThreadPool pool_;
  Console& console_;
  const checkpoint::Progress progress_;
  RateMeter rate_;
  std::chrono::steady_clock::time_point shown_at_;
  bool drawn_ = false;
};

// Prints the error. The code for one of files: what differs (FAILED_PRECONDITION), is damaged, or
// cannot be read or written.
ExitCode FailCheckpoint(Console& console, const Status& error);

// Opens it to be read; FAILED_PRECONDITION when an apply in place of it has not ended.
Result<safetensors::Checkpoint> OpenSettled(const std::string& path);

// Whole numbers for people: "9999", "12.3 k", "4.56 M", "1.20 G", of powers of 1000.
std::string FormatCount(uint64_t count);

}  // namespace dws::dwsctl
