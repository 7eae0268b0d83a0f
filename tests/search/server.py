"""A PostgreSQL server that lives in a folder of its own and ends with the process that started it."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

USER, PASSWORD = "searcher", "p@ss/word%"
QUOTED = "p%40ss%2Fword%25"
NOBODY = 65534


def missing():
    """Return why no server can be started here, or None."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed"
    if _programs() is None:
        return "no PostgreSQL server is installed (Debian's package postgresql)"
    return None if shutil.which("setpriv") else "setpriv is not installed"


class Server:
    """Start with `start`, end with `stop`; both may be done again."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="archsearch-postgres-"))
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        if os.getuid() == 0:  # under which it refuses to run
            os.chown(self.folder, NOBODY, NOBODY)
        options = ["--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C"]
        command = ["initdb", "-D", self._data, "-U", USER, f"--pwfile={self.folder}/password", *options]
        subprocess.run(self._unprivileged(command), check=True, capture_output=True)
        self._process = None
        self.start()

    def start(self):
        settings = {"unix_socket_directories": self.folder, "listen_addresses": "", "fsync": "off"}
        command = ["postgres", "-D", self._data, *(f"--{name}={value}" for name, value in settings.items())]
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(self._unprivileged(command), stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < deadline, (self.folder / "log.txt").read_text()
            time.sleep(0.05)

    def stop(self):
        """End all sessions at once, as a restart does."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=30)

    def remove(self):
        if self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder)

    def connect(self, database="postgres"):
        import psycopg

        where = {"host": str(self.folder), "user": USER, "password": PASSWORD, "dbname": database}
        return psycopg.connect(**where, autocommit=True)

    def make_database(self, name):
        """Return the URL of a new, empty database."""
        with self.connect() as connection:
            connection.execute(f"create database {name}")
        return f"postgresql://{USER}:{QUOTED}@/{name}?host={self.folder}"

    @property
    def _data(self):
        return str(self.folder / "data")

    def _answers(self):
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _unprivileged(self, command):
        user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
        return ["setpriv", *user, "--pdeathsig=INT", str(_programs() / command[0]), *command[1:]]


def _programs():
    """Return the folder of the newest server's programs: Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    return Path(found).resolve().parent if found else known[-1].parent if known else None
