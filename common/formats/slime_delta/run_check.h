// Whether a folder of versions is of the run whose versions were applied to a local checkpoint.
//
// Of what was applied and is remembered, each version that the folder still has must be the one
// that was applied: of the same identity, wherever its file is not the very one that was read;
// where the local version is what was applied, others' files need only be of the time and size of
// then. That shows another run, also one that has so far written versions before the local one
// alone. What the folder no longer has shows nothing. That it is the same run is proved by one of
// these:
//   1. the newest of them is the file that was applied: the very one, or one of its time and size,
//      as in a copy that keeps times;
//   2. it is of the stream of a dws-sender that the checkpoint is of;
//   3. the folder has all versions since the chain began, and they come to the same chain.
// Where it has none of them, as writers leave it that remove a version once it is loaded, there is
// nothing to prove it with: the digests of what the next version touches have the last word
// (apply.h), unless the folder was doubted before.
//
// What a release before chains, or another program, has brought to its version remembers no files.
// Then the local version and those before it, as far as the folder has them without a gap, must
// state the digests that the local tensors have; the local version is remembered from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/formats/held_folder.h"
#include "common/formats/slime_delta/checksum.h"
#include "common/formats/slime_delta/local_state.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws::slime {

enum class RunVerdict : uint8_t {
  kSame,
  kSilent,    // the folder says nothing
  kUnproved,  // it may be another, and from now on has to prove that it is not
  kOther,
};

struct RunFinding {
  RunVerdict verdict = RunVerdict::kSame;
  std::string why;                        // of kUnproved and kOther
  std::optional<AppliedVersion> adopted;  // what the local version is remembered as from now on
};

// Lifecycle: of one local checkpoint. Threads: one.
class RunCheck {
 public:
  // Of a tensor of the checkpoint; nullopt: there is none.
  using ChecksumOf =
      std::function<std::optional<std::string>(const std::string& tensor, ChecksumFormat format)>;

  // `checkpoint` is its folder, for messages.
  explicit RunCheck(std::string checkpoint) : checkpoint_(std::move(checkpoint)) {}

  // Reads what it has to: where nothing has changed, the times of the remembered versions' indices
  // alone. UNAVAILABLE: something was changed meanwhile, or is not all there: look again.
  // DATA_LOSS: a version that was applied is damaged in the folder. Others: of files.
  Result<RunFinding> Look(const HeldFolder& versions, const LocalDigests& local,
                          const ChecksumOf& checksum_of);
  // When the newest version up to the local one was written whose file is not the one that was
  // applied; nullopt: there is none. Errors: of files.
  static Result<std::optional<int64_t>> NewestOther(const HeldFolder& versions,
                                                    const LocalDigests& local);
  // A full checkpoint has been applied: what was compared is of no use any more.
  void Forget();

 private:
  // Whether a version of `there`, those in the folder, is remembered, and its file is of another
  // time or size than what was applied or compared.
  Result<bool> SomeWrittenAgain(const HeldFolder& versions, const Lineage& lineage,
                                const std::vector<uint64_t>& there) const;
  // Of `there` with what is remembered.
  Result<RunFinding> Compare(const HeldFolder& versions, const LocalDigests& local,
                             const std::vector<uint64_t>& there);
  // Where nothing is remembered of the local version.
  Result<RunFinding> Adopt(const HeldFolder& versions, const LocalDigests& local,
                           const ChecksumOf& checksum_of) const;
  // 3 of the header.
  Result<bool> ChainsUp(const HeldFolder& versions, const LocalDigests& local,
                        const std::vector<uint64_t>& there) const;
  bool IsCompared(uint64_t version, const FileStamp& stamp) const;
  RunFinding Unproved(const std::string& what) const;
  RunFinding Other(const std::string& what) const;

  const std::string checkpoint_;
  // Files that were not the ones that were applied, and have their identity.
  std::map<uint64_t, FileStamp> compared_;
  std::optional<std::pair<uint64_t, FileStamp>> proved_;  // by this file of the local version
};

}  // namespace dws::slime
