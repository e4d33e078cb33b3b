"""An S3-compatible store with a bucket and one user who may use it: moto's, which checks signatures and policies.

Prints the endpoint and the user's keys in one line, and serves until its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys

# How many requests come before signatures are checked: those that make the user and the bucket.
_SETUP = 4
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(_SETUP)

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402


def main() -> None:
    bucket, region = sys.argv[1:]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    any_key = {"endpoint_url": endpoint, "region_name": region, "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    iam = boto3.client("iam", **any_key)
    iam.create_user(UserName="dws")
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName="dws", PolicyName="dws", PolicyDocument=policy)
    keys = iam.create_access_key(UserName="dws")["AccessKey"]
    boto3.client("s3", **any_key).create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})
    print(json.dumps([endpoint, keys["AccessKeyId"], keys["SecretAccessKey"]]), flush=True)
    sys.stdin.read()
    server.stop()


main()
