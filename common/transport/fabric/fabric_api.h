// libfabric, loaded at run time: every program starts on machines without it. Nearly all of its
// functions are called through the objects it makes. The few functions that make the first objects
// are found here by name and by symbol version, because the layout of the structures depends on
// that version. Headers of libfabric are included in this folder only.
#pragma once

#include <rdma/fabric.h>

#include <memory>
#include <string>

#include "common/base/status.h"

namespace dws {

class FabricApi;
using FabricApiPtr = std::shared_ptr<const FabricApi>;

// Frees a list of fi_info.
struct EndpointListRelease {
  FabricApiPtr api;
  void operator()(fi_info* info) const;
};
using EndpointList = std::unique_ptr<fi_info, EndpointListRelease>;

// Lifecycle: never unloaded, because its providers leave threads and handlers behind. Threads: safe
// from any.
class FabricApi : public std::enable_shared_from_this<FabricApi> {
 public:
  // Loads the library of that name. UNAVAILABLE: there is none, or it lacks a symbol of the version
  // that this was compiled for; the message says what to install.
  static Result<FabricApiPtr> Load(const char* name = "libfabric.so.1");

  // Returns a new, empty description. The caller fills it with its requirements.
  EndpointList NewInfo() const;
  // All endpoints that fit `hints`, best first; empty: none. `source`: a numeric address of this
  // host, or empty. Errors: libfabric's own.
  Result<EndpointList> Find(const fi_info& hints, const std::string& source) const;
  // A copy of one element of a list.
  EndpointList Copy(const fi_info& info) const;
  // fi_fabric.
  int OpenFabric(fi_fabric_attr& attributes, fid_fabric** fabric) const;
  // libfabric's text for an error, which may be negative.
  std::string ErrorText(int error) const;
  // "1.17"
  std::string version() const;

 private:
  FabricApi() = default;

  decltype(&::fi_getinfo) getinfo_ = nullptr;
  decltype(&::fi_freeinfo) freeinfo_ = nullptr;
  decltype(&::fi_dupinfo) dupinfo_ = nullptr;
  decltype(&::fi_fabric) fabric_ = nullptr;
  decltype(&::fi_strerror) strerror_ = nullptr;
  decltype(&::fi_version) version_ = nullptr;

  friend struct EndpointListRelease;
};

}  // namespace dws
