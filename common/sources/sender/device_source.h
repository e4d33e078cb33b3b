// Full tensors from a sender's copy of its snapshot in GPU memory of this host, to GPU memory of
// the engine: no byte of them crosses PCIe to the host.
#pragma once

#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/sources/same_host/lent_copies.h"
#include "common/sources/sender/sender_link.h"
#include "common/sources/source.h"

namespace dws {

class DeviceSource final : public Source {
 public:
  // `links` and `clock` outlive it.
  DeviceSource(SenderLinks& links, const Clock& clock) : links_(links), clock_(clock) {}

  std::string_view name() const override { return "device"; }
  bool brings(Content content) const override { return content == Content::kFull; }
  bool needs_room() const override { return false; }
  bool suits(const FullAssembly& assembly) const override;
  // Whole slices are proved, so one of which the trainer changes a block does not come from here.
  bool reads_memory() const override { return true; }
  // Brings the slices that are on GPUs at both ends. If these are not all, or the sender has
  // published since, it returns an error. Others: LentCopies::Open's and FullAssembly::TakeLent's.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;
  bool reads_captures(Content content, const Piece&) const override { return brings(content); }
  // Reads nothing: a copy is only of a version when its capture has ended, and then takes
  // milliseconds. OK: it is worth waiting for that.
  Status ReadFullCapture(const Piece& piece, FullAssembly& assembly) override;
  // The GPUs from which the last transfer came.
  std::string detail(SenderIndex sender) const override;

 private:
  // Why `wrong` slices are not as published.
  // Logs once what deltas cost if copies were read on the GPU that they lie on.
  void TellOfColocation(const LentCopies& copies, const RankLayout& layout);
  Status WhyWrong(const Piece& piece, const FullAssembly& assembly, const std::string& devices,
                  const std::vector<RankSlice>& wrong);

  SenderLinks& links_;
  const Clock& clock_;
  mutable Mutex mutex_;
  bool told_ GUARDED_BY(mutex_) = false;
  std::map<SenderIndex, std::string> devices_ GUARDED_BY(mutex_);
};

}  // namespace dws
