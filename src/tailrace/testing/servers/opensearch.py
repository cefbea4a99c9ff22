"""A real OpenSearch: one node from the jars of the Maven repository, without the security plugin.

The node's HTTP module is a plugin that only a subclass of `Node` can name, so a class of a few lines is compiled, when
the server starts, by the Janino that Spark ships: no Java compiler is needed.
"""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import httpx

from tailrace.errors import SetupError
from tailrace.machine.java import java_home, with_one_collector
from tailrace.machine.maven import fetch_jars
from tailrace.testing.servers.lifecycle import LocalServer
from tailrace.testing.servers.process import ServerProcess, free_port

VERSION = "2.19.1"

_LOGGER_VERSION = "2.21.0"
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"
_SOURCE = """\
import java.io.IOException;
import java.util.Collections;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

public class LocalNode extends Node {
    public LocalNode(Environment environment) {
        super(environment, Collections.singletonList(Netty4Plugin.class), false);
    }

    public static void main(String[] names) throws Exception {
        Settings.Builder settings = Settings.builder();
        for (int i = 0; i < names.length; i += 2) settings.put(names[i], names[i + 1]);
        final LocalNode node = new LocalNode(
            InternalSettingsPreparer.prepareEnvironment(settings.build(), Collections.emptyMap(), null, null));
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                try { node.close(); } catch (IOException error) { error.printStackTrace(); }
            }
        });
        node.start();
        synchronized (node) { node.wait(); }
    }
}
"""
_LOGGING = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%p][%c{1.}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class OpenSearchServer(LocalServer):
    """One node, without authentication and TLS. `settings` are those of its configuration file."""

    patience_s = 240

    def __init__(self, directory: Path | None = None, heap: str = "384m", **settings: str) -> None:
        super().__init__("opensearch", directory)
        self._heap = heap
        self.settings = {name.replace("__", "."): value for name, value in settings.items()}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        fetch_opensearch()
        (self.directory / "LocalNode.java").write_text(_SOURCE)
        (self.directory / "log4j2.properties").write_text(_LOGGING)

    def _launch(self, port: int) -> ServerProcess:
        settings = self._settings(port, free_port())
        arguments = [text for setting in settings.items() for text in setting]
        return ServerProcess(
            self._java("org.codehaus.janino.SimpleCompiler", "LocalNode.java", "LocalNode", *arguments),
            log=self.log,
            orphaned=signal.SIGKILL,
            env={**os.environ, "LC_ALL": "C"},
        )

    def _ready(self, process: ServerProcess, port: int) -> bool:
        """It takes writes: also the indices that it had are there again."""
        health = f"http://127.0.0.1:{port}/_cluster/health?wait_for_status=yellow&timeout=1s"
        try:
            return httpx.get(health, trust_env=False, timeout=5).is_success
        except httpx.HTTPError:
            return False

    def _end(self, process: ServerProcess) -> None:
        process.end(signal.SIGTERM, seconds=30)

    def _settings(self, port: int, transport: int) -> dict[str, str]:
        return {
            "path.home": str(self.directory),
            "path.data": str(self.directory / "data"),
            "cluster.name": "tailrace",
            "node.name": "tailrace",
            "discovery.type": "single-node",
            "http.host": "127.0.0.1",
            "http.port": str(port),
            "transport.host": "127.0.0.1",
            "transport.port": str(transport),
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **self.settings,
        }

    def _java(self, *arguments: str) -> list[str]:
        options = [f"-Xmx{self._heap}", *with_one_collector(_QUICK).split()]
        options.append(f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}")
        places = [*(f"{folder}/*" for folder in fetch_opensearch()), *map(str, _compiler())]
        return [str(java_home() / "bin" / "java"), *options, "-cp", os.pathsep.join(places), *arguments]


def fetch_opensearch() -> tuple[Path, Path, Path]:
    """The folders of the node's jars, of its HTTP module and of its logger, downloaded the first time."""
    return (
        fetch_jars("org.opensearch", "opensearch", VERSION),
        fetch_jars("org.opensearch.plugin", "transport-netty4-client", VERSION),
        fetch_jars("org.apache.logging.log4j", "log4j-core", _LOGGER_VERSION, transitive=False),
    )


def _compiler() -> list[Path]:
    spec = find_spec("pyspark")
    jars = Path(spec.origin).parent / "jars" if spec and spec.origin else Path()
    found = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
    if not found:
        raise SetupError("environment.pyspark", "PySpark's jars were not found", hint="pip install pyspark")
    return found
