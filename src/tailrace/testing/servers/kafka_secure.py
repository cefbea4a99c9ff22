"""A Kafka broker with listeners that want TLS, certificates or a login, beside the plain one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.testing.servers.kafka import KafkaBroker
from tailrace.testing.servers.process import free_port

_MODULE = "org.apache.kafka.common.security"
_SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@dataclass(frozen=True)
class Login:
    """Files in PEM of the broker (its key and certificate in one) and of who signed its clients' certificates, and the
    one user there is."""

    keys: Path
    authority: Path
    user: str
    password: str


class SecureKafkaBroker(KafkaBroker):
    """Listeners `tls`, `mtls`, and `sasl` over TLS: PLAIN, SCRAM, OAUTHBEARER with tokens that need no signature."""

    def __init__(self, login: Login) -> None:
        super().__init__()
        self._login = login
        self._ports = {name: free_port() for name in ("tls", "mtls", "sasl")}

    def listener(self, name: str) -> str:
        return f"localhost:{self._ports[name]}"

    def _settings(self, port: int, controller: int) -> dict[str, str]:
        settings = super()._settings(port, controller)
        for name, number in self._ports.items():
            protocol = "SASL_SSL" if name == "sasl" else "SSL"
            settings["listener.security.protocol.map"] += f",{name.upper()}:{protocol}"
            settings["listeners"] += f",{name.upper()}://127.0.0.1:{number}"
            settings["advertised.listeners"] += f",{name.upper()}://localhost:{number}"
        tls = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._login.keys),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._login.authority),
            "listener.name.mtls.ssl.client.auth": "required",
        }
        return {**settings, **tls, **self._logins()}

    def _logins(self) -> dict[str, str]:
        listener, login = "listener.name.sasl", self._login
        scram = f"{_MODULE}.scram.ScramLoginModule required;"
        return {
            f"{listener}.sasl.enabled.mechanisms": ",".join(_SASL),
            f"{listener}.plain.sasl.jaas.config": (
                f'{_MODULE}.plain.PlainLoginModule required user_{login.user}="{login.password}";'
            ),
            f"{listener}.scram-sha-256.sasl.jaas.config": scram,
            f"{listener}.scram-sha-512.sasl.jaas.config": scram,
            f"{listener}.oauthbearer.sasl.jaas.config": (
                f'{_MODULE}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
            ),
        }

    def _format_options(self) -> list[str]:
        who = f"name={self._login.user},password={self._login.password}"
        return [option for kind in ("256", "512") for option in ("--add-scram", f"SCRAM-SHA-{kind}=[{who}]")]
