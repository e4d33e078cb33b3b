// Secrets that were learned go first: what is left is searched for forms of secrets.
#include "tools/dwsctl/report/redactor.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "common/base/status.h"

namespace dws::dwsctl {
namespace {

// Where a word ends that stands in a line of a log, in JSON, or in a command.
constexpr std::string_view kWordEnds = " \t\r\n\"'`,;<>()[]{}\\";

char Lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::string Lowered(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  return lower;
}

size_t EndOfWord(std::string_view text, size_t from) {
  return std::min(text.find_first_of(kWordEnds, from), text.size());
}

// The positions of URLs' authorities, behind "://".
std::vector<size_t> Authorities(std::string_view text) {
  std::vector<size_t> found;
  for (size_t at = text.find("://"); at != std::string_view::npos; at = text.find("://", at + 3)) {
    found.push_back(at + 3);
  }
  return found;
}

// Where the user and password end that begin at `from`; `from`: there are none. A password may have
// a '/' in it, so the last '@' of the word counts, not the last before the path.
size_t EndOfUser(std::string_view text, size_t from) {
  const std::string_view word = text.substr(from, EndOfWord(text, from) - from);
  const size_t query = std::min(word.find('?'), word.size());
  const size_t sign = word.substr(0, query).rfind('@');
  return sign == std::string_view::npos ? from : from + sign;
}

// Users and passwords in URLs, and their queries.
std::string WithoutUrlSecrets(std::string_view text) {
  std::string out;
  size_t done = 0;
  for (const size_t at : Authorities(text)) {
    if (at < done) continue;
    out += text.substr(done, at - done);
    const size_t user_end = EndOfUser(text, at);
    if (user_end != at) out += kLeftOut;
    const size_t end = EndOfWord(text, user_end);
    const size_t query = std::min(text.find('?', user_end), end);
    out += text.substr(user_end, query - user_end);
    if (query != end) out += fmt::format("?{}", kLeftOut);
    done = end;
  }
  return out + std::string(text.substr(done));
}

constexpr std::array<std::string_view, 11> kBeforeSecrets = {
    "bearer ",    "authorization", "password", "passwd",        "secret",    "secret_key",
    "access_key", "api_key",       "api-key",  "session_token", "auth_token"};

// Where the secret begins whose name ends at `at`; npos: none does. A name may be in quotes, and
// ends with a blank or has a sign behind it.
size_t BeginOfSecret(std::string_view text, std::string_view name, size_t at) {
  if (name.back() != ' ') {
    at = text.find_first_not_of("\"'\\ ", at);
    if (at == std::string_view::npos || (text[at] != ':' && text[at] != '=')) {
      return std::string_view::npos;
    }
    ++at;
  }
  return text.find_first_not_of(" \"'\\", at);
}

// What follows "Bearer ", "password=" and their like, to the end of the word; of "Authorization:",
// which has several words, to the end of the line.
std::string WithoutNamedSecrets(std::string text) {
  for (const std::string_view before : kBeforeSecrets) {
    std::string lower = Lowered(text);
    for (size_t at = lower.find(before); at != std::string::npos; at = lower.find(before, at)) {
      at += before.size();
      const size_t begin = BeginOfSecret(text, before, at);
      if (begin == std::string::npos) continue;
      const size_t end = before == "authorization"
                             ? std::min(text.find_first_of("\"'\n", begin), text.size())
                             : EndOfWord(text, begin);
      if (end == begin || text.compare(begin, 1, "(") == 0) continue;
      text.replace(begin, end - begin, kLeftOut);
      lower.replace(begin, end - begin, kLeftOut);
      at = begin + kLeftOut.size();
    }
  }
  return text;
}

// A word like "version" or "--silent" is no secret, and would be left out of every other part.
bool IsPlainWord(std::string_view word) {
  constexpr size_t kPlainBytesMax = 15;
  return word.size() <= kPlainBytesMax && std::ranges::all_of(word, [](char c) {
           return (c >= 'a' && c <= 'z') || c == '-' || c == '_' || c == '.';
         });
}

// The text between the quotes of a JSON string.
std::string InJson(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

void Redactor::Learn(std::string_view secret) {
  if (secret.size() < kSecretBytesMin || secrets_.size() >= kSecretsMax) return;
  secrets_.emplace(secret);
  secrets_.insert(InJson(secret));
}

void Redactor::LearnWords(std::string_view text) {
  Learn(text);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" \t\r\n\"'=:", at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!word.starts_with('/') && !IsPlainWord(word)) Learn(word);
    at = end + 1;
  }
}

void Redactor::LearnUrls(std::string_view text) {
  for (const size_t at : Authorities(text)) {
    const std::string_view user = text.substr(at, EndOfUser(text, at) - at);
    Learn(user);
    if (const size_t colon = user.find(':'); colon != std::string_view::npos) {
      Learn(user.substr(colon + 1));
    }
    const std::string_view word = text.substr(at, EndOfWord(text, at) - at);
    const size_t query = word.find('?');
    if (query != std::string_view::npos) Learn(word.substr(query + 1));
  }
}

std::string Redactor::Clean(std::string_view text) const {
  std::string out(text);
  for (const std::string& secret : secrets_) {
    for (size_t at = out.find(secret); at != std::string::npos; at = out.find(secret, at)) {
      out.replace(at, secret.size(), kLeftOut);
      at += kLeftOut.size();
    }
  }
  return WithoutNamedSecrets(WithoutUrlSecrets(out));
}

bool NamesSecret(std::string_view variable) {
  const std::string lower = Lowered(variable);
  return std::ranges::any_of(
      std::array{"key", "token", "secret", "passw", "credential", "auth"},
      [&](const char* part) { return lower.find(part) != std::string::npos; });
}

}  // namespace dws::dwsctl
