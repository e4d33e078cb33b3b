// The names in a shared directory (LAYOUT.md). Only this code makes and parses them. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws::shared {

inline constexpr std::string_view kManifestName = "manifest";
inline constexpr std::string_view kDescriptionName = "description";
inline constexpr std::string_view kDeltaName = "delta";
inline constexpr std::string_view kFullName = "full";
inline constexpr std::string_view kFullIndexName = "full-index";
inline constexpr std::string_view kReceiversName = "receivers";

// The folder of a version. Its name says who published it: a rank's sender that restarts in the
// same stream takes a higher epoch, so two senders never write the same files.
struct VersionName {
  WeightVersion version;
  RankEpoch epoch;

  friend auto operator<=>(const VersionName&, const VersionName&) = default;
};

// A job's or receiver's id as one name: letters, digits, '.', '_' and '-' stay as they are, except
// a leading '.' and the '.' of a final ".tmp"; other bytes become %XX. INVALID_ARGUMENT: empty, or
// too long for a file's name.
Result<std::string> EscapeId(std::string_view id);

inline constexpr const char* kViewPrefix = "view~";

// The root of what is published of a view, below the directory's: "ROOT/view~0123...cdef"; without
// a view the directory's own. No job's folder has such a name.
std::string RootOfView(const std::string& root, const std::string& view);

std::string RankName(TrainerRank rank);           // "rank-00003"
std::string StreamName(const StreamId& stream);   // "stream-00000000000000000007-0123...cdef"
std::string VersionFolderName(VersionName name);  // "v00000000000000000012-00000000000000000001"
std::string WelcomeName(RankEpoch epoch);         // "welcome-00000000000000000001"

// nullopt: the name has another form.
std::optional<StreamId> ParseStreamName(std::string_view name);
std::optional<VersionName> ParseVersionFolderName(std::string_view name);
std::optional<RankEpoch> ParseWelcomeName(std::string_view name);

}  // namespace dws::shared
