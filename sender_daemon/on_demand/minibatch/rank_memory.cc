// All is mapped, and checked, before anything is used: a Join succeeds as a whole or not at all.
#include "sender_daemon/on_demand/minibatch/rank_memory.h"

#include <fcntl.h>

#include <random>
#include <utility>

#include "common/train_state/train_limits.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

uint64_t RandomId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

Result<std::shared_ptr<RankMemory>> RankMemory::Map(const JoinOrder& order, uint32_t ranks,
                                                    std::vector<UniqueFd> descriptors) {
  if (descriptors.size() != 4) {
    return InvalidArgumentError(
        "{} descriptors, expected those of arena, gradients, outbox and "
        "its socket",
        descriptors.size());
  }
  UniqueFd outbox_again(::fcntl(descriptors[2].get(), F_DUPFD_CLOEXEC, 0));
  if (outbox_again.get() < 0) return ResourceExhaustedError("no descriptor is left");
  const auto map = [&](std::string_view what, size_t index, uint64_t bytes) -> Result<HostRegion> {
    auto region = HostRegion::Map(std::move(descriptors[index]), bytes, Access::kReadWrite);
    if (!region.ok()) return Annotate(region.status(), what);
    return region;
  };
  DWS_ASSIGN_OR_RETURN(HostRegion arena, map("the arena", 0, order.arena_bytes));
  DWS_ASSIGN_OR_RETURN(HostRegion gradients, map("the gradients", 1, order.gradients_bytes));
  DWS_ASSIGN_OR_RETURN(HostRegion outbox, map("the outbox", 2, order.outbox_bytes));
  DWS_ASSIGN_OR_RETURN(
      Accumulators sums,
      Accumulators::Over(order.shards, order.exact,
                         gradients.mutable_bytes().subspan(limits::kRecordPageBytes)));
  const OutboxBounds bounds{.unit_count = static_cast<uint32_t>(order.units.size()),
                            .owner_count = ranks};
  DWS_ASSIGN_OR_RETURN(OutboxReader reader,
                       OutboxReader::Open(std::move(outbox), std::move(descriptors[3]), bounds));
  const uint32_t slots = reader.geometry().slot_count;
  const uint32_t pushes = slots / ranks;
  if (pushes == 0 || pushes > limits::kOutboxPushesMax) {
    return InvalidArgumentError(
        "an outbox of {} slots for {} owners: expected room for 1 to {} pushes", slots, ranks,
        limits::kOutboxPushesMax);
  }
  return std::shared_ptr<RankMemory>(new RankMemory(std::move(arena), std::move(gradients),
                                                    std::move(sums), std::move(reader),
                                                    std::move(outbox_again), pushes));
}

RankMemory::RankMemory(HostRegion arena, HostRegion gradients, Accumulators sums,
                       OutboxReader outbox, UniqueFd outbox_fd, uint32_t pushes)
    : arena_(std::move(arena)),
      gradients_(std::move(gradients)),
      record_(gradients_.mutable_bytes().first(limits::kRecordPageBytes)),
      sums_(std::move(sums)),
      outbox_(std::move(outbox)),
      outbox_fd_(std::move(outbox_fd)),
      pushes_(pushes),
      outbox_id_(RandomId()) {}

MutableByteSpan RankMemory::gradients() const {
  return gradients_.mutable_bytes().subspan(limits::kRecordPageBytes);
}

}  // namespace dws
