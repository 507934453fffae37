"""Hold the YAML documents on standard input against the schemas of installed packages; print what is wrong as JSON."""

import json
import re
import sys
import typing

import yaml


def main() -> None:
    problems: list[str] = []
    for document in yaml.safe_load_all(sys.stdin):
        where = f"{document.get('apiVersion')} {document.get('kind')}"
        group = str(document.get("apiVersion")).partition("/")[0]
        check = check_model if group in ("trainer.kubeflow.org", "jobset.x-k8s.io") else check_schema
        problems += [f"{where}: {problem}" for problem in check(document)]
    json.dump(problems, sys.stdout)


def check_schema(document: dict) -> list[str]:
    """Kubernetes' own kinds: JSON schemas, strictly."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except Exception as error:  # noqa: BLE001 - whatever the package raises
        return [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    return []


def check_model(document: dict) -> list[str]:
    """Kinds of Kubeflow Trainer and JobSet: their pydantic models, and no field that those drop."""
    from kubeflow_trainer_api import models

    prefix = {"trainer.kubeflow.org": "TrainerV1alpha1", "jobset.x-k8s.io": "JobsetV1alpha2"}
    model = getattr(models, prefix[document["apiVersion"].partition("/")[0]] + document["kind"])
    document = with_quantities(document, models.IoK8sApimachineryPkgApiResourceQuantity)
    try:
        parsed = model.model_validate(document)
    except Exception as error:  # noqa: BLE001 - whatever the package raises
        return [re.sub(r"\s+", " ", str(error))]
    return list(dropped(document, parsed, ""))


def with_quantities(value: typing.Any, quantity: type) -> typing.Any:
    """Return a document with its amounts as the models want them: in a class around the text or number."""
    if isinstance(value, list):
        return [with_quantities(entry, quantity) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name: quantity(actual_instance=amount) for name, amount in entry.items()}
        if key in ("requests", "limits")
        else with_quantities(entry, quantity)
        for key, entry in value.items()
    }


def dropped(given: typing.Any, parsed: typing.Any, path: str) -> typing.Iterator[str]:
    """Yield the fields that a model has not taken over."""
    if isinstance(given, dict) and hasattr(type(parsed), "model_fields"):
        names = {field.alias or name: name for name, field in type(parsed).model_fields.items()}
        for key, value in given.items():
            if key not in names:
                yield f"{path}/{key} is not known to {type(parsed).__name__}"
            else:
                yield from dropped(value, getattr(parsed, names[key]), f"{path}/{key}")
    elif isinstance(given, dict) and isinstance(parsed, dict):
        for key, value in given.items():
            yield from dropped(value, parsed.get(key), f"{path}/{key}")
    elif isinstance(given, list) and isinstance(parsed, list):
        for number, (value, other) in enumerate(zip(given, parsed, strict=True)):
            yield from dropped(value, other, f"{path}/{number}")


if __name__ == "__main__":
    main()
