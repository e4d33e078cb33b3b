// A trainer's registration as validated values: what Register asks for, before it hands over
// memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/memory/region_handle.h"
#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "sender_daemon/trainer/handover.h"
#include "sender_daemon/trainer/listed_source.h"

namespace dws::v1 {
class PublishRequest;
class PutRequest;
class RegisterRequest;
}  // namespace dws::v1

namespace dws {

// A trainer's Register call, checked.
struct Registration {
  struct Ring {
    uint64_t bucket_bytes = 0;
    uint32_t bucket_count = 0;
  };
  std::string job_id;
  std::string client;
  StreamId stream;
  TrainerRank trainer_rank;
  uint32_t world_size = 1;
  RankLayout layout;
  std::vector<RegionHandle> regions;
  std::vector<ShardPlace> places;  // resident handover
  std::optional<uint32_t> lists;   // of `regions`: that for lists of changes (TrainerLists)
  std::optional<Ring> ring;        // ring handover
};

// The first session number. A call is identified by its session only, so sessions of another
// process or trainer must be hard to guess. 63 bits: they never wrap.
uint64_t FirstSession();

// INVALID_ARGUMENT says which field is wrong and what was expected.
Result<Registration> ParseRegistration(const v1::RegisterRequest& request);

// Parses the pieces that a Put hands over: pieces of `layout` in one of the buckets of `ring`,
// whose bytes are `memory`. INVALID_ARGUMENT: there is no such bucket, there are too many pieces,
// or an error of BucketSource::Create.
Result<BucketSource> ParsePut(const v1::PutRequest& request, const RankLayout& layout,
                              const Registration::Ring& ring, ByteSpan memory);

// Parses the lists of changes of a Publish. INVALID_ARGUMENT: there are lists, and no memory for
// them was registered, or an error of CheckLists.
Result<TrainerLists> ParseLists(const v1::PublishRequest& request,
                                const Registration& registration);

}  // namespace dws
