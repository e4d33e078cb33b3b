// SyncService with the callback API, as senders and receivers implement it. Methods that a class
// does not override are UNIMPLEMENTED.
#pragma once

#include "proto/sync.grpc.pb.h"

namespace dws {

// Does what SyncService::CallbackService does, but writes deltas and full tensors as bytes: a
// message class would copy them.
using RawSyncService = v1::SyncService::WithCallbackMethod_Sync<
    v1::SyncService::WithCallbackMethod_Describe<v1::SyncService::WithRawCallbackMethod_Fetch<
        v1::SyncService::WithRawCallbackMethod_FetchFull<
            v1::SyncService::WithCallbackMethod_OpenSnapshot<
                v1::SyncService::WithCallbackMethod_OpenFabric<
                    v1::SyncService::WithCallbackMethod_OpenGpuCopies<
                        v1::SyncService::WithCallbackMethod_Peers<v1::SyncService::Service>>>>>>>>;

}  // namespace dws
