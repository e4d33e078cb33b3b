// Reads full tensors of one version from a sender's memory, which its trainer goes on to change.
// Blocks that have changed since are read as they are, and turned back by the delta between the
// wanted version and theirs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/sources/source.h"
#include "common/spool/full_assembly.h"

namespace dws {

// Lifecycle: one transfer from one source. Threads: one.
class MemoryReader {
 public:
  struct Options {
    Source& memory;
    Source* deltas = nullptr;  // that composes them; null: changed blocks stay missing
    const Piece& piece;
    Spool::Options spool;   // of deltas
    bool required = false;  // no other source may be asked
    // Returns false if the transfer is cancelled.
    std::function<bool(Duration)> sleep;
  };
  explicit MemoryReader(Options options) : options_(std::move(options)) {}

  // Reads until no block is missing, or until repeated reads bring no more: OK does not say that
  // nothing is missing.
  // Errors as Source::ReadFull's.
  Status Read(FullAssembly& assembly);

  // Why blocks cannot be turned back; OK: they could.
  const Status& turned() const { return turned_; }
  uint64_t delta_bytes() const { return delta_bytes_; }

 private:
  // Turns back what the assembly has kept. An error leaves some blocks missing.
  Status TurnBackAll(FullAssembly& assembly);
  // Turns back blocks of one version, which ascend by slice and block.
  Status TurnBack(std::span<NewerBlock> blocks, FullAssembly& assembly);
  // Waits for a version that is captured and not published yet.
  Result<Spool> Delta(const Piece& newer, const DeltaWant& want, const FullAssembly& assembly);
  Duration PublishWait() const;

  const Options options_;
  Status turned_ = OkStatus();
  uint64_t delta_bytes_ = 0;
  Duration publish_wait_ = {};  // what is left of it
};

}  // namespace dws
