// Deltas that come by NCCL broadcast: those that have arrived, and those on their way.
#pragma once

#include "common/sources/source.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"

namespace dws {

class BroadcastSource final : public Source {
 public:
  explicit BroadcastSource(SyncLinks& links) : links_(links) {}

  std::string_view name() const override { return "broadcast"; }
  bool brings(Content content) const override { return content == Content::kDelta; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override;

 private:
  SyncLinks& links_;
};

}  // namespace dws
