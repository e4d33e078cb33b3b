// The registration with the handle socket is the loan: its end frees what it holds.
#include "sender_daemon/serve/gpu_loan.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/log/log.h"
#include "common/memory/cuda/ipc/cuda_export.h"
#include "common/model/limits.h"
#include "common/proto_convert/region_convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/transport/same_host/gpu_copy_places.h"
#include "common/transport/same_host/host_id.h"

namespace dws {

struct GpuLoans::Loan {
  explicit Loan(std::shared_ptr<std::atomic<size_t>> counter) : open(std::move(counter)) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() { --*open; }

  const std::shared_ptr<std::atomic<size_t>> open;
  RankStatePtr state;
  WeightVersion version = WeightVersion(0);
  std::vector<GpuCopies::Copy> copies;  // keeps their memory
  std::string message;                  // GpuCopyMemory
  std::vector<UniqueFd> descriptors;    // of its regions; closed when they have been passed
};

namespace {

// Exports each copy as one region that begins with it.
Status Export(const RankLayout& layout, std::span<const GpuCopies::Copy> copies,
              std::string& message, std::vector<UniqueFd>& descriptors) {
  v1::GpuCopyMemory memory;
  for (const GpuCopies::Copy& copy : copies) {
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
    for (UniqueFd& descriptor : exported.descriptors) descriptors.push_back(std::move(descriptor));
  }
  if (descriptors.size() > limits::kDescriptorsPerMessage) {
    return UnimplementedError("the copies on {} GPUs have {} descriptors, at most {} can be passed",
                              copies.size(), descriptors.size(), limits::kDescriptorsPerMessage);
  }
  message = memory.SerializeAsString();
  return OkStatus();
}

Status Pass(const std::string& message, std::vector<UniqueFd>& passed, const UniqueFd& connection) {
  std::vector<int> descriptors;
  for (const UniqueFd& descriptor : passed) descriptors.push_back(descriptor.get());
  DWS_RETURN_IF_ERROR(SendDescriptorMessage(connection, AsBytes(message), descriptors));
  passed.clear();
  return OkStatus();
}

}  // namespace

GpuLoans::GpuLoans(HandleSocket& handles, const Options& options)
    : handles_(handles),
      options_(options),
      open_(std::make_shared<std::atomic<size_t>>(0)),
      driver_(1, options.loans_max) {}

void GpuLoans::Answer(RankStatePtr state, const std::optional<UnixPeer>& peer,
                      const v1::OpenGpuCopiesRequest& request, v1::OpenGpuCopiesReply& reply,
                      const Done& done) {
  if (request.host().empty() || request.host() != HostId()) {
    return done(FailedPreconditionError("this sender is on another host"));
  }
  Result<std::vector<GpuCopies::Copy>> copies =
      state->snapshot->history().gpu_copies->At(WeightVersion(request.version()));
  if (!copies.ok()) return done(copies.status());
  for (const GpuCopies::Copy& copy : *copies) {
    v1::GpuCopy& message = *reply.add_copies();
    for (const RankSlice slice : copy.slices) message.add_rank_slices(slice.value());
  }
  if (request.ask()) return done(OkStatus());
  ++*open_;
  const auto loan = std::make_shared<Loan>(open_);
  if (const size_t open = *open_; open > options_.loans_max) {
    return done(ResourceExhaustedError(
        "{} loans of copies on GPUs are open already, the limit of a sender is {}", open - 1,
        options_.loans_max));
  }
  loan->state = std::move(state);
  loan->version = WeightVersion(request.version());
  loan->copies = *std::move(copies);
  if (!driver_.Post([this, loan, peer, &reply, done] { done(Lend(loan, peer, reply)); })) {
    done(UnavailableError("the sender is shutting down"));
  }
}

Status GpuLoans::Lend(const std::shared_ptr<Loan>& loan, const std::optional<UnixPeer>& peer,
                      v1::OpenGpuCopiesReply& reply) {
  DWS_RETURN_IF_ERROR(
      Export(loan->state->layout(), loan->copies, loan->message, loan->descriptors));
  loan->state.reset();  // the loan is of the memory alone
  const auto pass = [loan](const std::vector<UniqueFd>&, const UniqueFd& connection) {
    return Pass(loan->message, loan->descriptors, connection);
  };
  const auto overdue = [version = loan->version, peer, time = options_.time] {
    LogWarning("gpu_loan_overdue",
               {{"version", version.value()},
                {"pid", peer.has_value() ? peer->pid : 0},
                {"loan_seconds", time.count()},
                {"reason", "the receiver has not given the copy on the GPU back: it may hang"}});
  };
  DWS_ASSIGN_OR_RETURN(const HandleSocket::Registration expected,
                       handles_.Expect({.peer = peer,
                                        .on_descriptors = pass,
                                        .lasts = options_.time,
                                        .on_overdue = overdue,
                                        .on_hangup = [](const Status&) {}}));
  reply.set_token(expected.token.data(), expected.token.size());
  reply.set_handle_socket(handles_.path());
  reply.set_loan_seconds(static_cast<uint32_t>(options_.time.count()));
  return OkStatus();
}

}  // namespace dws
