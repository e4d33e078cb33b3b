// What the sender says of its memory is checked against the layout before the driver sees it.
#include "common/sources/same_host/lent_copies.h"

#include <chrono>
#include <optional>
#include <utility>

#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/proto_convert/region_convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/sources/same_host/passed_memory.h"
#include "common/transport/same_host/gpu_copy_places.h"
#include "common/transport/same_host/host_id.h"

namespace dws {
namespace {

// The longest description of all memory; that of one region has about 150 bytes.
constexpr size_t kMemoryBytesMax = size_t{64} << 10;

Result<v1::OpenGpuCopiesReply> Call(v1::SyncService::Stub& stub, ActiveCalls& calls,
                                    const LentCopies::PeerCheck& check_peer, const CopiesWant& want,
                                    bool ask) {
  v1::OpenGpuCopiesRequest request;
  *request.mutable_stream() = ToProto(want.stream);
  *request.mutable_layout_signature() = ToProto(want.layout.signature());
  request.set_host(HostId());
  request.set_version(want.version.value());
  request.set_ask(ask);
  v1::OpenGpuCopiesReply reply;
  ActiveCalls::Call call(calls, limits::kRpcDeadline);
  DWS_RETURN_IF_ERROR(FromGrpc(stub.OpenGpuCopies(call.context(), request, &reply)));
  DWS_RETURN_IF_ERROR(check_peer(*call.context()));
  return reply;
}

Result<std::vector<RegionHandle>> RegionsOf(const DescriptorMessage& message) {
  const std::string_view text = AsText(message.payload);
  if (text.starts_with("error: ")) {  // which no description begins with
    return FailedPreconditionError("the sender's handle socket answers '{}'",
                                   EscapeUnprintable(text));
  }
  v1::GpuCopyMemory memory;
  if (!memory.ParseFromArray(message.payload.data(), static_cast<int>(message.payload.size()))) {
    return DataLossError(
        "the sender's handle socket answers '{}', expected a description of memory",
        EscapeUnprintable(text));
  }
  auto regions = FromProto(memory.regions());
  if (!regions.ok()) {
    return DataLossError("the sender's GPU memory: {}", Message(regions.status()));
  }
  return *std::move(regions);
}

}  // namespace

Status LentCopies::Ask(v1::SyncService::Stub& stub, ActiveCalls& calls, const PeerCheck& check_peer,
                       const CopiesWant& want) {
  return Call(stub, calls, check_peer, want, true).status();
}

Result<LentCopies> LentCopies::Open(v1::SyncService::Stub& stub, ActiveCalls& calls,
                                    const PeerCheck& check_peer, const CopiesWant& want,
                                    const AllowedUsers& users, const Clock& clock) {
  const TimePoint asked = clock.Now();
  DWS_ASSIGN_OR_RETURN(const v1::OpenGpuCopiesReply reply,
                       Call(stub, calls, check_peer, want, false));
  DWS_ASSIGN_OR_RETURN(PassedMemory passed,
                       TakePassed(reply.handle_socket(), reply.token(), users, kMemoryBytesMax));
  DWS_ASSIGN_OR_RETURN(std::vector<RegionHandle> regions, RegionsOf(passed.message));
  const size_t descriptors = DescriptorCount(regions);
  if (regions.size() != static_cast<size_t>(reply.copies_size()) ||
      passed.message.descriptors.size() != descriptors) {
    return DataLossError(
        "the sender passes {} regions with {} descriptors for {} copies on GPUs, expected {}",
        regions.size(), passed.message.descriptors.size(), reply.copies_size(), descriptors);
  }
  std::optional<cuda::LoanTime> time;
  if (const std::chrono::seconds lasts(reply.loan_seconds()); lasts.count() > 0) {
    time.emplace(cuda::LoanTime{.clock = clock, .until = asked + lasts});
  }
  LentCopies copies;
  copies.connection_ = std::move(passed.connection);
  auto next = std::make_move_iterator(passed.message.descriptors.begin());
  for (size_t i = 0; i < regions.size(); ++i) {
    const auto end = next + static_cast<ptrdiff_t>(regions[i].descriptor_count());
    copies.memory_.push_back(std::make_unique<cuda::LentMemory>(
        std::move(regions[i]), std::vector<UniqueFd>(next, end), time));
    next = end;
    DWS_RETURN_IF_ERROR(copies.AddSlices(reply.copies(static_cast<int>(i)), want.layout));
  }
  return copies;
}

Status LentCopies::AddSlices(const v1::GpuCopy& copy, const RankLayout& layout) {
  std::vector<RankSlice> numbers;
  for (const uint32_t number : copy.rank_slices()) {
    const bool ascends = numbers.empty() || numbers.back().value() < number;
    if (number >= layout.slice_count() || !ascends) {
      return DataLossError("the sender's copy on a GPU has slice {} of {}, expected ascending ones",
                           number, layout.slice_count());
    }
    numbers.emplace_back(number);
  }
  cuda::LentMemory& memory = *memory_.back();
  const GpuCopyPlaces places(layout, numbers);
  if (memory.size_bytes() < places.size_bytes) {
    return DataLossError("the sender's copy on {} has {} bytes, its slices need {}",
                         memory.device_uuid(), memory.size_bytes(), places.size_bytes);
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    slices_.push_back({.slice = numbers[i],
                       .memory = &memory,
                       .offset_bytes = places.offsets[i],
                       .expected = {}});
  }
  return OkStatus();
}

std::string LentCopies::devices() const {
  std::string text;
  for (const auto& memory : memory_) text += (text.empty() ? "" : ", ") + memory->device_uuid();
  return text;
}

}  // namespace dws
