"""The schema of our JobSet manifests, with what a person is likely to add by hand.

`python -m sweeps.launchers.kubernetes.jobset_schema FILE...` checks files. Sources: JobSet v1alpha2
(custom resource of jobset.x-k8s.io, 0.7 and later), Kubernetes batch/v1 and core/v1.
"""

import pathlib
import sys

from sweeps.launchers.manifest_schema import (
    COUNT,
    EXIT_CODES,
    FLAG,
    NAME,
    TEXT,
    TEXTS,
    Schema,
    check,
    items,
    keys,
    one_of,
)

_QUANTITIES: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[kMGTP]i?|Ki)?$"},
}
# RFC 1035: the names of JobSets become names of services.
_DNS: Schema = {"type": "string", "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
_LABELS: Schema = {
    "type": "object",
    "propertyNames": {
        "pattern": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    },
    "additionalProperties": {
        "type": "string",
        "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "maxLength": 63,
    },
}
_METADATA = keys(labels=_LABELS, annotations=TEXTS)

_ENV_SOURCE = keys(
    fieldRef=keys("fieldPath", fieldPath=NAME, apiVersion=TEXT),
    secretKeyRef=keys("name key", name=NAME, key=NAME, optional=FLAG),
    configMapKeyRef=keys("name key", name=NAME, key=NAME, optional=FLAG),
)
_CONTAINER = keys(
    "name image",
    name=_DNS,
    image=NAME,
    imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
    command=items(TEXT, 1),
    args=items(TEXT),
    workingDir=TEXT,
    env=items(keys("name", name=NAME, value=TEXT, valueFrom=_ENV_SOURCE)),
    ports=items(
        keys("containerPort", containerPort=COUNT, name=TEXT, protocol=one_of("TCP", "UDP"))
    ),
    resources=keys(requests=_QUANTITIES, limits=_QUANTITIES),
    volumeMounts=items(
        keys("name mountPath", name=_DNS, mountPath=NAME, subPath=TEXT, readOnly=FLAG)
    ),
    securityContext=keys(runAsUser=COUNT, runAsGroup=COUNT, runAsNonRoot=FLAG, privileged=FLAG),
    terminationMessagePath=TEXT,
    terminationMessagePolicy=one_of("File", "FallbackToLogsOnError"),
)
_VOLUME = keys(
    "name",
    name=_DNS,
    persistentVolumeClaim=keys("claimName", claimName=NAME, readOnly=FLAG),
    csi=keys("driver", driver=NAME, readOnly=FLAG, volumeAttributes=TEXTS, fsType=TEXT),
    emptyDir=keys(medium=one_of("", "Memory"), sizeLimit=TEXT),
    hostPath=keys("path", path=NAME, type=TEXT),
    nfs=keys("server path", server=NAME, path=NAME, readOnly=FLAG),
    secret=keys(secretName=NAME, optional=FLAG, defaultMode=COUNT),
    configMap=keys(name=NAME, optional=FLAG, defaultMode=COUNT),
)
_TOLERATION = keys(
    key=TEXT,
    operator=one_of("Exists", "Equal"),
    value=TEXT,
    effect=one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
    tolerationSeconds=COUNT,
)
_EXPRESSION = keys(
    "key operator",
    key=NAME,
    operator=one_of("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
    values=items(TEXT),
)
_NODE_AFFINITY = keys(
    requiredDuringSchedulingIgnoredDuringExecution=keys(
        "nodeSelectorTerms",
        nodeSelectorTerms=items(
            keys(matchExpressions=items(_EXPRESSION), matchFields=items(_EXPRESSION)), 1
        ),
    )
)
_POD_SPEC = keys(
    "containers",
    containers=items(_CONTAINER, 1),
    initContainers=items(_CONTAINER),
    volumes=items(_VOLUME),
    restartPolicy=one_of("Never", "OnFailure"),
    terminationGracePeriodSeconds=COUNT,
    activeDeadlineSeconds=COUNT,
    nodeSelector=_LABELS,
    affinity=keys(nodeAffinity=_NODE_AFFINITY),
    tolerations=items(_TOLERATION),
    priorityClassName=TEXT,
    schedulerName=TEXT,
    serviceAccountName=TEXT,
    automountServiceAccountToken=FLAG,
    imagePullSecrets=items(keys("name", name=NAME)),
    runtimeClassName=TEXT,
    hostNetwork=FLAG,
    hostIPC=FLAG,
    dnsPolicy=TEXT,
    subdomain=TEXT,
    enableServiceLinks=FLAG,
    securityContext=keys(
        runAsUser=COUNT,
        runAsGroup=COUNT,
        runAsNonRoot=FLAG,
        fsGroup=COUNT,
        fsGroupChangePolicy=one_of("OnRootMismatch", "Always"),
        supplementalGroups=items(COUNT),
    ),
)
_POD_FAILURE_RULE = keys(
    "action",
    action=one_of("FailJob", "FailIndex", "Ignore", "Count"),
    onExitCodes=keys(
        "operator values",
        containerName=_DNS,
        operator=one_of("In", "NotIn"),
        values=EXIT_CODES,
    ),
    onPodConditions=items(
        keys("type status", type=NAME, status=one_of("True", "False", "Unknown")), 1
    ),
)
JOB_SPEC = keys(
    "template",
    template=keys("spec", metadata=_METADATA, spec=_POD_SPEC),
    parallelism=COUNT,
    completions=COUNT,
    completionMode=one_of("Indexed", "NonIndexed"),
    backoffLimit=COUNT,
    backoffLimitPerIndex=COUNT,
    maxFailedIndexes=COUNT,
    activeDeadlineSeconds=COUNT,
    ttlSecondsAfterFinished=COUNT,
    suspend=FLAG,
    podReplacementPolicy=one_of("Failed", "TerminatingOrFailed"),
    podFailurePolicy=keys("rules", rules=items(_POD_FAILURE_RULE, 1)),
)
_JOBSET_FAILURE_RULE = keys(
    "name action",
    name={"type": "string", "pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action=one_of("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
    onJobFailureReasons=items(
        one_of(
            "BackoffLimitExceeded",
            "DeadlineExceeded",
            "FailedIndexes",
            "MaxFailedIndexesExceeded",
            "PodFailurePolicy",
        )
    ),
    targetReplicatedJobs=items(_DNS),
)
JOBSET_SPEC = keys(
    "replicatedJobs",
    replicatedJobs=items(
        keys(
            "name template",
            name=_DNS,
            replicas=COUNT,
            template=keys("spec", metadata=_METADATA, spec=JOB_SPEC),
        ),
        1,
    ),
    network=keys(enableDNSHostnames=FLAG, subdomain=_DNS, publishNotReadyAddresses=FLAG),
    successPolicy=keys("operator", operator=one_of("All", "Any"), targetReplicatedJobs=items(_DNS)),
    failurePolicy=keys(
        maxRestarts=COUNT,
        restartStrategy=one_of("Recreate", "BlockingRecreate"),
        rules=items(_JOBSET_FAILURE_RULE),
    ),
    suspend=FLAG,
    ttlSecondsAfterFinished=COUNT,
)
JOBSET = keys(
    "apiVersion kind metadata spec",
    apiVersion=one_of("jobset.x-k8s.io/v1alpha2"),
    kind=one_of("JobSet"),
    metadata=keys("name", name=_DNS, namespace=_DNS, labels=_LABELS, annotations=TEXTS),
    spec=JOBSET_SPEC,
)


def main(files: list[str]) -> int:
    """Checks JobSet manifests, YAML or JSON; returns 1 where one is not valid."""
    import yaml

    for file in files:
        try:
            check(yaml.safe_load(pathlib.Path(file).read_text()), JOBSET, file)
        except (ValueError, OSError, yaml.YAMLError) as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{file}: valid")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
