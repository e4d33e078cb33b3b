"""Compares objects with Kubernetes' schemas: run with a Python that has kubernetes-validate. Reads a list of JSON objects, and
prints for each "" or what is wrong with it, after the version of the schemas."""

import json
import sys

import kubernetes_validate


def verdict(thing, version):
    try:
        kubernetes_validate.validate(thing, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return None
    except kubernetes_validate.ValidationError as error:
        return f"{'/'.join(map(str, error.path))}: {error.message}"
    return ""


def main():
    version = kubernetes_validate.latest_version()
    print(json.dumps([version, *(verdict(thing, version) for thing in json.load(sys.stdin))]))


if __name__ == "__main__":
    main()
