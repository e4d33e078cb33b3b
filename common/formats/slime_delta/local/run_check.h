// Decides whether a folder of versions belongs to the run whose versions were applied to a local
// checkpoint.
//
// The local checkpoint remembers the versions that were applied. Each of them that the folder still
// has must be the one that was applied. If its file is not the very file that was read, its
// identity is compared. (If the local version in the folder is the one that was applied, earlier
// files of the same time and size are not compared.) A difference shows another run, even one that
// has so far written only versions before the local one. Versions that the folder no longer has
// prove nothing. One of these proves that it is the same run:
//   1. the newest remembered version in the folder is the file that was applied: the very file, or
//      one of the same time and size, as in a copy that keeps times;
//   2. it is of the same dws-sender's stream as the checkpoint;
//   3. the folder has all versions since the chain began, and they give the same chain.
// If the folder has no remembered version, it neither proves nor disproves anything, unless it was
// doubted before or all its versions are before the local one. A delta then needs a proof of its
// own (base_proof.h).
//
// A checkpoint that another program brought to its version remembers no files. Then the local
// version and those before it, as far as the folder has them without a gap, must state the digests
// that the local tensors have. From then on the local version is remembered.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/formats/held_folder.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/local_state.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws::slime {

enum class RunVerdict : uint8_t {
  kSame,
  kSilent,    // the folder neither proves nor disproves it
  kUnproved,  // it may be another run; from now on the folder has to prove that it is not
  kOther,
};

// The result of comparing a folder's versions with those that were applied here.
struct RunFinding {
  RunVerdict verdict = RunVerdict::kSame;
  std::string why;                        // for kUnproved and kOther
  std::optional<AppliedVersion> adopted;  // remember the local version as this from now on
  bool local_there = false;  // the folder has the local version, and it is the one applied here
};

// Compares folders with one local checkpoint and keeps the results of its comparisons. Threads:
// one.
class RunCheck {
 public:
  // `checkpoint` must outlive this object.
  explicit RunCheck(const safetensors::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Reads as little as possible: if nothing has changed, it reads only the times of the remembered
  // versions' indices. UNAVAILABLE: the folder changed meanwhile, or a version is not complete;
  // look again later. DATA_LOSS: a version that was applied is damaged in the folder. Other errors
  // come from the file system.
  Result<RunFinding> Look(const HeldFolder& versions, const LocalDigests& local);
  // Returns the time of the newest version, up to the local one, whose file is not the file that
  // was applied; nullopt: there is none. Errors come from the file system.
  static Result<std::optional<int64_t>> NewestOther(const HeldFolder& versions,
                                                    const LocalDigests& local);
  // Drops all comparisons. Call it when a full checkpoint has been applied.
  void Forget();

 private:
  // Returns whether a remembered version that the folder has (`there`) has a file of another time
  // or size than the file that was applied or compared.
  Result<bool> SomeWrittenAgain(const HeldFolder& versions, const Lineage& lineage,
                                const std::vector<uint64_t>& there) const;
  // Compares `there` with the remembered versions.
  Result<RunFinding> Compare(const HeldFolder& versions, const LocalDigests& local,
                             const std::vector<uint64_t>& there);
  // For a local version that is not remembered.
  Result<RunFinding> Adopt(const HeldFolder& versions, const LocalDigests& local) const;
  // Opens one of the compared versions. nullopt: it is no longer there. FAILED_PRECONDITION: it is
  // a version of another model, so of another run.
  Result<std::optional<VersionFolder>> OpenIfThere(const HeldFolder& versions,
                                                   uint64_t version) const;
  // Returns the name of a tensor for which `version` states another digest than the local tensor
  // has. Skips tensors in `seen`, which later versions may have changed, and adds the tensors of
  // `version` to it.
  std::optional<std::string> Differing(const VersionFolder& version,
                                       std::set<std::string>& seen) const;
  // Number 3 of the list above.
  Result<bool> ChainsUp(const HeldFolder& versions, const LocalDigests& local,
                        const std::vector<uint64_t>& there) const;
  bool IsCompared(uint64_t version, const FileStamp& stamp) const;
  RunFinding Unproved(const std::string& what) const;
  RunFinding Other(const std::string& what) const;
  RunFinding NotTheApplied(const HeldFolder& versions, uint64_t version) const;

  const safetensors::Checkpoint& checkpoint_;
  // Files that differ from the applied files but have the same identity.
  std::map<uint64_t, FileStamp> compared_;
  std::optional<std::pair<uint64_t, FileStamp>> proved_;  // the local version's file that proved it
};

}  // namespace dws::slime
