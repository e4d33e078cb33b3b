// The connection to one sender, as the sources see it. A receiver has one beside its Sync stream, a
// sender one to each owner of a shard that it gathers.
#pragma once

#include "common/sources/same_host/host_snapshot.h"
#include "common/sources/sender/fetch.h"
#include "common/sources/sender/link_speed.h"
#include "common/sources/source.h"

namespace dws {

// Threads: safe from any.
class SenderLink {
 public:
  virtual ~SenderLink() = default;

  // Fetches what this sender's rank publishes, in the layout of `target`.
  virtual Fetcher fetcher(const SyncTarget& target, TrainerRank rank) = 0;
  virtual LinkSpeed& speed() = 0;
  // The snapshot of this sender, if it is on this host.
  virtual HostSnapshot& snapshot() = 0;
  // Returns whether its deltas are fetched while it captures them.
  virtual bool early_deltas() const = 0;
};

// All of them. Threads: safe from any.
class SenderLinks {
 public:
  virtual ~SenderLinks() = default;

  // The link to the sender of the piece's rank; it lives as long as this object.
  virtual SenderLink& sender(const Piece& piece) const = 0;
};

}  // namespace dws
