// What shows that a delta was made from the version that the local checkpoint has. A delta's
// checksums cover only the tensors that it touches, and its index names its base by number only. So
// another run's delta with the right number fits, if it touches only tensors that are equal in both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/local_state.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws::slime {

enum class BaseProof : uint8_t {
  kNotNeeded,  // a full checkpoint, or a delta of the base that the operator has put there
  kStream,     // it names the dws-sender's stream of the version that was applied
  kChecksums,  // it states the checksum of every tensor, so nothing of another run can be left
  kFolder,  // the version that was applied is still beside it; it may be another run's all the same
  kNone,
};
std::string_view NameOf(BaseProof proof);  // "stream"

// What a delta must have to be applied.
enum class ProofRule : uint8_t {
  kContent,  // kStream or kChecksums
  kFolder,   // or kFolder
  kNone,     // nothing
};
// The rule of that name: "content", "folder", "none".
std::optional<ProofRule> ProofRuleNamed(std::string_view name);

// A delta of the version that `local` has, and what is known of it.
struct DeltaToProve {
  const VersionFolder& delta;
  const LocalDigests& local;  // its stream, if it has one, is the delta's
  const safetensors::Checkpoint& checkpoint;
  const std::string& folder;  // with the delta and other versions
  bool base_there = false;    // RunFinding::local_there
};

// The strongest proof there is.
BaseProof ProofOf(const DeltaToProve& it);

// FAILED_PRECONDITION: `proof`, which ProofOf has found, does not suffice; the message says what is
// missing, and what to do.
Status CheckProof(BaseProof proof, ProofRule rule, const DeltaToProve& it);

}  // namespace dws::slime
