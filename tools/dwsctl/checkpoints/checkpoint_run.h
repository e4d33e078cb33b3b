// Shared by the commands for checkpoints: threads, progress, ^C and exit codes. These commands call
// no daemon.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/model/delta_profile.h"
#include "tools/checkpoint/parts/progress.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/base/interrupts.h"
#include "tools/dwsctl/text/progress_text.h"

namespace dws::dwsctl {

struct CheckpointFlags {
  uint32_t threads = 0;  // 0: as many as the machine has cores
  bool json = false;
};
// Adds --threads; AddCommand adds --json.
void AddCheckpointFlags(CLI::App& command, CheckpointFlags& flags);

// Adds --profile with the profiles of a delta: fast, wan, direct.
void AddProfileFlag(CLI::App& command, std::string& profile);
DeltaProfile ProfileNamed(const std::string& profile);  // one that the flag accepts

// The run of one command. Lifecycle: created before the work, destroyed after it. ^C, SIGTERM and
// SIGHUP end the work with CANCELLED at its next progress call. Threads: the one that created it.
class CheckpointRun {
 public:
  static Result<std::unique_ptr<CheckpointRun>> Start(const CheckpointFlags& flags,
                                                      Console& console);
  ~CheckpointRun() { Clear(); }

  ThreadPool& pool() { return pool_; }
  const checkpoint::Progress& progress() const { return progress_; }
  // Removes the progress from the terminal. Call it before anything else is printed.
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

// Prints the error, and returns the exit code for an error of files: they differ
// (FAILED_PRECONDITION), are damaged, or cannot be read or written.
ExitCode FailCheckpoint(Console& console, const Status& error);

// Opens a checkpoint for reading. FAILED_PRECONDITION: a receiver's change of it has not
// finished.
Result<safetensors::Checkpoint> OpenSettled(const std::string& path);

// Whole numbers for people, in powers of 1000: "9999", "12.3 k", "4.56 M", "1.20 G".
std::string FormatCount(uint64_t count);

}  // namespace dws::dwsctl
