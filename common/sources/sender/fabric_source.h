// Full tensors from a sender's memory by reads of a network adapter, if both sides have one.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "common/base/threads/mutex.h"
#include "common/sources/fabric/lent_memory.h"
#include "common/sources/sender/sender_link.h"
#include "common/sources/source.h"

namespace dws {

class FabricSource final : public Source {
 public:
  // `links` and `clock` outlive it. `connect`: none: by libfabric.
  FabricSource(SenderLinks& links, FabricChoice choice, LentMemory::Connect connect,
               const Clock& clock)
      : links_(links), memory_(choice, std::move(connect), clock) {}

  static constexpr std::string_view kName = "fabric";
  std::string_view name() const override { return kName; }
  bool brings(Content content) const override { return content == Content::kFull; }
  bool reads_memory() const override { return true; }
  // Errors, too: LentMemory's.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;
  // The provider of the last transfer, once it is known.
  std::string detail(SenderIndex sender) const override;

 private:
  SenderLinks& links_;
  LentMemory memory_;
  mutable Mutex mutex_;
  std::map<SenderIndex, std::string> providers_ GUARDED_BY(mutex_);
};

}  // namespace dws
