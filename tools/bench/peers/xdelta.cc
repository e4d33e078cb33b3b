// The program over files in shared memory, at its strongest level with secondary compression.
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tools/bench/peers/peer.h"
#include "tools/bench/peers/whole_model.h"

namespace dws::bench {
namespace {

// A folder that is removed with its object.
class SharedFolder {
 public:
  SharedFolder() {
    const bool made = ::mkdtemp(path_.data()) != nullptr;
    if (!made) path_.clear();
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::string File(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_ = "/dev/shm/dws-bench-XXXXXX";
};

Status WriteFile(const std::string& path, ByteSpan bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) return UnavailableError("{}: cannot be written", path);
  return OkStatus();
}

Result<std::vector<std::byte>> ReadFile(const std::string& path) {
  std::error_code error;
  std::vector<std::byte> bytes(std::filesystem::file_size(path, error));
  std::ifstream stream(path, std::ios::binary);
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (error || !stream) return UnavailableError("{}: cannot be read", path);
  return bytes;
}

Status RunXdelta(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "xdelta3");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, "xdelta3", nullptr, nullptr, pointers.data(), environ);
  if (error != 0) return ErrnoError(error, "starting xdelta3 (tools/install.sh installs it)");
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return InternalError("xdelta3 ended with wait status {}", status);
  }
  return OkStatus();
}

Result<std::vector<std::byte>> Encode(std::span<const TensorPair> tensors) {
  const SharedFolder folder;
  const std::vector<std::byte> before = JoinBefore(tensors);
  DWS_RETURN_IF_ERROR(WriteFile(folder.File("before"), before));
  DWS_RETURN_IF_ERROR(WriteFile(folder.File("after"), JoinAfter(tensors)));
  const uint64_t window = std::max<uint64_t>(before.size(), uint64_t{1} << 20);
  DWS_RETURN_IF_ERROR(
      RunXdelta({"-e", "-9", "-S", "lzma", "-f", "-B", std::to_string(window), "-s",
                 folder.File("before"), folder.File("after"), folder.File("delta")}));
  return ReadFile(folder.File("delta"));
}

Status Decode(ByteSpan bytes, std::span<const TensorPair>, TensorStates& states) {
  const SharedFolder folder;
  DWS_RETURN_IF_ERROR(WriteFile(folder.File("before"), Join(states)));
  DWS_RETURN_IF_ERROR(WriteFile(folder.File("delta"), bytes));
  DWS_RETURN_IF_ERROR(RunXdelta(
      {"-d", "-f", "-s", folder.File("before"), folder.File("delta"), folder.File("after")}));
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> after, ReadFile(folder.File("after")));
  return Split(after, states);
}

}  // namespace

Peer Xdelta() {
  return {.id = "P2g",
          .name = "xdelta3 -9 -S lzma",
          .bar = std::nullopt,
          .encode = Encode,
          .decode = Decode};
}

}  // namespace dws::bench
