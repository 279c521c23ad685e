"""Any gRPC client can list and call the coordinator: Python's grpcio, server reflection only, no generated code.

Runs in the test environment that deploy/setup.sh --with-tests makes.
"""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

BUILD = pathlib.Path(os.environ.get("HARMONY_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
TINY_GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_ctx": 64,
    "n_embd": 32, "n_layer": 2, "n_head": 4, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    "initializer_range": 0.02, "tie_word_embeddings": True,
}


class Reflected:
    """Calls methods of a service that is known by its name only."""

    def __init__(self, channel, service):
        self.channel = channel
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        self.service = self.pool.FindServiceByName(service)

    def call(self, method, **fields):
        described = self.service.methods_by_name[method]
        request = message_factory.GetMessageClass(described.input_type)(**fields)
        answer = message_factory.GetMessageClass(described.output_type)
        path = f"/{self.service.full_name}/{method}"
        kind = self.channel.unary_stream if described.server_streaming else self.channel.unary_unary
        return kind(path, request_serializer=type(request).SerializeToString,
                    response_deserializer=answer.FromString)(request, timeout=60)


class ReflectionTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="hm-")
        self.addCleanup(holder.cleanup)
        self.dir = pathlib.Path(holder.name)
        (self.dir / "model").mkdir()
        (self.dir / "model" / "config.json").write_text(json.dumps(TINY_GPT2))
        (self.dir / "data.txt").write_bytes(bytes(range(32, 96)) * 64)
        self.socket = self.dir / "c.sock"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HARMONY_")}
        self.log = open(self.dir / "log", "w+")
        self.addCleanup(self.log.close)
        self.process = self.start(environment)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.environment = environment
        self.channel = grpc.insecure_channel(f"unix:{self.socket}")
        self.addCleanup(self.channel.close)
        grpc.channel_ready_future(self.channel).result(timeout=60)

    def start(self, environment):
        return subprocess.Popen(
            [BUILD / "bin" / "harmony-coordinator", "--socket", self.socket, "--state-dir", self.dir / "state",
             "--devices", "sim*2:mem=16MiB", "--host-memory", "64MiB"], stderr=self.log, env=environment)

    def job(self, **changes):
        job = {"model_name_or_path": "model", "data": {"path": "data.txt", "format": "text-bytes"},
               "sequence_length": 32, "global_batch_size": 4, "micro_batch_size": 2, "max_steps": 3,
               "output_dir": "out"}
        return {"job_yaml": json.dumps(job | changes), "job_path": str(self.dir / "job.yaml")}

    def test_services_are_listed(self):
        services = set(ProtoReflectionDescriptorDatabase(self.channel).get_services())
        self.assertLessEqual({"harmony.v1.Coordinator", "grpc.health.v1.Health",
                              "grpc.reflection.v1alpha.ServerReflection"}, services)
        self.assertNotIn("harmony.v1.Attach", services, "processes attach on a socket of their own")

    def test_health(self):
        stub = health_pb2_grpc.HealthStub(self.channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)

    def test_jobs_are_listed_submitted_planned_and_cancelled(self):
        coordinator = Reflected(self.channel, "harmony.v1.Coordinator")
        self.assertEqual(len(coordinator.call("List").jobs), 0)
        plan = coordinator.call("Plan", **self.job())
        self.assertIn("microbatches", plan.text)
        json.loads(plan.json)
        job_id = coordinator.call("Submit", **self.job()).job_id
        self.assertEqual(job_id, coordinator.call("Submit", **self.job()).job_id, "the same run is queued once")
        jobs = coordinator.call("List").jobs
        self.assertEqual([j.job_id for j in jobs], [job_id])
        self.assertEqual(jobs[0].max_steps, 3)
        self.assertTrue((self.dir / "out" / "run.json").exists())
        coordinator.call("Cancel", job_id=job_id)
        states = [progress.job.state for progress in coordinator.call("Watch", job_id=job_id)]
        cancelled = coordinator.pool.FindEnumTypeByName("harmony.v1.JobState").values_by_name["JOB_STATE_CANCELLED"]
        self.assertEqual(states[-1], cancelled.number)
        self.assertGreater(len(coordinator.call("GetLog", job_id=job_id).lines), 0)

    def test_errors_come_whole_and_leave_nothing(self):
        coordinator = Reflected(self.channel, "harmony.v1.Coordinator")
        for changes, code, word in (({"learning_rte": 1}, grpc.StatusCode.INVALID_ARGUMENT, "learning_rate"),
                                    ({"model_name_or_path": "nowhere"}, grpc.StatusCode.NOT_FOUND, "nowhere"),
                                    ({"global_batch_size": 5}, grpc.StatusCode.INVALID_ARGUMENT, "micro_batch_size")):
            with self.subTest(word), self.assertRaises(grpc.RpcError) as caught:
                coordinator.call("Submit", **self.job(**changes))
            self.assertEqual(caught.exception.code(), code)
            self.assertIn(word, caught.exception.details())
        self.assertEqual(len(coordinator.call("List").jobs), 0)
        self.assertFalse((self.dir / "out").exists())
        with self.assertRaises(grpc.RpcError) as caught:
            coordinator.call("Get", job_id="job-9")
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_who_floods_is_refused_then_cut_off_and_served_again_later(self):
        call = self.channel.unary_unary("/harmony.v1.Coordinator/List")
        codes = []
        while grpc.StatusCode.UNAVAILABLE not in codes:
            self.assertLess(len(codes), 100000)
            try:
                call(b"", timeout=60)
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
                if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self.assertIn("too many calls from", error.details())
        self.assertEqual(set(codes), {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE})
        self.log.seek(0)
        self.assertIn("event=cut_off", self.log.read())
        call(b"", timeout=60, wait_for_ready=True)

    def test_a_second_coordinator_is_refused_and_sigterm_removes_the_socket(self):
        second = self.start(self.environment)
        self.assertEqual(second.wait(60), 2)
        self.log.seek(0)
        self.assertIn(str(self.socket), self.log.read())
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(60), 0)
        self.assertFalse(self.socket.exists())

    def test_jobs_survive_a_kill(self):
        coordinator = Reflected(self.channel, "harmony.v1.Coordinator")
        job_id = coordinator.call("Submit", **self.job()).job_id
        self.process.kill()
        self.process.wait()
        self.process = self.start(self.environment)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        deadline = time.monotonic() + 60
        while True:
            with grpc.insecure_channel(f"unix:{self.socket}") as channel:
                try:
                    jobs = Reflected(channel, "harmony.v1.Coordinator").call("List").jobs
                    break
                except (grpc.RpcError, KeyError):
                    self.assertLess(time.monotonic(), deadline, "the coordinator did not come back")
        self.assertEqual([j.job_id for j in jobs], [job_id])


if __name__ == "__main__":
    unittest.main(verbosity=2)
