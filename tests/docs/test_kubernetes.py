"""The manifests and the Dockerfile are what docs/kubernetes.md says: no cluster is needed to know that."""

import copy
import functools
import operator
import pathlib
import re
import shlex

import jsonschema
import kubernetes_validate
import pytest
import yaml

from ctr_trainer import cli, flags
from ctr_trainer.commands import serve, train

ROOT = pathlib.Path(__file__).parents[2]
MANIFESTS = ROOT / "configs" / "kubernetes"
DOCKERFILE = ROOT / "configs" / "docker" / "Dockerfile"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
# A version that each supported cluster understands.
VERSION = "1.31"
PORTS = {"rows": 7700, "metrics": 9100}


def _fields(required=(), **kinds):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": kinds}


_TEXT, _COUNT, _FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_REPLICAS = _fields(
    replicas=_COUNT,
    restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
    template={"type": "object", "required": ["spec"]},  # Of pods, which `kubernetes_validate` knows.
)
# All fields of the operator's custom resource, whether they are used or not: pkg/apis/kubeflow/v2beta1/types.go of
# https://github.com/kubeflow/mpi-operator at 013fa15, and of common.ReplicaSpec.
MPI_JOB = _fields(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "kubeflow.org/v2beta1"},
    kind={"const": "MPIJob"},
    metadata={"type": "object", "required": ["name"]},
    spec=_fields(
        ("mpiReplicaSpecs",),
        slotsPerWorker=_COUNT,
        runPolicy=_fields(
            cleanPodPolicy={"enum": ["All", "Running", "None"]},
            ttlSecondsAfterFinished=_COUNT,
            activeDeadlineSeconds=_COUNT,
            backoffLimit=_COUNT,
            schedulingPolicy={"type": "object"},
            suspend=_FLAG,
        ),
        mpiReplicaSpecs=_fields(("Launcher",), Launcher=_REPLICAS, Worker=_REPLICAS),
        sshAuthMountPath=_TEXT,
        waitForWorkers=_FLAG,
        mpiImplementation={"enum": ["OpenMPI", "Intel"]},
    ),
)


@functools.cache
def _documents(name):
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def _of_kind(kind):
    (found,) = [each for each in _documents("jobs.yaml") if each["kind"] == kind]
    return found


def _mpi_pods():
    """-> by role, the template of its pods."""
    (job,) = _documents("mpijob.yaml")
    return {role: replicas["template"] for role, replicas in job["spec"]["mpiReplicaSpecs"].items()}


def _container(template):
    (container,) = template["spec"]["containers"]
    return container


def _line(container):
    return [*container["command"], *container["args"]]


def _train_flags():
    """-> by manifest, the flags of `train` in it."""
    alone = _line(_container(_of_kind("Job")["spec"]["template"]))
    launcher = _line(_container(_mpi_pods()["Launcher"]))
    return {
        "jobs.yaml": alone[alone.index("--") + 1 :],
        "mpijob.yaml": launcher[launcher.index("./run.sh") + 1 :],
    }


def _parsed(name, command, arguments):
    values = flags.define(command.GROUPS)
    cli._parse(name, command, arguments)
    return values([name, *arguments]) and values


def test_each_document_of_the_manifest_without_an_operator_is_what_kubernetes_takes():
    documents = _documents("jobs.yaml")
    assert [each["kind"] for each in documents] == ["PersistentVolumeClaim", "Service", "StatefulSet", "Job"]
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_validator_refuses_a_field_that_kubernetes_does_not_know():
    job = {**_of_kind("Job"), "spec": {**_of_kind("Job")["spec"], "backOffLimit": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSION, strict=True)


def test_the_mpi_job_is_what_the_operator_takes_and_its_pods_are_what_kubernetes_takes():
    (job,) = _documents("mpijob.yaml")
    jsonschema.validate(job, MPI_JOB)
    for template in _mpi_pods().values():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, VERSION, strict=True)


def test_the_mpi_job_starts_a_worker_for_each_slot_of_the_operators_host_file():
    (job,) = _documents("mpijob.yaml")
    slots = job["spec"]["slotsPerWorker"] * job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    command = _container(_mpi_pods()["Launcher"])["command"]
    assert command[command.index("-np") + 1] == str(slots)
    assert command[command.index("--hostfile") + 1] == "/etc/mpi/hostfile"  # Where the operator mounts it.


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("runPolicy", "backOffLimit"), 3),
        (("runPolicy", "cleanPodPolicy"), "Always"),
        (("slotsPerWorker",), "2"),
        (("mpiReplicaSpecs", "Workers"), {"replicas": 2}),
        (("mpiReplicaSpecs", "Worker", "restartPolicy"), "onFailure"),
    ],
)
def test_an_mpi_job_with_a_field_or_value_that_the_operator_does_not_know_is_noticed(path, value):
    (job,) = copy.deepcopy(_documents("mpijob.yaml"))
    *parents, last = path
    functools.reduce(operator.getitem, parents, job["spec"])[last] = value
    with pytest.raises(jsonschema.ValidationError, match=last):
        jsonschema.validate(job, MPI_JOB)


def test_shards_serve_at_the_ports_that_the_service_has_and_with_flags_that_there_are():
    shard = _container(_of_kind("StatefulSet")["spec"]["template"])
    assert shard["command"] == ["python", "-m", "ctr_trainer", "serve"]
    given = _parsed("serve", serve, shard["args"])
    assert given["bind"].value == f"0.0.0.0:{PORTS['rows']}"
    assert given["metrics_port"].value == PORTS["metrics"]
    assert {each["name"]: each["containerPort"] for each in shard["ports"]} == PORTS
    assert {each["name"]: each["port"] for each in _of_kind("Service")["spec"]["ports"]} == PORTS
    probes = [shard[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    assert {next(iter(each[how].values())) for each in probes for how in each if how == "tcpSocket"} == {"rows"}
    assert {each["httpGet"]["port"] for each in probes if "httpGet" in each} == {"metrics"}


@pytest.mark.parametrize("name", ["jobs.yaml", "mpijob.yaml"])
def test_workers_train_with_flags_that_there_are_on_all_shards_of_the_set(name):
    given = _parsed("train", train, _train_flags()[name])
    shards = _of_kind("StatefulSet")
    own = shards["spec"]["serviceName"]
    assert own == _of_kind("Service")["metadata"]["name"]
    names = [f"{shards['metadata']['name']}-{number}" for number in range(shards["spec"]["replicas"])]
    assert given["embedding_service"].value == ",".join(f"{each}.{own}:{PORTS['rows']}" for each in names)
    # A shard writes snapshots below its own --data_dir only, and each pod sees the same files.
    data_dir = _parsed("serve", serve, _container(shards["spec"]["template"])["args"])["data_dir"].value
    assert given["model_dir"].value.startswith(f"{data_dir}/")


def test_every_pod_that_reads_or_writes_has_the_volume_and_the_secret():
    pods = [_of_kind("StatefulSet")["spec"]["template"], _of_kind("Job")["spec"]["template"], *_mpi_pods().values()]
    claim = _of_kind("PersistentVolumeClaim")["metadata"]["name"]
    for pod in pods:
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim
        mounts = {each["name"]: each["mountPath"] for each in _container(pod)["volumeMounts"]}
        assert mounts == {"shared": "/shared", "token": "/etc/ctr_trainer"}
        assert f"secret generic {volumes['token']['secret']['secretName']} " in PAGE
        assert _container(pod)["image"] == "ctr_trainer"


def test_a_pod_that_goes_has_longer_than_its_workers_have_to_save():
    (worker,) = _mpi_pods()["Worker"]["spec"]["containers"]
    grace = _parsed("train", train, _train_flags()["mpijob.yaml"])["grace_secs"].value
    assert _mpi_pods()["Worker"]["spec"]["terminationGracePeriodSeconds"] > grace
    script = worker["lifecycle"]["preStop"]["exec"]["command"][-1]
    pattern = re.search(r"^workers='(.*)'$", script, re.MULTILINE)[1]
    assert re.match(pattern, "/opt/ctr_trainer/.venv/bin/python -m ctr_trainer train --model_dir=/shared/model")
    assert not re.match(pattern, f"sh -c {script}")


def _instructions():
    """-> list of (instruction, its text) of the Dockerfile."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in "\n".join(lines).replace("\\\n", " ").splitlines()]


def test_the_dockerfile_copies_what_there_is_and_installs_as_the_makefile_does():
    copied, ran = [], []
    for instruction, text in _instructions():
        if instruction == "COPY":
            *sources, _ = shlex.split(text)
            assert all((ROOT / source).exists() for source in sources), text
            # `make install` comes once all that it reads is there.
            copied += sources
        elif instruction == "RUN" and "make install" in text:
            ran = list(copied)
    assert {"Makefile", "README.md", "setup.py", "scripts", "ctr_trainer"} <= set(ran)
    assert "run.sh" in copied
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)
    arguments = {text.partition("=")[0] for instruction, text in _instructions() if instruction == "ARG"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(name in makefile for name in arguments & {"TF", "HOROVOD_GPU_OPERATIONS"})
    assert {"TF", "HOROVOD_GPU_OPERATIONS"} <= arguments


def test_the_image_has_the_programs_that_the_manifests_run():
    text = DOCKERFILE.read_text()
    for package in ("openssh-server", "openssh-client", "procps", "g++", "make", "cmake"):
        assert re.search(rf"\s{re.escape(package)}\s", text), package
