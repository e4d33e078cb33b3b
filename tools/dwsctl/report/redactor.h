// Takes secrets out of text that leaves the machine. It knows the secrets that it was told of, and
// some forms that secrets have wherever they stand: credentials in URLs, bearer tokens, passwords.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

namespace dws::dwsctl {

inline constexpr std::string_view kLeftOut = "(left out)";

// Threads: one at a time.
class Redactor {
 public:
  // Shorter ones are not searched for: they would be found by chance.
  static constexpr size_t kSecretBytesMin = 6;
  static constexpr size_t kSecretsMax = 4096;

  // `secret` is left out wherever it stands, also as JSON has it.
  void Learn(std::string_view secret);
  // Learns the whole text, and its words but paths and short words of letters alone: for a command
  // and a file of keys.
  void LearnWords(std::string_view text);
  // Learns what URLs in `text` have before their '@'.
  void LearnUrls(std::string_view text);

  // The text with kLeftOut in the place of each secret.
  std::string Clean(std::string_view text) const;

 private:
  struct LongestFirst {
    bool operator()(const std::string& one, const std::string& other) const {
      return one.size() != other.size() ? one.size() > other.size() : one < other;
    }
  };
  std::set<std::string, LongestFirst> secrets_;
};

// Returns whether a variable of this name may hold a secret: AWS_SECRET_ACCESS_KEY.
bool NamesSecret(std::string_view variable);

}  // namespace dws::dwsctl
