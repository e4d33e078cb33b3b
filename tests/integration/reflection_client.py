"""A gRPC client without DWS code: it learns services, methods and messages
from the server's reflection service, as generic tools do."""

from __future__ import annotations

from typing import Any, Iterator

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_REFLECTION = "grpc.reflection.v1alpha"
CALL_SECONDS = 60.0


def _reflection_file() -> descriptor_pb2.FileDescriptorProto:
    """The part of the public reflection protocol needed here; Debian ships no module for
    it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="reflection_part.proto", package=_REFLECTION, syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    messages: dict[str, list[tuple[str, int, int, int, str]]] = {
        "ServerReflectionRequest": [
            ("file_by_filename", 3, field.TYPE_STRING, field.LABEL_OPTIONAL, ""),
            ("file_containing_symbol", 4, field.TYPE_STRING, field.LABEL_OPTIONAL, ""),
            ("list_services", 7, field.TYPE_STRING, field.LABEL_OPTIONAL, ""),
        ],
        "FileDescriptorResponse": [
            ("file_descriptor_proto", 1, field.TYPE_BYTES, field.LABEL_REPEATED, ""),
        ],
        "ServiceResponse": [("name", 1, field.TYPE_STRING, field.LABEL_OPTIONAL, "")],
        "ListServiceResponse": [
            ("service", 1, field.TYPE_MESSAGE, field.LABEL_REPEATED, "ServiceResponse"),
        ],
        "ErrorResponse": [
            ("error_code", 1, field.TYPE_INT32, field.LABEL_OPTIONAL, ""),
            ("error_message", 2, field.TYPE_STRING, field.LABEL_OPTIONAL, ""),
        ],
        "ServerReflectionResponse": [
            (
                "file_descriptor_response",
                4,
                field.TYPE_MESSAGE,
                field.LABEL_OPTIONAL,
                "FileDescriptorResponse",
            ),
            (
                "list_services_response",
                6,
                field.TYPE_MESSAGE,
                field.LABEL_OPTIONAL,
                "ListServiceResponse",
            ),
            ("error_response", 7, field.TYPE_MESSAGE, field.LABEL_OPTIONAL, "ErrorResponse"),
        ],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, label, type_name in fields:
            added = message.field.add(name=field_name, number=number, type=kind, label=label)
            if type_name:
                added.type_name = f".{_REFLECTION}.{type_name}"
            elif name == "ServerReflectionRequest":  # so that an empty list_services counts as set
                added.oneof_index = 0
        if name == "ServerReflectionRequest":
            message.oneof_decl.add(name="message_request")
    return file


class ReflectionClient:
    """Calls methods by their names. A context manager; it closes the channel at its end."""

    def __init__(self, target: str) -> None:
        """Args:
        target: "unix:/path" or "host:port".
        """
        self._channel = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        self._own = message_factory.MessageFactory(descriptor_pool.DescriptorPool())
        self._own.pool.Add(_reflection_file())
        self._pool = descriptor_pool.DescriptorPool()
        self._messages = message_factory.MessageFactory(self._pool)
        self._files: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def services(self) -> list[str]:
        """The services that the server lists, sorted."""
        reply = self._ask(list_services="*")
        return sorted(service.name for service in reply.list_services_response.service)

    def methods(self, service: str) -> dict[str, bool]:
        """The methods of a service, and whether each streams its answer."""
        self._load(service)
        return {
            method.name: method.server_streaming for method in self._service_proto(service).method
        }

    def call(self, service: str, method: str, **fields: Any) -> Any:
        """A call with one reply, or an iterable call with several; `fields` are the request's.

        Raises:
          grpc.RpcError: the server's error, raised when the reply is read.
        """
        self._load(service)
        described = self._pool.FindServiceByName(service).methods_by_name[method]
        request = self._messages.GetPrototype(described.input_type)(**fields)
        reply = self._messages.GetPrototype(described.output_type)
        streams = self.methods(service)[method]
        make = self._channel.unary_stream if streams else self._channel.unary_unary
        path = f"/{service}/{method}"
        stub = make(path, type(request).SerializeToString, reply.FromString)
        return stub(request, timeout=CALL_SECONDS, wait_for_ready=True)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> "ReflectionClient":
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()

    def _prototype(self, name: str) -> Any:
        pool = self._own.pool
        return self._own.GetPrototype(pool.FindMessageTypeByName(f"{_REFLECTION}.{name}"))

    def _ask(self, **request: str) -> Any:
        message = self._prototype("ServerReflectionRequest")(**request)
        stub = self._channel.stream_stream(
            f"/{_REFLECTION}.ServerReflection/ServerReflectionInfo",
            type(message).SerializeToString,
            self._prototype("ServerReflectionResponse").FromString,
        )
        replies: Iterator[Any] = stub(iter([message]), timeout=CALL_SECONDS, wait_for_ready=True)
        reply = next(replies)
        if reply.HasField("error_response"):
            raise LookupError(f"{request}: {reply.error_response.error_message}")
        return reply

    def _service_proto(self, service: str) -> descriptor_pb2.ServiceDescriptorProto:
        for file in self._files.values():
            for described in file.service:
                if f"{file.package}.{described.name}" == service:
                    return described
        raise LookupError(service)

    def _load(self, service: str) -> None:
        """Fetches the file of a symbol, and its imports by name, until all are loaded."""
        if any(service == f"{f.package}.{s.name}" for f in self._files.values() for s in f.service):
            return
        self._take(self._ask(file_containing_symbol=service))
        while missing := [
            name
            for file in self._files.values()
            for name in file.dependency
            if name not in self._files
        ]:
            self._take(self._ask(file_by_filename=missing[0]))
        for name in list(self._files):
            self._add(name)

    def _take(self, reply: Any) -> None:
        for data in reply.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            self._files[file.name] = file

    def _add(self, name: str) -> None:
        """Adds a file after its imports."""
        try:
            self._pool.FindFileByName(name)
        except KeyError:
            for dependency in self._files[name].dependency:
                self._add(dependency)
            self._pool.Add(self._files[name])
