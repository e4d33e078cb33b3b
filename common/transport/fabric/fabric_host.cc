// Off is the default: what goes over a fabric is neither encrypted nor authenticated by it, which
// the operator of a job with TLS has to decide.
#include "common/transport/fabric/fabric_host.h"

#include <utility>

#include "common/transport/fabric/fabric_loan.h"

namespace dws {

struct FabricHost::Loan {
  uint64_t id;
  std::unique_ptr<FabricLoan> lent;
  TimePoint ends_at;
};

FabricHost::FabricHost(Options options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), ender_([this] {
        EndUnused();
        return options_.lease / 4;
      }) {
  if (!options_.choice.on) {
    unusable_ = FailedPreconditionError("off");
    return;
  }
  auto api = FabricApi::Load();
  if (!api.ok()) {
    unusable_ = FailedPreconditionError("off: {}", Message(api.status()));
    return;
  }
  Status none;
  for (const FabricProvider provider : kFabricProviders) {
    const bool asked = options_.choice.only == provider;
    if (!asked && (options_.choice.only.has_value() || !HasAdapter(provider))) continue;
    const Status here =
        FabricEndpoint::Look(*api, {.provider = provider, .source = options_.source});
    if (here.ok()) {
      api_ = *std::move(api);
      provider_ = provider;
      return;
    }
    if (none.ok()) none = here;
  }
  unusable_ = FailedPreconditionError("off: {}", Message(none));
}

FabricHost::~FabricHost() { ender_.Stop(); }

Result<RemoteLoan> FabricHost::Lend(const Memory& memory) {
  if (api_ == nullptr) {
    return FailedPreconditionError("the sender's --fabric is {}", Message(unusable_));
  }
  MutexLock lending(lending_mutex_);
  if (auto renewed = Renew(memory.id)) return *std::move(renewed);
  End([](const Loan&) { return true; });  // before the next: two would pin twice the memory
  auto lent = FabricLoan::Create(api_, {.provider = provider_, .source = options_.source},
                                 memory.bytes, memory.keeper);
  {
    MutexLock lock(mutex_);
    failed_ = lent.status();
    if (!lent.ok()) return failed_;
    loan_ = std::make_unique<Loan>(
        Loan{.id = memory.id, .lent = *std::move(lent), .ends_at = clock_.Now() + options_.lease});
  }
  // No other thread lends meanwhile, but the loan may have been ended already.
  if (auto renewed = Renew(memory.id)) return *std::move(renewed);
  return UnavailableError("the sender has a new snapshot");
}

std::optional<RemoteLoan> FabricHost::Renew(uint64_t id) {
  MutexLock lock(mutex_);
  if (loan_ == nullptr || loan_->id != id) return std::nullopt;
  loan_->ends_at = clock_.Now() + options_.lease;
  return RemoteLoan{.region = loan_->lent->region(), .lease = options_.lease};
}

void FabricHost::End(const std::function<bool(const Loan&)>& which) {
  std::unique_ptr<Loan> ended;  // outside the lock: unpinning memory takes long
  MutexLock lock(mutex_);
  if (loan_ != nullptr && which(*loan_)) ended = std::move(loan_);
}

void FabricHost::EndOthers(uint64_t id) {
  End([id](const Loan& loan) { return loan.id != id; });
}

void FabricHost::EndUnused() {
  End([now = clock_.Now()](const Loan& loan) { return now >= loan.ends_at; });
}

std::string FabricHost::Text() const {
  if (api_ == nullptr) return std::string(Message(unusable_));
  MutexLock lock(mutex_);
  if (!failed_.ok()) return std::string(Message(failed_));
  if (loan_ != nullptr) return fmt::format("{}, lent", loan_->lent->name());
  return std::string(ToString(provider_));
}

}  // namespace dws
