// The registration with the handle socket is the loan: its end frees what it holds.
#include "sender_daemon/serve/gpu_loan.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/memory/cuda/ipc/cuda_export.h"
#include "common/model/limits.h"
#include "common/proto_convert/region_convert.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/transport/same_host/gpu_copy_places.h"
#include "common/transport/same_host/host_id.h"

namespace dws {
namespace {

struct Loan {
  std::vector<GpuCopies::Copy> copies;  // keeps their memory
  std::string message;                  // GpuCopyMemory
  std::vector<UniqueFd> descriptors;    // of its regions; closed when they have been passed
};

// Exports each copy as one region that begins with it.
Status Export(const RankLayout& layout, Loan& loan) {
  v1::GpuCopyMemory memory;
  for (const GpuCopies::Copy& copy : loan.copies) {
    const uint64_t size = GpuCopyPlaces(layout, copy.slices).size_bytes;
    const cuda::DeviceRange range{.address = copy.memory->address(), .size_bytes = size};
    DWS_ASSIGN_OR_RETURN(cuda::ExportedMemory exported,
                         cuda::ExportMemory(*copy.device, std::span(&range, 1)));
    if (exported.regions.size() != 1 || exported.places[0].offset_bytes != 0) {
      return UnimplementedError(
          "the copy on {} begins {} bytes into its allocation and cannot be lent alone",
          copy.device->uuid(), exported.places[0].offset_bytes);
    }
    *memory.add_regions() = ToProto(exported.regions[0]);
    for (UniqueFd& descriptor : exported.descriptors) {
      loan.descriptors.push_back(std::move(descriptor));
    }
  }
  if (loan.descriptors.size() > limits::kDescriptorsPerMessage) {
    return UnimplementedError("the copies on {} GPUs have {} descriptors, at most {} can be passed",
                              loan.copies.size(), loan.descriptors.size(),
                              limits::kDescriptorsPerMessage);
  }
  loan.message = memory.SerializeAsString();
  return OkStatus();
}

Status Pass(Loan& loan, const UniqueFd& connection) {
  std::vector<int> descriptors;
  for (const UniqueFd& descriptor : loan.descriptors) descriptors.push_back(descriptor.get());
  DWS_RETURN_IF_ERROR(SendDescriptorMessage(connection, AsBytes(loan.message), descriptors));
  loan.descriptors.clear();
  return OkStatus();
}

}  // namespace

Status LendGpuCopies(const RankState& state, HandleSocket& handles,
                     const std::optional<UnixPeer>& peer, const v1::OpenGpuCopiesRequest& request,
                     v1::OpenGpuCopiesReply& reply) {
  if (request.host().empty() || request.host() != HostId()) {
    return FailedPreconditionError("this sender is on another host");
  }
  const auto loan = std::make_shared<Loan>();
  DWS_ASSIGN_OR_RETURN(loan->copies,
                       state.snapshot->history().gpu_copies->At(WeightVersion(request.version())));
  for (const GpuCopies::Copy& copy : loan->copies) {
    v1::GpuCopy& message = *reply.add_copies();
    for (const RankSlice slice : copy.slices) message.add_rank_slices(slice.value());
  }
  if (request.ask()) return OkStatus();
  DWS_RETURN_IF_ERROR(Export(state.layout(), *loan));
  const auto pass = [loan](const std::vector<UniqueFd>&, const UniqueFd& connection) {
    return Pass(*loan, connection);
  };
  DWS_ASSIGN_OR_RETURN(
      const HandleSocket::Registration expected,
      handles.Expect({.peer = peer, .on_descriptors = pass, .on_hangup = [](const Status&) {}}));
  reply.set_token(expected.token.data(), expected.token.size());
  reply.set_handle_socket(handles.path());
  return OkStatus();
}

}  // namespace dws
