#include "receiver_daemon/follower/loaded_record.h"

#include <charconv>
#include <span>
#include <string_view>
#include <utility>

#include "common/base/log/log.h"

namespace dws {
namespace {

constexpr size_t kBytesMax = 4096;

// Lines: the engine's URL, the version, the contents.
std::string TextOf(const std::string& engine, const CheckpointVersion& loaded) {
  return fmt::format("{}\n{}\n{}\n", engine, loaded.version, loaded.contents);
}

}  // namespace

LoadedRecord::LoadedRecord(FileSystem& files, const std::string& checkpoint_folder,
                           std::string engine)
    : files_(files),
      path_(checkpoint_folder + "/.weight_sync/dws_engine"),
      engine_(std::move(engine)) {}

std::optional<CheckpointVersion> LoadedRecord::Read() const {
  const auto bytes = files_.ReadFile(path_, kBytesMax);
  if (!bytes.ok()) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  // engine "\n" version "\n" contents "\n"
  if (!text.starts_with(engine_ + "\n") || !text.ends_with('\n')) return std::nullopt;
  const std::string_view rest = text.substr(engine_.size() + 1);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  CheckpointVersion loaded;
  const auto [after, error] = std::from_chars(rest.data(), rest.data() + end, loaded.version);
  if (error != std::errc() || after != rest.data() + end || end + 1 >= rest.size()) {
    return std::nullopt;
  }
  loaded.contents = rest.substr(end + 1, rest.size() - end - 2);
  return loaded;
}

void LoadedRecord::Write(const CheckpointVersion& loaded) {
  const std::string text = TextOf(engine_, loaded);
  const Status written = files_.ReplaceFile(path_, std::as_bytes(std::span(text)));
  if (!written.ok()) {
    LogWarning("loaded_record_failed", {{"path", path_}, {"reason", Message(written)}});
  }
}

Status LoadedRecord::Remove() {
  const Status removed = files_.Remove(path_);
  return absl::IsNotFound(removed) ? OkStatus() : removed;
}

}  // namespace dws
