// Full tensors from the memory of a sender on this host, which this process maps.
#pragma once

#include "common/base/threads/cancellation.h"
#include "common/base/threads/thread_pool.h"
#include "common/sources/same_host/host_snapshot.h"
#include "common/sources/sender/sender_link.h"
#include "common/sources/source.h"

namespace dws {

class SameHostSource final : public Source {
 public:
  // `pool` does the copying. All outlive it.
  SameHostSource(SenderLinks& links, ThreadPool& pool, Cancellation& cancellation)
      : links_(links), pool_(pool), cancellation_(cancellation) {}

  std::string_view name() const override { return "same-host"; }
  bool brings(Content content) const override { return content == Content::kFull; }
  bool reads_memory() const override { return true; }
  // Also returns the errors of HostSnapshot::Open.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;
  bool reads_captures(Content content, const Piece&) const override { return brings(content); }
  Status ReadFullCapture(const Piece& piece, FullAssembly& assembly) override;

 private:
  Result<MappedSnapshot> Map(const Piece& piece, const RankLayout& layout);

  SenderLinks& links_;
  ThreadPool& pool_;
  Cancellation& cancellation_;
};

}  // namespace dws
