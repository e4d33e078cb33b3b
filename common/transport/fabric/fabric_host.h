// Lends a sender's memory over a fabric: one memory at a time, to everybody whom its control plane
// tells the key, and only as long as somebody asks for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/transport/fabric/provider.h"
#include "common/transport/fabric/remote_memory.h"

namespace dws {

class FabricApi;
class FabricLoan;

// How long a loan lasts without being asked for.
inline constexpr std::chrono::seconds kFabricLease{60};

// Lifecycle: Start begins to end loans in time; the destructor ends the last loan. Threads: safe
// from any.
class FabricHost {
 public:
  struct Options {
    FabricChoice choice;
    std::string source = {};  // numeric address to bind; empty: any
    Duration lease = kFabricLease;
  };
  struct Memory {
    uint64_t id = 0;  // no other memory has it
    ByteSpan bytes;
    std::shared_ptr<const void> keeper;  // owns `bytes`
  };

  // Looks for libfabric and for adapters, unless it is off. `clock` must outlive it.
  FabricHost(Options options, const Clock& clock);
  ~FabricHost();

  void Start() { ender_.Start(); }

  // Lends `memory`, or returns the existing loan of it; a loan of other memory ends. Takes seconds
  // for large memory that is not lent yet. FAILED_PRECONDITION: it is off, or this host lacks the
  // library or an adapter; this does not change later. Other errors as FabricLoan.
  Result<RemoteLoan> Lend(const Memory& memory);
  // Ends a loan of other memory than this.
  void EndOthers(uint64_t id);
  // Ends a loan for which nobody has asked in time. Start makes a thread call it.
  void EndUnused();

  // For operators: "off", "verbs (mlx5_0), lent", "off: ...".
  std::string Text() const;

 private:
  struct Loan;

  std::optional<RemoteLoan> Renew(uint64_t id);
  void End(const std::function<bool(const Loan&)>& which);

  const Options options_;
  const Clock& clock_;
  std::shared_ptr<const FabricApi> api_;  // null: unusable_ says why
  Status unusable_;
  FabricProvider provider_ = FabricProvider::kTcp;
  Mutex lending_mutex_;  // one lends, the others wait; taken before mutex_
  mutable Mutex mutex_;
  std::unique_ptr<Loan> loan_ GUARDED_BY(mutex_);
  Status failed_ GUARDED_BY(mutex_);  // the last attempt to lend
  LoopThread ender_;
};

}  // namespace dws
