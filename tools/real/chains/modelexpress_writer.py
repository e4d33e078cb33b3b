"""Writes a chain of versions with ModelExpress's own writer into moto's S3, and copies the objects into a folder.

modelexpress_writer.py FOLDER   runs with a Python that has modelexpress, torch, safetensors, boto3 and moto

Makes FOLDER/base (the checkpoint that all begin with), FOLDER/versions/weight_vNNNNNN (the objects of each version, under the keys
that the writer gave them) and FOLDER/expected/NNNNNN.safetensors (the weights that each version stands for). The last line is what
the objects' keys were, as JSON. Only the part of ModelExpress that publishes is used: its control plane, which names the versions, is
replaced by four lines here.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Iterator

BUCKET, PREFIX = "weights", "a-run"
# What each version is. An unchanged one has an index and no shard.
PLAN = ("delta", "delta", "unchanged", "full", "delta")


def checkpoint_of(torch: Any) -> dict[str, Any]:
    torch.manual_seed(5)
    shapes = {"model.embed.weight": (320, 64), "model.layers.0.up.weight": (256, 64), "model.norm.weight": (64,)}
    return {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}


def step(torch: Any, weights: dict[str, Any], kind: str) -> None:
    for tensor in weights.values() if kind != "unchanged" else ():
        flat = tensor.view(-1)
        chosen = torch.randint(0, flat.numel(), (max(1, flat.numel() // 100),))
        flat[chosen] = flat[chosen] * -1.25 + 0.01


def buckets(weights: dict[str, Any]) -> Iterator[list[tuple[str, Any]]]:
    for item in weights.items():
        yield [item]


def publish_all(folder: str, endpoint: str) -> list[str]:
    """The keys of all objects."""
    import torch
    import torch.distributed
    from modelexpress_rl import refit_pb2
    from modelexpress_rl.object_storage import ObjectStorageType
    from modelexpress_rl.s3 import S3Client
    from modelexpress_rl.train.client import ObjectStorageConfig
    from modelexpress_rl.train.methods.canonical_delta import CanonicalDeltaPublicationMethod
    from modelexpress_rl.utils import make_tensor_reader
    from modelexpress_rl.version import WeightVersionRef
    from safetensors.torch import save_file

    weights = checkpoint_of(torch)
    for name in ("base", "versions", "expected"):
        os.makedirs(f"{folder}/{name}")
    save_file(weights, f"{folder}/base/model.safetensors", {"format": "pt"})
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    versions: dict[str, Any] = {}

    class Control:
        def GetWeightVersion(self, request: Any, timeout: float) -> Any:
            return refit_pb2.GetWeightVersionResponse(version=versions[request.uid])

    s3 = S3Client(endpoint_url=endpoint, region_name="us-east-1")
    config = ObjectStorageConfig(ObjectStorageType.S3, f"s3://{BUCKET}/{PREFIX}", "uid-base", f"{folder}/base", endpoint)
    method = CanonicalDeltaPublicationMethod(
        config=config, model_name="m", service=Control, rpc_timeout_seconds=5.0, process_group=torch.distributed.group.WORLD,
        read_seed_tensor=make_tensor_reader(f"{folder}/base")[0], s3=s3)  # fmt: skip
    method.prepare_base(hf_tensor_iter=buckets(weights))
    before = "uid-base"
    for number, kind in enumerate(PLAN, 1):
        step(torch, weights, kind)
        uid = f"uid-{number:02d}f3"
        version = refit_pb2.WeightVersion(uid=uid, model_name="m")
        version.object_storage.uri = f"s3://{BUCKET}/{PREFIX}/weight_v{number:06d}/model.safetensors.index.json"
        version.object_storage.storage_type = refit_pb2.OBJECT_STORAGE_TYPE_S3
        version.payload_format = refit_pb2.WEIGHT_PAYLOAD_FORMAT_XOR_DELTA
        if kind == "full":
            version.payload_format = refit_pb2.WEIGHT_PAYLOAD_FORMAT_FULL_HF_CHECKPOINT
        else:
            version.base_version_id = before
        versions[uid] = version
        reference = WeightVersionRef(uid)
        method.publish(version=reference, staged=method.stage(version=reference, hf_tensor_iter=buckets(weights)))
        save_file(weights, f"{folder}/expected/{number:06d}.safetensors", {"format": "pt"})
        before = uid
    method.close()
    torch.distributed.destroy_process_group()
    return copy(folder, endpoint)


def copy(folder: str, endpoint: str) -> list[str]:
    """Copies the objects, an index after the shards that it names, as a mount of the store would show them."""
    import boto3

    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    keys = [found["Key"] for found in client.list_objects_v2(Bucket=BUCKET)["Contents"]]
    for key in sorted(keys, key=lambda key: (key.rsplit("/", 1)[0], key.endswith(".json"))):
        path = f"{folder}/versions/{key.removeprefix(PREFIX + '/')}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        client.download_file(BUCKET, key, path)
    return sorted(keys)


def main() -> int:
    os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_EC2_METADATA_DISABLED="true")
    os.environ.update(MX_REFIT_FULL_CHECKPOINT_BATCH_BYTES="40000")  # so that the full version has more than one shard
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket=BUCKET)
        print(json.dumps(publish_all(sys.argv[1], endpoint)))
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
