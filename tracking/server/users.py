"""Users of a server and what they may do: an admin, writers that measure, readers that look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests

from bench.errors import UserError
from tracking.server.settings import ServerSettings, weakness

_WORKSPACE = "default"
#: Role -> what MLflow allows. A member of the workspace may create experiments; EDIT
#: is writing without deleting. What no grant names is refused.
ROLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "writer": (("workspace", "USE"), ("experiment", "EDIT")),
    "reader": (("experiment", "READ"),),
}


class Users:
    """The users of a running server, as its admin sees them; every method may raise UserError."""

    def __init__(self, settings: ServerSettings) -> None:
        self._url = settings.url
        self._session = requests.Session()
        self._session.trust_env = False  # no .netrc, no proxy: it is this machine
        self._session.auth = (settings.admin, settings.admin_password)

    def add(self, name: str, password: str, role: str) -> None:
        """Make a user with a role; one that exists gets this password and this role instead."""
        if why := weakness(password):
            raise UserError(f"the password of {name} {why}")
        known = name in self._listed()
        method, what = ("PATCH", "update-password") if known else ("POST", "create")
        self._call(method, f"2.0/mlflow/users/{what}", username=name, password=password)
        self.take_role(name)
        self._call("POST", "3.0/mlflow/roles/assign", username=name, role_id=self._role(role))

    def take_role(self, name: str) -> None:
        """Leave a user his password and no right at all."""
        for held in self._roles_of(name):
            self._call("DELETE", "3.0/mlflow/roles/unassign", username=name, role_id=held["id"])

    def remove(self, name: str) -> None:
        """Take a user away; what he wrote stays."""
        if name not in self._listed():
            raise UserError(f"no user {name!r}: `users list` shows all")
        self._call("DELETE", "2.0/mlflow/users/delete", username=name)

    def all(self) -> dict[str, str]:
        """Return each user's name and what he is: admin, writer, reader or nothing."""
        return {
            name: "admin" if is_admin else self._role_of(name)
            for name, is_admin in self._listed().items()
        }

    def _listed(self) -> dict[str, bool]:
        """Every user, and whether he is an admin."""
        found = self._call("GET", "2.0/mlflow/users/list")["users"]
        return {user["username"]: user["is_admin"] for user in found}

    def _roles_of(self, name: str) -> list[dict[str, Any]]:
        found = self._call("GET", "3.0/mlflow/users/roles/list", username=name)["roles"]
        return [role for role in found if role["name"] in ROLES]

    def _role_of(self, name: str) -> str:
        return ", ".join(sorted(role["name"] for role in self._roles_of(name))) or "nothing"

    def _role(self, name: str) -> int:
        """Return the id of one of our roles, made at its first use."""
        roles = self._call("GET", "3.0/mlflow/roles/list", workspace=_WORKSPACE)["roles"]
        for role in roles:
            if role["name"] == name:
                return int(role["id"])
        made = self._call("POST", "3.0/mlflow/roles/create", workspace=_WORKSPACE, name=name)
        for kind, permission in ROLES[name]:
            self._call(
                *("POST", "3.0/mlflow/roles/permissions/add"),
                role_id=made["role"]["id"],
                resource_type=kind,
                resource_pattern="*",
                permission=permission,
            )
        return int(made["role"]["id"])

    def _call(self, method: str, path: str, **fields: Any) -> dict[str, Any]:
        query, body = (fields, None) if method == "GET" else (None, fields)
        try:
            answer = self._session.request(
                method, f"{self._url}/api/{path}", params=query, json=body, timeout=30
            )
        except requests.RequestException as error:
            raise UserError(f"{self._url} does not answer: is the server running?") from error
        if answer.status_code == 401:
            raise UserError(
                "the server refuses the admin's password of the settings: put the current one there"
            )
        if not answer.ok:
            why = answer.text
            if answer.headers.get("content-type", "").startswith("application/json"):
                why = str(answer.json().get("message", why))
            raise UserError(f"the server refuses that: {why.splitlines()[0][:300]}")
        return dict(answer.json()) if answer.content else {}
