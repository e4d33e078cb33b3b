// Bytes over the connection to their sender: deltas in the encoding that suits the link's speed,
// and full tensors; both while the sender captures them, too.
#pragma once

#include "common/base/clock.h"
#include "common/model/delta_profile.h"
#include "common/sources/sender/sender_link.h"
#include "common/sources/source.h"

namespace dws {

// A transfer that breaks is resumed.
class GrpcSource final : public Source {
 public:
  // `links` and `clock` outlive it.
  GrpcSource(SenderLinks& links, ProfileChoice profile, const Clock& clock)
      : links_(links), profile_(profile), clock_(clock) {}

  std::string_view name() const override { return "grpc"; }
  bool composes() const override { return true; }
  bool brings(Content) const override { return true; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override;
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;
  // Deltas: from senders whose link fetches them early.
  bool reads_captures(Content content, const Piece& piece) const override;
  Result<std::vector<std::byte>> ReadDeltaCapture(const Piece& piece, const DeltaWant& want,
                                                  const Spool::Options& spool,
                                                  const FrameTaker& take) override;
  Status ReadFullCapture(const Piece& piece, FullAssembly& assembly) override;

 private:
  SenderLinks& links_;
  const ProfileChoice profile_;
  const Clock& clock_;
};

}  // namespace dws
