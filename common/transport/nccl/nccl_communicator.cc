#include "common/transport/nccl/nccl_communicator.h"

#include <utility>

#include "common/base/log/log.h"

namespace dws::nccl {
namespace {

// A receiver has a communicator for each of several senders, and an engine runs on the same device:
// if each uses few blocks, all of them fit on the device at the same time. NCCL needs that to make
// progress.
constexpr int kBlocksMax = 4;

}  // namespace

Result<NcclUniqueId> NcclCommunicator::NewId(const NcclApi& api) {
  NcclUniqueId id = {};
  DWS_RETURN_IF_ERROR(api.Check(api.functions().get_unique_id(&id), "ncclGetUniqueId", nullptr));
  return id;
}

Result<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Join(NcclApiPtr api,
                                                                 const NcclUniqueId& id,
                                                                 Place place, Patience& patience) {
  NcclConfig config;
  config.blocking = 0;
  config.min_ctas = 1;
  config.max_ctas = kBlocksMax;
  NcclComm comm = nullptr;
  const NcclResult began = api->functions().init_rank(&comm, static_cast<int>(place.size), id,
                                                      static_cast<int>(place.rank), &config);
  // From here on, every exit aborts the communicator.
  std::unique_ptr<NcclCommunicator> joined(new NcclCommunicator(api, comm, place));
  DWS_RETURN_IF_ERROR(api->Check(began, "ncclCommInitRankConfig", comm));
  if (comm == nullptr) return InternalError("ncclCommInitRankConfig made no communicator");
  DWS_RETURN_IF_ERROR(joined->Settle("joining a communicator", patience));
  return joined;
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  // A healthy communicator is aborted as well: the other members are told over the control stream,
  // and may have left already.
  const Status status = api_->Check(api_->functions().abort(comm_), "ncclCommAbort", nullptr);
  if (!status.ok()) LogWarning("nccl_abort_failed", {{"reason", Message(status)}});
}

Status NcclCommunicator::AsyncError() const {
  NcclResult state = NcclResult::kSuccess;
  DWS_RETURN_IF_ERROR(api_->Check(api_->functions().get_async_error(comm_, &state),
                                  "ncclCommGetAsyncError", comm_));
  return api_->Check(state, "NCCL", comm_);
}

Status NcclCommunicator::Settle(const char* what, Patience& patience) const {
  patience.Progressed();
  while (true) {
    NcclResult state = NcclResult::kSuccess;
    DWS_RETURN_IF_ERROR(api_->Check(api_->functions().get_async_error(comm_, &state),
                                    "ncclCommGetAsyncError", comm_));
    if (state == NcclResult::kSuccess) return OkStatus();
    DWS_RETURN_IF_ERROR(api_->Check(state, what, comm_));
    DWS_RETURN_IF_ERROR(patience.Pause(what));
  }
}

Status NcclCommunicator::Broadcast(uint64_t address, uint64_t size_bytes, void* stream,
                                   Patience& patience) {
  void* const memory = reinterpret_cast<void*>(address);
  DWS_RETURN_IF_ERROR(api_->Check(
      api_->functions().broadcast(memory, memory, size_bytes, kNcclUint8, 0, comm_, stream),
      "ncclBroadcast", comm_));
  return Settle("a broadcast", patience);
}

}  // namespace dws::nccl
