#include "sender_daemon/trainer/registration.h"

#include <sys/random.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/utf8.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/proto_convert/region_convert.h"
#include "proto/trainer.pb.h"

namespace dws {
namespace {

Status ParseResident(const v1::ResidentHandover& handover, Registration& registration) {
  DWS_ASSIGN_OR_RETURN(registration.regions, FromProto(handover.regions()));
  for (const v1::ResidentShard& shard : handover.shards()) {
    registration.places.push_back({.region = shard.region(), .offset_bytes = shard.offset_bytes()});
  }
  if (!handover.has_lists_region()) return OkStatus();
  const uint32_t lists = handover.lists_region();
  if (lists >= registration.regions.size() || registration.regions[lists].cuda.has_value()) {
    return InvalidArgumentError(
        "lists of changes lie in region {}: expected a memfd, among the {} regions", lists,
        registration.regions.size());
  }
  for (size_t i = 0; i < registration.places.size(); ++i) {
    if (registration.places[i].region != lists) continue;
    return InvalidArgumentError(
        "shard {} lies in region {}, which is for lists of changes: expected another region", i,
        lists);
  }
  registration.lists = lists;
  return OkStatus();
}

Status ParseRing(const v1::RingHandover& handover, Registration& registration) {
  // Any single block fits a bucket, so any tensor can be handed over in pieces.
  constexpr uint64_t kBucketBytesMin = uint64_t{limits::kBlockElements} * sizeof(uint64_t);
  if (handover.bucket_count() < 1 || handover.bucket_count() > limits::kBucketsMax) {
    return InvalidArgumentError("{} buckets, expected 1 to {}", handover.bucket_count(),
                                limits::kBucketsMax);
  }
  if (handover.bucket_bytes() < kBucketBytesMin ||
      handover.bucket_bytes() > limits::kRegionBytesMax / handover.bucket_count()) {
    return InvalidArgumentError("a bucket has {} bytes, expected at least {} and at most {}",
                                handover.bucket_bytes(), kBucketBytesMin,
                                limits::kRegionBytesMax / handover.bucket_count());
  }
  if (handover.bucket_bytes() % sizeof(uint64_t) != 0) {
    return InvalidArgumentError(
        "a bucket has {} bytes, expected a multiple of {}: elements of the next one are aligned",
        handover.bucket_bytes(), sizeof(uint64_t));
  }
  registration.ring = Registration::Ring{.bucket_bytes = handover.bucket_bytes(),
                                         .bucket_count = handover.bucket_count()};
  registration.regions.push_back({.size_bytes = handover.bucket_bytes() * handover.bucket_count()});
  return OkStatus();
}

}  // namespace

uint64_t FirstSession() {
  uint64_t number = 0;
  DWS_CHECK(::getrandom(&number, sizeof(number), 0) == static_cast<ssize_t>(sizeof(number)));
  return number >> 1;
}

Result<Registration> ParseRegistration(const v1::RegisterRequest& request) {
  Registration registration{
      .job_id = request.job_id(),
      .client = std::string(Utf8Prefix(request.client(), limits::kIdBytesMax)),
      .trainer_rank = TrainerRank(request.trainer_rank()),
      .world_size = request.world_size()};
  if (request.world_size() < 1 || request.world_size() > limits::kWorldSizeMax ||
      request.trainer_rank() >= request.world_size()) {
    return InvalidArgumentError(
        "trainer rank {} of world size {}: expected a rank below a size of 1 to {}",
        request.trainer_rank(), request.world_size(), limits::kWorldSizeMax);
  }
  DWS_ASSIGN_OR_RETURN(registration.stream, FromProto(request.stream()));
  DWS_ASSIGN_OR_RETURN(registration.layout, FromProto(request.layout()));
  if (!registration.layout.view().empty()) {
    return InvalidArgumentError("a trainer registers its own tensors, found those of view '{}'",
                                registration.layout.view());
  }
  switch (request.handover_case()) {
    case v1::RegisterRequest::kResident:
      DWS_RETURN_IF_ERROR(ParseResident(request.resident(), registration));
      break;
    case v1::RegisterRequest::kRing:
      DWS_RETURN_IF_ERROR(ParseRing(request.ring(), registration));
      break;
    case v1::RegisterRequest::HANDOVER_NOT_SET:
      return InvalidArgumentError("no handover is given, expected resident or ring");
  }
  DWS_CHECK(!registration.ring.has_value() ||
            (registration.regions.size() == 1 && registration.places.empty()));
  return registration;
}

Result<BucketSource> ParsePut(const v1::PutRequest& request, const RankLayout& layout,
                              const Registration::Ring& ring, ByteSpan memory) {
  if (request.bucket() >= ring.bucket_count) {
    return InvalidArgumentError("bucket {} does not exist, the ring has {}", request.bucket(),
                                ring.bucket_count);
  }
  if (static_cast<size_t>(request.pieces_size()) > limits::kPutPiecesMax) {
    return InvalidArgumentError("{} pieces in one Put, at most {} are supported",
                                request.pieces_size(), limits::kPutPiecesMax);
  }
  std::vector<BucketPiece> pieces;
  for (const v1::PutPiece& piece : request.pieces()) {
    pieces.push_back({.slice = RankSlice(piece.rank_slice()),
                      .first_block = piece.first_block(),
                      .block_count = piece.block_count(),
                      .offset_bytes = piece.offset_bytes()});
  }
  DWS_CHECK(memory.size() == ring.bucket_bytes * ring.bucket_count);
  return BucketSource::Create(
      layout, memory.subspan(uint64_t{request.bucket()} * ring.bucket_bytes, ring.bucket_bytes),
      std::move(pieces));
}

Result<TrainerLists> ParseLists(const v1::PublishRequest& request,
                                const Registration& registration) {
  TrainerLists lists;
  if (request.lists().empty()) return lists;
  if (!registration.lists.has_value()) {
    return InvalidArgumentError(
        "version {} has lists of changes, and the registration has no region for them",
        request.version());
  }
  lists.region = *registration.lists;
  for (const v1::ListedShard& list : request.lists()) {
    lists.shards.push_back(
        {.shard = list.shard(), .count = list.count(), .offset_bytes = list.offset_bytes()});
  }
  DWS_RETURN_IF_ERROR(
      CheckLists(registration.layout, registration.regions[lists.region].size_bytes, lists.shards));
  return lists;
}

}  // namespace dws
