// The line has a fixed number of words, so that a reader notices a line that was cut short. It is
// replaced as a whole, which file systems do not promise across hosts.
#include "sender_daemon/slime/part_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "common/formats/slime_delta/version_writer.h"

namespace dws {
namespace {

constexpr std::array<std::string_view, 4> kKinds = {"none", "full", "delta", "base"};
constexpr size_t kWords = 9;

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (words.size() <= kWords) {
    const size_t space = text.find(' ');
    words.push_back(text.substr(0, space));
    if (space == std::string_view::npos) break;
    text.remove_prefix(space + 1);
  }
  return words;
}

// Returns false if `word` is not a number of the type.
template <typename Number>
bool ReadNumber(std::string_view word, Number& number) {
  const char* const end = word.data() + word.size();
  const auto read = std::from_chars(word.data(), end, number);
  return !word.empty() && read.ec == std::errc() && read.ptr == end;
}

// A stream's name has a colon, which some file systems do not take.
std::string AttemptName(const PartRequest& request) {
  std::string stream = request.stream;
  std::replace(stream.begin(), stream.end(), ':', '-');
  return fmt::format("{}-{}-a{}", stream, request.epoch, request.attempt);
}

}  // namespace

std::string MakePartRequest(const PartRequest& request) {
  return fmt::format("{} {} {} {} {} {} {} {} {}\n", request.stream, request.epoch, request.attempt,
                     request.world_size, request.version, kKinds[static_cast<size_t>(request.kind)],
                     NameOf(request.encoding), NameOf(request.checksum), request.published);
}

Result<PartRequest> ParsePartRequest(std::string_view text, const std::string& what) {
  const auto refuse = [&] {
    return DataLossError("{} is no request of a dws-sender, expected {} words, found '{}'", what,
                         kWords, text.substr(0, kPartRequestBytesMax));
  };
  if (!text.ends_with('\n')) return refuse();
  const std::vector<std::string_view> words = Words(text.substr(0, text.size() - 1));
  if (words.size() != kWords || words[0].empty()) return refuse();
  PartRequest request{.stream = std::string(words[0])};
  const auto kind = std::find(kKinds.begin(), kKinds.end(), words[5]);
  const auto encoding = slime::EncodingNamed(words[6]);
  const auto checksum = slime::ChecksumFormatNamed(words[7]);
  const bool read = ReadNumber(words[1], request.epoch) && ReadNumber(words[2], request.attempt) &&
                    ReadNumber(words[3], request.world_size) &&
                    ReadNumber(words[4], request.version) && kind != kKinds.end() &&
                    encoding.has_value() && checksum.has_value() &&
                    ReadNumber(words[8], request.published);
  if (!read) return refuse();
  request.kind = static_cast<PartKind>(kind - kKinds.begin());
  request.encoding = *encoding;
  request.checksum = *checksum;
  return request;
}

std::string PartWriterName(const PartRequest& request, uint32_t rank, uint64_t rank_epoch) {
  return fmt::format("{}-r{}-e{}", AttemptName(request), rank, rank_epoch);
}

std::optional<PartOwner> ParsePartFolder(const PartRequest& request, std::string_view name) {
  const size_t dash = name.rfind("-r");
  const size_t next = name.rfind("-e");
  if (dash == std::string_view::npos || next == std::string_view::npos || next <= dash) return {};
  PartOwner owner;
  const std::string_view rank = name.substr(dash + 2, next - dash - 2);
  const std::string_view epoch = name.substr(next + 2, name.find('.', next) - next - 2);
  if (!ReadNumber(rank, owner.rank) || !ReadNumber(epoch, owner.epoch)) return {};
  const std::string expected = slime::UnfinishedFolderName(
      request.version, PartWriterName(request, owner.rank, owner.epoch));
  if (name != expected) return {};
  return owner;
}

}  // namespace dws
