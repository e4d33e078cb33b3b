// Records which versions have been applied to a local checkpoint. It is used to recognise the
// folder of another run of the trainer, whose versions also count from 1. Pure.
//
// The identity of a single version is not enough: two versions without changes are equal, whatever
// versions came before them. So identities are chained from the full checkpoint or the base that
// the versions began with: chain(n) = xxh3-128(chain(n-1) "\n" identity(n)), chain(base) = "".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/formats/mapped_file.h"

namespace dws::slime {

// A version that the local checkpoint was brought to.
struct AppliedVersion {
  std::string identity;  // VersionFolder::identity()
  FileStamp index;       // of its index's file when it was read

  friend bool operator==(const AppliedVersion&, const AppliedVersion&) = default;
};

// The versions from which the local checkpoint was made, oldest first.
struct Lineage {
  // The version that the chain began with: a full checkpoint, or 0 for the base. nullopt: not
  // known, because another program brought the checkpoint to its version.
  std::optional<uint64_t> since;
  std::string chain;   // chain of the local version; empty: no version was applied
  std::string stream;  // if the writer is a dws-sender; empty: another writer, or not known
  // Name of the local version, if its writer gave it one; empty: none, or not known.
  std::string name;
  std::map<uint64_t, AppliedVersion> applied;  // the newest limits::kSlimeAppliedMax since then
  // Not empty: another run was seen, and only a full checkpoint may be applied. The text is the
  // reason.
  std::string refused;
  // Not empty: the folder may be of another run and has to prove that it is not. The text is the
  // reason.
  std::string doubted;
  // After a refusal or doubt: the time of the newest version in the folder that is not the one that
  // was applied here. A full checkpoint written before that time may belong to the dead run.
  // nullopt: not known.
  std::optional<int64_t> other_ns;

  friend bool operator==(const Lineage&, const Lineage&) = default;
};

// The application of one version.
struct LineageStep {
  uint64_t version = 0;
  AppliedVersion applied;
  std::string stream;
  std::string name = {};  // VersionIndex::name
  bool full = false;      // it is a full checkpoint
};
// The lineage after `step`.
Lineage After(Lineage before, LineageStep step);

// Adds one version to a chain.
void ExtendChain(std::string& chain, const std::string& identity);

// "IDENTITY DEVICE INODE SIZE MODIFIED_NS CHANGED_NS".
std::string AppliedText(const AppliedVersion& applied);
std::optional<AppliedVersion> ParseApplied(std::string_view text);

}  // namespace dws::slime
