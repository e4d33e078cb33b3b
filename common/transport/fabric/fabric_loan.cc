// The key is 64 random bits if the provider lets us choose it; verbs and efa choose their own.
#include "common/transport/fabric/fabric_loan.h"

#include <random>
#include <utility>

namespace dws {
namespace {

// How long ending a loan may wait for its thread.
constexpr int kProgressWaitMs = 50;

uint64_t RandomKey(size_t key_bytes) {
  std::random_device random;  // the kernel's
  const uint64_t key = uint64_t{random()} << 32 | random();
  return key_bytes >= sizeof(key) ? key : key & ((uint64_t{1} << (8 * key_bytes)) - 1);
}

}  // namespace

Result<std::unique_ptr<FabricLoan>> FabricLoan::Create(FabricApiPtr api, const Options& options,
                                                       ByteSpan memory,
                                                       std::shared_ptr<const void> keeper) {
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<FabricEndpoint> endpoint,
                       FabricEndpoint::Open(std::move(api), {.provider = options.provider,
                                                             .source = options.source,
                                                             .memory = memory}));
  std::unique_ptr<FabricLoan> loan(new FabricLoan(std::move(keeper), std::move(endpoint)));
  FabricEndpoint& end = *loan->endpoint_;
  DWS_ASSIGN_OR_RETURN(loan->memory_, end.Register(memory, FI_REMOTE_READ,
                                                   RandomKey(end.info().domain_attr->mr_key_size)));
  DWS_ASSIGN_OR_RETURN(std::vector<std::byte> address, end.Address());
  loan->region_ = {.provider = options.provider,
                   .address_format = end.info().addr_format,
                   .address = std::move(address),
                   .base = end.has_mode(FI_MR_VIRT_ADDR) ? reinterpret_cast<uint64_t>(memory.data())
                                                         : uint64_t{0},
                   .size = memory.size(),
                   .key = ::fi_mr_key(loan->memory_.get())};
  loan->progress_ = std::thread([loan = loan.get()] { loan->Progress(); });
  return loan;
}

FabricLoan::~FabricLoan() {
  stopping_ = true;
  if (progress_.joinable()) progress_.join();
}

void FabricLoan::Progress() {
  fi_cq_entry completion = {};
  while (!stopping_) {
    // A reader that goes away is no event here.
    if (endpoint_->Await(completion, kProgressWaitMs) == -FI_EAVAIL) {
      (void)endpoint_->CompletionError("serving");
    }
  }
}

}  // namespace dws
