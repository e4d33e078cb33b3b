#include "common/formats/slime_delta/local/lineage.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/formats/slime_delta/digest/checksum.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

template <typename Number>
bool TakeNumber(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && at == end;
}

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

void ExtendChain(std::string& chain, const std::string& identity) {
  const std::string both = chain + "\n" + identity;
  chain = ChecksumText(ChecksumFormat::kXxh3, AsBytes(both));
}

Lineage After(Lineage before, LineageStep step) {
  // A delta continues the chain. It was accepted, so an earlier refusal or doubt no longer holds.
  Lineage after;
  if (!step.full) {
    after = std::move(before);
    after.refused.clear();
    after.doubted.clear();
    after.other_ns.reset();
  } else {
    after.since = step.version;
  }
  ExtendChain(after.chain, step.applied.identity);
  after.stream = std::move(step.stream);
  after.name = std::move(step.name);
  after.applied.insert_or_assign(step.version, std::move(step.applied));
  while (after.applied.size() > limits::kSlimeAppliedMax) {
    after.applied.erase(after.applied.begin());
  }
  return after;
}

std::string AppliedText(const AppliedVersion& applied) {
  const FileStamp& index = applied.index;
  return fmt::format("{} {} {} {} {} {}", applied.identity, index.device, index.inode,
                     index.size_bytes, index.modified_ns, index.changed_ns);
}

std::optional<AppliedVersion> ParseApplied(std::string_view text) {
  const std::vector<std::string_view> words = Words(text);
  AppliedVersion applied{.identity = std::string(words[0]), .index = {}};
  FileStamp& index = applied.index;
  const bool parsed =
      !applied.identity.empty() && words.size() == 6 && TakeNumber(words[1], index.device) &&
      TakeNumber(words[2], index.inode) && TakeNumber(words[3], index.size_bytes) &&
      TakeNumber(words[4], index.modified_ns) && TakeNumber(words[5], index.changed_ns);
  return parsed ? std::optional(std::move(applied)) : std::nullopt;
}

}  // namespace dws::slime
