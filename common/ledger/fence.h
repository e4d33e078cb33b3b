// The part of a ledger that must never go back, and its second copy in a file beside the ledger
// (LEDGER.md, "The fence"). Because of that copy, old trainers stay refused even if the ledger is
// damaged or missing. EncodeFence and DecodeFence are pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/ledger/ledger_record.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// The highest stream that was accepted: everything below it is refused.
struct Fence {
  StreamId stream;       // the highest incarnation, and its id
  RankEpoch rank_epoch;  // a sender's, in that stream; 0 on a receiver
  // Returns whether a ledger with this fence would accept something that `other` refuses.
  bool BelowOf(const Fence& other) const {
    if (stream == other.stream) return rank_epoch < other.rank_epoch;
    return stream.incarnation < other.stream.incarnation;
  }
  friend bool operator==(const Fence&, const Fence&) = default;
};

// nullopt: no stream.
std::vector<std::byte> EncodeFence(LedgerKind kind, const std::optional<Fence>& fence);
// DATA_LOSS: the size, the head, the checksum or the kind is wrong; the message says which.
Result<std::optional<Fence>> DecodeFence(LedgerKind kind, ByteSpan file);

// The fence's file. Its ledger owns it, and the ledger's lock guards it. Threads: one at a time.
class FenceFile {
 public:
  // `path` is the fence's file beside the ledger. `file_system` must outlive this object.
  FenceFile(FileSystem& file_system, std::string path, LedgerKind kind)
      : file_system_(file_system), path_(std::move(path)), kind_(kind) {}

  // Returns the fence in the file. NOT_FOUND: there is no file. DATA_LOSS: it is damaged; the
  // message names it. FAILED_PRECONDITION: a folder has its name.
  Result<std::optional<Fence>> Read();
  // After OK, the file holds `fence` durably. Writes nothing if the file is known to hold it
  // already.
  Status Keep(const std::optional<Fence>& fence);

  const std::string& path() const { return path_; }

 private:
  FileSystem& file_system_;
  const std::string path_;
  const LedgerKind kind_;
  std::optional<std::optional<Fence>> says_;  // the fence in the file; outer nullopt: not known
};

}  // namespace dws
