// Looks for a proof that a delta was made from the version that the local checkpoint has. A delta's
// checksums cover only the tensors that it touches, and its index names its base only by number. So
// a delta of another run with the right number fits if it touches only tensors that are equal in
// both runs.
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
  kChecksums,  // it states the checksum of every tensor, so no bytes of another run can remain
  kFolder,     // the applied version is still beside it, but may itself be another run's
  kNone,
};
std::string_view NameOf(BaseProof proof);  // "stream"

// What a delta must have to be applied.
enum class ProofRule : uint8_t {
  kContent,  // kStream or kChecksums
  kFolder,   // or kFolder
  kNone,     // no proof
};
// The rule of that name: "content", "folder", "none".
std::optional<ProofRule> ProofRuleNamed(std::string_view name);

// A delta of the version that `local` has, and the known facts about it.
struct DeltaToProve {
  const VersionFolder& delta;
  const LocalDigests& local;  // its stream, if it has one, is the delta's
  const safetensors::Checkpoint& checkpoint;
  const std::string& folder;  // with the delta and other versions
  bool base_there = false;    // RunFinding::local_there
};

// Returns the strongest proof there is.
BaseProof ProofOf(const DeltaToProve& it);

// FAILED_PRECONDITION: `proof`, which ProofOf returned, does not suffice; the message says what is
// missing, and what to do.
Status CheckProof(BaseProof proof, ProofRule rule, const DeltaToProve& it);

}  // namespace dws::slime
