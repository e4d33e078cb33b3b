// Certificates for tests, made with OpenSSL in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace dws {

struct TestPair {
  std::string cert_pem;
  std::string key_pem;
};

// A certificate authority. Its certificates are valid for a day around now, unless asked otherwise.
class TestAuthority {
 public:
  struct Wish {
    std::vector<std::string> names;  // as OpenSSL writes them: "URI:dws://j/operate/a", "DNS:x"
    int64_t begins_in_seconds = -3600;
    int64_t ends_in_seconds = 86400;
    bool weak = false;  // RSA of 1024 bits
  };

  explicit TestAuthority(const std::string& name);
  ~TestAuthority();

  const std::string& pem() const;
  TestPair Issue(const Wish& wish) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// The key, encrypted with a passphrase.
std::string EncryptedKey(const TestPair& pair);

}  // namespace dws
