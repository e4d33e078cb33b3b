// The proofs are in the order of their strength, so a rule is a threshold.
#include "common/formats/slime_delta/local/base_proof.h"

#include <algorithm>
#include <string>

#include "common/formats/slime_delta/version_index.h"

namespace dws::slime {
namespace {

// Returns the name of a tensor of the checkpoint whose checksum the delta does not state, if there
// is one.
std::optional<std::string> FirstUnstated(const DeltaToProve& it) {
  const auto& stated = it.delta.index().weight_map;
  const auto& tensors = it.checkpoint.tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
    return tensor.size_bytes > 0 && !stated.contains(tensor.name);
  });
  if (found == tensors.end()) return std::nullopt;
  return found->name;
}

}  // namespace

std::string_view NameOf(BaseProof proof) {
  switch (proof) {
    case BaseProof::kNotNeeded:
      return "not needed";
    case BaseProof::kStream:
      return "stream";
    case BaseProof::kChecksums:
      return "checksums";
    case BaseProof::kFolder:
      return "folder";
    case BaseProof::kNone:
      return "nothing";
  }
  return "";
}

std::optional<ProofRule> ProofRuleNamed(std::string_view name) {
  if (name == "content") return ProofRule::kContent;
  if (name == "folder") return ProofRule::kFolder;
  if (name == "none") return ProofRule::kNone;
  return std::nullopt;
}

BaseProof ProofOf(const DeltaToProve& it) {
  if (it.local.version == 0) return BaseProof::kNotNeeded;
  if (!it.local.lineage.stream.empty()) return BaseProof::kStream;
  if (!FirstUnstated(it).has_value()) return BaseProof::kChecksums;
  return it.base_there ? BaseProof::kFolder : BaseProof::kNone;
}

Status CheckProof(BaseProof proof, ProofRule rule, const DeltaToProve& it) {
  const BaseProof weakest = rule == ProofRule::kContent  ? BaseProof::kChecksums
                            : rule == ProofRule::kFolder ? BaseProof::kFolder
                                                         : BaseProof::kNone;
  if (proof <= weakest) return OkStatus();
  const std::string base = VersionText(it.local.version);
  const bool gone = !it.base_there;
  return FailedPreconditionError(
      "version {} is a delta of version {}, and nothing proves that this is the version {} that "
      "was applied here: {}the delta names no stream of a dws-sender, and states no checksum of "
      "tensor "
      "'{}'. The trainer may have begun another run; nothing is applied until {}a full checkpoint "
      "of version {} or later is published, or the run's base is put in the place of {}, without "
      ".weight_sync. --slime-proof={} applies it all the same",
      VersionText(it.delta.index().version), base, base,
      gone ? fmt::format("{} no longer has that, ", it.folder) : "", FirstUnstated(it).value_or(""),
      gone ? fmt::format("version {} is there again, ", base) : "",
      VersionText(it.local.version + 1), it.checkpoint.path(), gone ? "none" : "folder");
}

}  // namespace dws::slime
