#include "common/transport/shared_fs/manifest.h"

#include <algorithm>
#include <array>

#include "common/model/limits.h"
#include "proto/shared_fs.pb.h"

namespace dws::shared {
namespace {

// All files that a manifest may list. Others are refused, so that no path of a message is opened.
constexpr std::array kFileNames = {kDescriptionName, kDeltaName, kFullName, kFullIndexName};

v1::SharedFile Store(const FileEntry& file) {
  v1::SharedFile message;
  message.set_name(file.name);
  message.set_size_bytes(file.size_bytes);
  message.set_piece_bytes(file.piece_bytes);
  for (const Sha256Digest& piece : file.pieces) {
    message.mutable_sha256()->append(AsText(piece).data(), piece.size());
  }
  return message;
}

Result<FileEntry> Load(const v1::SharedFile& message) {
  if (message.size_bytes() > limits::kObjectBytesMax || message.piece_bytes() == 0 ||
      message.piece_bytes() > limits::kSharedPieceBytesMax) {
    return DataLossError("a file of {} bytes in pieces of {}, expected at most {} in 1 to {}",
                         message.size_bytes(), message.piece_bytes(), limits::kObjectBytesMax,
                         limits::kSharedPieceBytesMax);
  }
  FileEntry file{.name = message.name(),
                 .size_bytes = message.size_bytes(),
                 .piece_bytes = message.piece_bytes()};
  const uint64_t pieces = CeilDiv(file.size_bytes, file.piece_bytes);
  if (message.sha256().size() != pieces * sizeof(Sha256Digest)) {
    return DataLossError("a file of {} pieces with {} bytes of SHA-256, expected {}", pieces,
                         message.sha256().size(), pieces * sizeof(Sha256Digest));
  }
  file.pieces.resize(pieces);
  const ByteSpan digests = AsBytes(message.sha256());
  for (size_t i = 0; i < pieces; ++i) {
    const ByteSpan digest = digests.subspan(i * sizeof(Sha256Digest), sizeof(Sha256Digest));
    std::copy(digest.begin(), digest.end(), file.pieces[i].begin());
  }
  return file;
}

Status CheckFiles(const Manifest& manifest) {
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const std::string& name = manifest.files[i].name;
    const bool known = std::find(kFileNames.begin(), kFileNames.end(), name) != kFileNames.end();
    if (!known || manifest.Find(name) != &manifest.files[i]) {
      return DataLossError("the file '{}' is unknown, or listed twice", name);
    }
  }
  if (manifest.Find(kDescriptionName) == nullptr) return DataLossError("there is no description");
  if ((manifest.Find(kDeltaName) != nullptr) != manifest.has_delta()) {
    return DataLossError("a delta without its base, or the other way round");
  }
  if ((manifest.Find(kFullName) != nullptr) != (manifest.Find(kFullIndexName) != nullptr)) {
    return DataLossError("full tensors without their index, or the other way round");
  }
  if (manifest.base.has_value() && *manifest.base >= manifest.name.version) {
    return DataLossError("version {} has the base {}", manifest.name.version.value(),
                         manifest.base->value());
  }
  if (manifest.welcome.name != WelcomeName(manifest.name.epoch)) {
    return DataLossError("the welcome of epoch {} is called '{}'", manifest.name.epoch.value(),
                         manifest.welcome.name);
  }
  return OkStatus();
}

Result<Manifest> FromMessage(const v1::SharedManifest& message) {
  Manifest manifest{.job_id = message.job_id(),
                    .stream = {.incarnation = message.stream().incarnation(),
                               .id_hi = message.stream().id_hi(),
                               .id_lo = message.stream().id_lo()},
                    .trainer_rank = TrainerRank(message.trainer_rank()),
                    .name = {.version = WeightVersion(message.version()),
                             .epoch = RankEpoch(message.rank_epoch())}};
  if (message.base_version() != 0) manifest.base = WeightVersion(message.base_version());
  manifest.state_token = {.lane0 = message.state_token().lane0(),
                          .lane1 = message.state_token().lane1()};
  DWS_ASSIGN_OR_RETURN(manifest.welcome, Load(message.welcome()));
  for (const v1::SharedFile& file : message.files()) {
    DWS_ASSIGN_OR_RETURN(FileEntry entry, Load(file));
    manifest.files.push_back(std::move(entry));
  }
  DWS_RETURN_IF_ERROR(CheckFiles(manifest));
  return manifest;
}

}  // namespace

const FileEntry* Manifest::Find(std::string_view file) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const FileEntry& entry) { return entry.name == file; });
  return found == files.end() ? nullptr : &*found;
}

uint64_t Manifest::size_bytes() const {
  uint64_t bytes = 0;
  for (const FileEntry& file : files) bytes += file.size_bytes;
  return bytes;
}

std::vector<std::byte> SerializeManifest(const Manifest& manifest, const Key& key) {
  v1::SharedManifest message;
  message.set_job_id(manifest.job_id);
  message.mutable_stream()->set_incarnation(manifest.stream.incarnation);
  message.mutable_stream()->set_id_hi(manifest.stream.id_hi);
  message.mutable_stream()->set_id_lo(manifest.stream.id_lo);
  message.set_trainer_rank(manifest.trainer_rank.value());
  message.set_rank_epoch(manifest.name.epoch.value());
  message.set_version(manifest.name.version.value());
  message.set_base_version(manifest.base.value_or(WeightVersion(0)).value());
  message.mutable_state_token()->set_lane0(manifest.state_token.lane0);
  message.mutable_state_token()->set_lane1(manifest.state_token.lane1);
  *message.mutable_welcome() = Store(manifest.welcome);
  for (const FileEntry& file : manifest.files) *message.add_files() = Store(file);
  return Seal(SealedKind::kManifest, message.SerializeAsString(), key);
}

Result<Manifest> ParseManifest(ByteSpan file, const Key& key, const std::string& path) {
  DWS_ASSIGN_OR_RETURN(const std::string_view bytes,
                       Unseal(SealedKind::kManifest, file, key, path));
  v1::SharedManifest message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLossError("{} is not a SharedManifest", path);
  }
  auto manifest = FromMessage(message);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  return manifest;
}

}  // namespace dws::shared
