"""The manifests and the Dockerfile are what docs/kubernetes.md says: no cluster is needed to know that."""

import contextlib
import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml
from horovod.runner.util import remote

from ctr_trainer import __version__, cli
from ctr_trainer.commands import serve, train
from tests import ports
from tests.hosts import machines
from tests.parallel import launch

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
    """Returns the pod template of each role."""
    (job,) = _documents("mpijob.yaml")
    return {role: replicas["template"] for role, replicas in job["spec"]["mpiReplicaSpecs"].items()}


def _container(template):
    (container,) = template["spec"]["containers"]
    return container


def _line(container):
    return [*container["command"], *container["args"]]


def _train_flags():
    """Returns the flags of `train` in each manifest."""
    alone = _line(_container(_of_kind("Job")["spec"]["template"]))
    launcher = _line(_container(_mpi_pods()["Launcher"]))
    return {"jobs.yaml": alone[alone.index("--") + 1 :], "mpijob.yaml": launcher[launcher.index("./run.sh") + 1 :]}


def _parsed(name, command, arguments):
    """Returns the values by flag."""
    return cli._parse(name, command, arguments)[0]


def test_kubernetes_takes_each_document_of_the_manifest_without_operator():
    documents = _documents("jobs.yaml")
    kinds = ["PersistentVolumeClaim", "Service", "StatefulSet", "Job", "NetworkPolicy", "NetworkPolicy"]
    assert [each["kind"] for each in documents] == kinds
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_operator_takes_the_mpi_job_and_kubernetes_its_pods():
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


def test_shards_serve_at_the_services_ports_with_flags_that_exist():
    shard = _container(_of_kind("StatefulSet")["spec"]["template"])
    assert shard["command"] == ["python", "-m", "ctr_trainer", "serve"]
    given = _parsed("serve", serve, shard["args"])
    assert given["bind"] == f"0.0.0.0:{PORTS['rows']}"
    assert given["metrics_port"] == PORTS["metrics"]
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
    assert given["embedding_service"] == ",".join(f"{each}.{own}:{PORTS['rows']}" for each in names)
    # A shard writes snapshots below its own --data_dir only, and each pod sees the same files.
    data_dir = _parsed("serve", serve, _container(shards["spec"]["template"])["args"])["data_dir"]
    assert given["model_dir"].startswith(f"{data_dir}/")


def test_every_pod_that_reads_or_writes_has_the_volume_and_the_secret():
    pods = [_of_kind("StatefulSet")["spec"]["template"], _of_kind("Job")["spec"]["template"], *_mpi_pods().values()]
    claim = _of_kind("PersistentVolumeClaim")["metadata"]["name"]
    for pod in pods:
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim
        mounts = {each["name"]: each["mountPath"] for each in _container(pod)["volumeMounts"]}
        ssh = {"ssh": "/etc/ctr_trainer_ssh"} if "ssh" in volumes else {}
        assert mounts == {"shared": "/shared", "token": "/etc/ctr_trainer", **ssh}
        for name in ("token", *ssh):
            assert f"secret generic {volumes[name]['secret']['secretName']} " in PAGE
            assert volumes[name]["secret"]["defaultMode"] == 0o440  # The files belong to root and the pod's group.
        assert _container(pod)["image"] == f"ctr_trainer:{__version__}"
        assert f"-t ctr_trainer:{__version__} ." in PAGE and f"-t ctr_trainer:{__version__} ." in DOCKERFILE.read_text()


def test_no_pod_runs_as_root_or_may_become_it():
    pods = [_of_kind("StatefulSet")["spec"]["template"], _of_kind("Job")["spec"]["template"], *_mpi_pods().values()]
    for pod in pods:
        context = pod["spec"]["securityContext"]
        user = re.search(r"useradd .*--uid (\d+) .*trainer", DOCKERFILE.read_text())[1]
        assert context["runAsNonRoot"] and context["runAsUser"] == context["fsGroup"] == int(user)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["spec"]["automountServiceAccountToken"]
        assert _container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert [text for instruction, text in _instructions() if instruction == "USER"][-1] == "trainer"


def test_only_workers_reach_shards_and_workers():
    policies = {each["metadata"]["name"]: each["spec"] for each in _documents("jobs.yaml") if "Policy" in each["kind"]}
    workers = {"podSelector": {"matchLabels": {"app": "ctr-trainer"}}}
    shards, own = policies["ctr-trainer-shards"], policies["ctr-trainer-workers"]
    assert shards["podSelector"]["matchLabels"] == _of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert shards["ingress"][0] == {"from": [workers], "ports": [{"port": "rows"}]}
    assert shards["ingress"][1]["ports"] == [{"port": "metrics"}] and len(shards["ingress"]) == 2
    assert own == {**workers, "policyTypes": ["Ingress"], "ingress": [{"from": [workers]}]}
    for pod in (_of_kind("Job")["spec"]["template"], *_mpi_pods().values()):
        assert pod["metadata"]["labels"]["app"] == "ctr-trainer"


def _ssh_of_the_image(*arguments):
    """Returns the command of the image's ssh, as horovodrun calls it, with the settings of the image."""
    settings = ["-F", str(DOCKERFILE.parent / "ssh_config")]
    horovod = shlex.split(remote.SSH_COMMAND_PREFIX)[1:]
    return [str(DOCKERFILE.parent / "ssh"), *settings, *horovod, *arguments]


@pytest.fixture
def sshd(tmp_path):
    """A running ssh server with the settings of the image and keys of its own; its port."""
    if not (shutil.which("sshd") or os.path.exists("/usr/sbin/sshd")):
        pytest.skip("no sshd: apt-get install openssh-server")
    for name in ("host_key", "other_key", "client_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", tmp_path / name], check=True)
    (tmp_path / "authorized_keys").write_bytes((tmp_path / "client_key.pub").read_bytes())
    port = ports.free_port()
    own = [f"HostKey={tmp_path / 'host_key'}", f"AuthorizedKeysFile={tmp_path / 'authorized_keys'}", f"Port={port}"]
    own += ["PermitRootLogin=prohibit-password", "ListenAddress=127.0.0.1"]
    options = [word for each in own for word in ("-o", each)]
    command = ["/usr/sbin/sshd", "-De", "-f", DOCKERFILE.parent / "sshd_config", *options]
    with contextlib.ExitStack() as stack:
        if os.getuid() == 0:
            stack.enter_context(machines.directory_in_use(machines.SSHD_DIRECTORY))
        with open(tmp_path / "log", "w") as log:
            process = subprocess.Popen(command, stderr=log)
        stack.callback(process.wait, 60)
        stack.callback(process.kill)
        launch.wait_until(
            lambda: "listening" in (tmp_path / "log").read_text() or process.poll() is not None, "the server", 60
        )
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield port


def test_ssh_of_the_image_accepts_only_the_mounted_key(sshd, tmp_path):
    known = tmp_path / "known_hosts"
    own = ["-p", str(sshd), "-i", str(tmp_path / "client_key"), "-o", f"GlobalKnownHostsFile={known}"]
    command = _ssh_of_the_image(*own, "127.0.0.1", "echo", "reached")

    def asked(key):
        known.write_text(f"ctr-trainer {(tmp_path / f'{key}.pub').read_text()}")
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    done = asked("host_key")
    assert (done.returncode, done.stdout) == (0, "reached\n"), done.stderr + (tmp_path / "log").read_text()
    done = asked("other_key")
    assert done.returncode == 255 and done.stdout == "" and "Host key verification failed" in done.stderr


def test_the_image_looks_for_its_keys_where_the_secret_is_mounted():
    done = subprocess.run(_ssh_of_the_image("-G", "worker"), capture_output=True, text=True, timeout=60)
    assert {"port 2222", "hostkeyalias ctr-trainer", "stricthostkeychecking true"} <= set(done.stdout.splitlines())
    (mount,) = [each for each in _container(_mpi_pods()["Worker"])["volumeMounts"] if each["name"] == "ssh"]
    assert f"globalknownhostsfile {mount['mountPath']}/known_hosts" in done.stdout.splitlines()
    server = (DOCKERFILE.parent / "sshd_config").read_text()
    assert f"HostKey {mount['mountPath']}/host_key\n" in server
    (job,) = _documents("mpijob.yaml")
    assert job["spec"]["sshAuthMountPath"] == "/home/trainer/.ssh" and "AuthorizedKeysFile .ssh/" in server
    worker = _container(_mpi_pods()["Worker"])
    assert _line(worker) == ["/usr/sbin/sshd", "-De", "-f", "/opt/ctr_trainer/configs/docker/sshd_config"]


def test_a_pod_that_goes_has_longer_than_its_workers_have_to_save():
    (worker,) = _mpi_pods()["Worker"]["spec"]["containers"]
    grace = _parsed("train", train, _train_flags()["mpijob.yaml"])["grace_secs"]
    assert _mpi_pods()["Worker"]["spec"]["terminationGracePeriodSeconds"] > grace
    script = worker["lifecycle"]["preStop"]["exec"]["command"][-1]
    pattern = re.search(r"^workers='(.*)'$", script, re.MULTILINE)[1]
    assert re.match(pattern, "/opt/ctr_trainer/.venv/bin/python -m ctr_trainer train --model_dir=/shared/model")
    assert not re.match(pattern, f"sh -c {script}")


def _instructions():
    """Returns a list of (instruction, text) for the Dockerfile."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in "\n".join(lines).replace("\\\n", " ").splitlines()]


def test_the_dockerfile_copies_what_there_is_and_installs_as_the_makefile_does():
    copied, ran = [], []
    for instruction, text in _instructions():
        if instruction == "COPY":
            *sources, _ = [word for word in shlex.split(text) if not word.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), text
            # `make install` comes once all that it reads is there.
            copied += sources
        elif instruction == "RUN" and "make install" in text:
            ran = list(copied)
    assert {"Makefile", "README.md", "pyproject.toml", "setup.py", "constraints.txt", "scripts", "ctr_trainer"} <= set(
        ran
    )
    assert "run.sh" in copied
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == {each.split("/")[0] for each in copied}
    arguments = {text.partition("=")[0] for instruction, text in _instructions() if instruction == "ARG"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(name in makefile for name in arguments & {"TF", "HOROVOD_GPU_OPERATIONS"})
    assert {"TF", "HOROVOD_GPU_OPERATIONS"} <= arguments
