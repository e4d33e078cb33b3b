// Deltas that came inside their announcement.
#pragma once

#include "common/sources/source.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"

namespace dws {

class InlineSource final : public Source {
 public:
  explicit InlineSource(SyncLinks& links) : links_(links) {}

  std::string_view name() const override { return "inline"; }
  bool brings(Content content) const override { return content == Content::kDelta; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override;

 private:
  SyncLinks& links_;
};

}  // namespace dws
